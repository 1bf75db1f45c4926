"""Loading the kernels of POFO's tables, and of plans without paging, ahead of need."""

from remat_cli.core.paging.paging import Link
from remat_cli.solvers.chains import rotor_kernels
from remat_cli.solvers.chains.actions import Chain
from remat_cli.solvers.published._pofo import pofo_kernels
from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from remat_cli.solvers.published._pofo.pofo import pofo
from remat_cli.solvers.published._pofo.pofo_schedule import recomputed

ENTRIES = (
    pofo_kernels.fill_blocks,
    pofo_kernels.fill_forwards,
    pofo_kernels.row_of,
    rotor_kernels.fill,
    rotor_kernels.choose,
)


def warm_up() -> None:
    """Load the kernels from the cache, or compile them into it: some seconds, once per machine and version."""
    zeros = (0, 0, 0)
    figures = Chain((0, 1, 1), (0, 1, 1), (1, 1, 1), (0, 1, 1), (1, 1, 0), zeros, zeros, zeros)
    chain = PagedChain(figures, 100, Link(1, 1))
    pofo(chain, quantum_bytes=1)
    recomputed(chain)
