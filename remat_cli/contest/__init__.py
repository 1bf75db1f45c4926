"""Solvers beside each other, each in a process of its own."""
