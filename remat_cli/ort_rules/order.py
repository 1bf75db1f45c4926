"""The orders in which ONNX Runtime executes a graph, predicted from names alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remat_cli.core.schedule.orders import ranked_order

EARLY_OPS = frozenset({"Shape", "Size"})  # a priority-based session runs these as soon as their input exists


@dataclass(frozen=True)
class Wiring:
    """What one op reads (values captured by its subgraphs included) and makes, by name, and whether it runs early."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    early: bool = False


def producers(ops: Sequence[Wiring]) -> list[list[int]]:
    """For each op the ops whose results it reads, each once, in ascending order."""
    maker = {name: index for index, op in enumerate(ops) for name in op.makes}
    return [sorted({maker[name] for name in op.reads if name in maker}) for op in ops]


Correct = Callable[[int, int], int | None]


def depth_first_order(ops: Sequence[Wiring], correct: Correct = lambda op, place: None) -> list[int]:
    """Order of a default session: reverse depth-first search from the ops that nobody reads.

    The last such op is explored first, and at every op the producer with the highest index. `correct(op, place)` is
    asked before an op is given its place in the order and may name an op that must come before it.
    """
    sources = producers(ops)
    used = {source for group in sources for source in group}
    stack = [(op, False) for op in range(len(ops)) if op not in used]
    seen: set[int] = set()
    order: list[int] = []
    while stack:
        op, leaving = stack.pop()
        if leaving:
            before = correct(op, len(order))
            if before is None:
                order.append(op)
            else:
                stack += [(op, True), (before, False)]
        elif op not in seen:
            seen.add(op)
            stack.append((op, True))
            stack += [(source, False) for source in sources[op] if source not in seen]
    return order


def ready_order(ops: Sequence[Wiring]) -> list[int]:
    """Order of a priority-based session: of the ops that are ready, `Shape` and `Size` first, then the lowest index."""
    return ranked_order(producers(ops), [not op.early for op in ops])
