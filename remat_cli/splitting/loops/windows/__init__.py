"""Loops over tiles of windowed ops: which ops, what each tile reads, that bits stay, and the bodies."""
