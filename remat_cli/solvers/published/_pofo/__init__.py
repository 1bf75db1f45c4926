"""Paging and recomputation together on chains (Shilova 2021, ch. 3 and 4): pure functions, bounds beside them."""
