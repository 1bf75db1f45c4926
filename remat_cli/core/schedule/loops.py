"""Names of loops over tiles, by which the steady form knows them."""

SUFFIX = "/tile_loop"
"""Of the name of a Loop's node; what stands before it is the name of an op in it."""
ZERO = "/tile_zero"
"""Of the name of a weight, a zero that a loop's body adds to the number of the tile."""


def loop_name(op: str) -> str:
    """The name of the loop that begins with an op."""
    return f"{op}{SUFFIX}"


def zero_of(loop: str | None) -> str:
    """The name of the zero in a loop's body."""
    return (loop or "").removesuffix(SUFFIX) + ZERO


def is_loop(name: str | None) -> bool:
    """Whether a node is a loop over tiles."""
    return (name or "").endswith(SUFFIX)


def is_zero(name: str) -> bool:
    """Whether a weight is the zero of a loop."""
    return name.endswith(ZERO)
