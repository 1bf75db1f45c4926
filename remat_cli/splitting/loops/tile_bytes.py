"""What one tile of a loop without windows holds at the largest sizes, in some order of its ops."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.base.clock import SearchOver
from remat_cli.core.values.profile import Profile
from remat_cli.splitting.loops.least_held import least_held
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView

ITEMS = 0  # their axis
WHOLE = Tiling(2**62)  # one tile of all rows


def ops_in_order(sized: SizedView, region: LoopRegion) -> tuple[int, ...]:
    """The ops of a loop without windows in the order of its body; as they are where no time is left to order them."""
    ops = frozenset(region.ops)
    if ops not in sized.known_orders:
        try:
            found = least_held(sized, sorted(ops), lambda order: tile_bytes(sized, region, WHOLE, order))
        except SearchOver:
            return tuple(sorted(ops))
        sized.known_orders[ops] = found
    return sized.known_orders[ops]


def tile_bytes(
    sized: SizedView, region: LoopRegion, tiling: Tiling, order: Sequence[int], profile: Profile | None = None
) -> int:
    """The most that one tile holds, in an order of the ops; what shares a buffer counts once.

    Without a profile what ops take inside does not count.
    """
    view = sized.view
    length = next(view.tensors[name].shape[axis] for name, axis in region.axes.items())
    share = min(1.0, tiling.rows / length)
    last = {name: at for at, op in enumerate(order) for name in view.reads[op]}
    tensors = view.graph.tensors
    views = {each.name: tensors[each.view_of].name for each in tensors if each.view_of is not None}
    held: dict[str, float] = {}
    most = 0.0
    for at, op in enumerate(order):
        for position, name in enumerate(view.reads[op]):
            if (op, position) in region.reads and name not in held:
                held[name] = sized.sizes.get(name, 0) * share
        shared = [(a, b) for a, b in view.in_place if b in view.makes[op]]
        shared += [(views[b], b) for b in view.makes[op] if b in views]
        merged = [a for a, _ in shared if a in held and last.get(a) == at]
        for name in merged[:1]:
            held.pop(name)
        for name in view.makes[op]:
            if name:
                held[name] = sized.sizes[name] * share if name not in views or merged else 0.0
        inside = 0.0 if profile is None else profile.ops[op].workspace_bytes * _taken_share(sized, region, op, share)
        if op in sized.longer:
            inside += sum(sized.sizes[name] * share for name in view.makes[op] if name)
        most = max(most, sum(held.values()) + inside)
        for name in [name for name in held if last.get(name, len(order)) <= at]:
            del held[name]
    return int(most)


def _taken_share(sized: SizedView, region: LoopRegion, op: int, share: float) -> float:
    """How much of what an op takes for itself it takes in a tile that has a share of what it makes.

    Convolutions take the same for a few items as for all: it is that of one item, or of each thread.
    """
    made = next(name for name in sized.view.makes[op] if name)
    return 1.0 if sized.view.rules[op].items_apart and region.axes[made] == ITEMS else share
