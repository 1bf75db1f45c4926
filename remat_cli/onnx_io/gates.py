"""Gates: control dependencies, written as ordinary ops, that make every session run the plan's order.

A gate delays an op until its predecessor in the plan has run. One of the values it reads is passed through an op that
shares its buffer and that needs a number computed from a result (the token) of the predecessor:

    n  = Size(token)          reads no data; the runtime does not fold it
    z  = Mul(n, [])           no axes at all
    x' = Unsqueeze(x, z)      x itself, in the same buffer

Because x' differs from x, the runtime cannot merge the op with another copy of it either. Before opset 13, where the
axes of Unsqueeze are an attribute, the last op is Reshape(x, zeros), in which every 0 means "copy this dimension".
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.base.errors import RematError
from remat_cli.onnx_io.default_order import depth_first_order, ready_order
from remat_cli.onnx_io.draft import Draft
from remat_cli.onnx_io.weave import Scene, Woven, weave


def add_gates(scene: Scene) -> Woven:
    """Insert gates until a default and a priority-based session both run the ops in the order they stand in.

    Each round follows both orders, holds back every op that comes too early, and gates all of them; rounds repeat
    because gates change the order of exploration. Each round adds a gate, so there are at most as many as ops.

    Raises:
        RematError: an op that would run too early reads nothing that can be gated.
    """
    gated: set[int] = set()
    while True:
        woven = weave(scene, gated)
        early = _too_early(woven.drafts) | _merged(woven.drafts)
        if not early:
            return woven
        if early <= gated:
            raise RematError(f"op '{scene.steps[min(early)].name}' cannot be held in the plan's order: report this")
        gated |= early


def _too_early(drafts: Sequence[Draft]) -> set[int]:
    """Steps that a default or a priority-based session would run before their turn."""
    wirings = [draft.wiring for draft in drafts]
    early: set[int] = set()

    def hold(op: int, place: int) -> int | None:
        if op == place:
            return None
        early.add(op)
        return op - 1

    depth_first_order(wirings, hold)
    if not early:
        order = ready_order(wirings)
        early = {op for place, op in enumerate(order) if op > place}
    return {_step_of(drafts, op) for op in early}


def _step_of(drafts: Sequence[Draft], index: int) -> int:
    """The step at a place, or the next one if a gate helper stands there."""
    return next(draft.step for draft in drafts[index:] if draft.step >= 0)


def _merged(drafts: Sequence[Draft]) -> set[int]:
    """Steps that read exactly what an earlier run of the same op reads: the runtime would merge the two."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    merged: set[int] = set()
    for draft in drafts:
        if draft.source is not None:
            key = (draft.source.name or "", draft.reads)
            if key in seen:
                merged.add(draft.step)
            seen.add(key)
    return merged
