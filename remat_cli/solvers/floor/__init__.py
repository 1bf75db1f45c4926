"""A proved least budget: what no order and no recomputing gets below."""
