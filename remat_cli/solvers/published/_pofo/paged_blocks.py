"""A training step as rotor sees it, a chain of blocks, for plans that page."""

from remat_cli.core.paging.paging import Link
from remat_cli.solvers.chains.blocks import Blocks
from remat_cli.solvers.published._pofo.paged_chain import PagedChain


def paged_blocks(blocks: Blocks, link: Link) -> PagedChain:
    """The chain, with what its budget leaves when everything that stays all through is taken off."""
    room = blocks.problem.memories[0].free_bytes - blocks.resident_bytes
    return PagedChain(blocks.chain, max(0, room), link)
