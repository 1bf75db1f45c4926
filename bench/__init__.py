"""Benches that the Makefile runs; results go to bench/results."""
