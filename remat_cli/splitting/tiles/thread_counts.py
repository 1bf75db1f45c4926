"""Up to how many threads the tiles of a split model have the bits of the whole.

Threads share sums out by columns, and how long the runs are that they add up depends on their shares: rules accept
slabs for so many threads as there are. With more of them, on another machine, last bits may be others.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from remat_cli.splitting.tiles.steps import RunStep, TiledRegion
from remat_cli.splitting.tiles.view import ModelView

ASKED: Final = (64, 32, 16, 12, 8, 6, 4, 3)
"""Numbers of threads that are asked about, the most first: more than 64 no session is given by default."""


def most_threads(view: ModelView, regions: Sequence[TiledRegion]) -> int:
    """Up to how many threads slabs of these regions have the bits of the whole; 0: any number, or bits may differ."""
    steps = (step for region in regions for step in region.steps)
    works = {(step.work.op, step.work.asked) for step in steps if isinstance(step, RunStep)}
    if not works or view.may_reassociate:
        return 0
    for threads in ASKED:
        if threads <= view.threads:
            break
        asked = view.with_threads(threads)
        if all(asked.slice(*work) is not None for work in works):
            return 0 if threads == ASKED[0] else threads
    return view.threads


def least_of(counts: Iterable[int]) -> int:
    """The least of several such numbers."""
    return min(filter(None, counts), default=0)
