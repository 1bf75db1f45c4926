"""An order for the ops of a loop's body in which a tile holds less: what ends lives goes first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from remat_cli.splitting.loops.loop_regions import SizedView

WORTH = 1.02  # how much more another order must hold


def least_held(sized: SizedView, ops: Sequence[int], bytes_of: Callable[[Sequence[int]], int]) -> tuple[int, ...]:
    """The ops as they are, or in an order that holds less; `bytes_of` says how much one holds."""
    greedy = _shrinking_first(sized, ops)
    return greedy if bytes_of(greedy) * WORTH < bytes_of(ops) else tuple(ops)


def _shrinking_first(sized: SizedView, ops: Sequence[int]) -> tuple[int, ...]:
    """Of the ops that can run always the one behind which least is held; of several the first."""
    view, own, order = sized.view, set(ops), list[int]()
    made = {name for op in ops for name in view.makes[op] if name and name not in sized.kept}
    left = {name: set(view.readers[name]) for name in made}  # what is read outside is never gone
    while own:
        sized.look()
        ready = [op for op in ops if op in own and not any(sized.makers.get(name) in own for name in view.reads[op])]
        chosen = min(ready, key=lambda op: _growth(sized, op, left))
        own.remove(chosen)
        order.append(chosen)
        for name in set(view.reads[chosen]) & left.keys():
            left[name].remove(chosen)
    return tuple(order)


def _growth(sized: SizedView, op: int, left: Mapping[str, set[int]]) -> int:
    """By how much more is held once an op has run."""
    view, sizes = sized.view, sized.sizes
    ended = sum(sizes[name] for name in set(view.reads[op]) if left.get(name) == {op})
    return sum(sizes[name] for name in view.makes[op] if name) - ended
