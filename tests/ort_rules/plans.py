"""Small plans as forecasts want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import OpCost, Profile, Provenance
from remat_cli.ort_rules.forecast import Judged
from remat_cli.ort_rules.runtime import Runtime, SessionOptions

KIB, MIB = 2**10, 2**20
INPUT_BYTES = 16
HERE = Runtime("1.32.0", "x86_64", 16)


def on(version: str = "1.32.0", judged_as: tuple[str, ...] = (), **options: Any) -> Runtime:
    """A runtime whose sessions have these options."""
    return Runtime(version, "x86_64", 16, SessionOptions(**options), judged_as)


@dataclass(frozen=True)
class Step:
    """An op that makes so many bytes of the result before it; the last result is the model's."""

    size_bytes: int
    kind: str | None = None
    workspace_bytes: int = 0
    op_type: str = "Relu"
    weights: tuple[int, ...] = ()
    is_view: bool = False


def chain(steps: Sequence[Step | int], time_ns: int = 1, **judged: Any) -> Judged:
    """A plan of ops, each of which reads what the one before it made; the first reads an input of 16 bytes."""
    known = [Step(step) if isinstance(step, int) else step for step in steps]
    tensors = [Tensor("x", "float", (INPUT_BYTES // 4,), INPUT_BYTES)]
    for at, step in enumerate(known):
        view_of = at if step.is_view else None
        shape = (step.size_bytes // 4,)
        tensors.append(Tensor(f"t{at}", "float", shape, step.size_bytes, at, view_of, at + 1 == len(known)))
    ops = tuple(Op(f"o{at}", step.op_type, (at,), (at + 1,), weights=step.weights) for at, step in enumerate(known))
    count = 1 + max((each for step in known for each in step.weights), default=-1)
    graph = Graph(ops, tuple(tensors), tuple(Weight(f"w{at}", 4) for at in range(count)))
    costs = tuple(OpCost(op.name, time_ns, step.workspace_bytes) for op, step in zip(ops, known, strict=True))
    profile = Profile("cpu", "", Provenance("", "", "", "", "", 0, "", 0, 0), costs, 0, INPUT_BYTES)
    plan = baseline(make_problem(graph, profile))
    kinds = (None, *(step.kind for step in known))
    return replace(Judged(graph, plan, INPUT_BYTES, kinds), **judged)
