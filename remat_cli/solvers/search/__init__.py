"""Compiled kernels of local search on one device, and how they are run."""
