"""Loading the kernel of the table of several branches ahead of need."""

from remat_cli.solvers.chains import multi_chain

ENTRIES = (multi_chain._fill,)  # the kernel that Python calls


def warm_up() -> None:
    """Load the kernel from the cache, or compile it into it: some seconds, once per machine and version."""
    multi_chain.join_table((1, 1))
