"""Ops in other ops of equal bits, where those stand in the way of tiles."""
