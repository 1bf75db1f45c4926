"""The slicing rule of each op: what a slab of its output needs, and why its bits stay."""
