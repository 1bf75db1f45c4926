"""Loops over tiles, for every size of a range: regions, bodies, proofs of bits."""
