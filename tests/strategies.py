"""Random problems and schedules for property tests."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import strategies as st

from remat_cli.core.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule import Schedule


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 8, sharing: bool = True) -> Problem:
    """A one-device problem: several outputs, kept tensors, workspace, unrepeatable ops; views and in-place pairs."""
    count = draw(st.integers(1, max_ops))
    tensors: list[TensorSpec] = []
    ops: list[OpSpec] = []
    for op in range(count):
        existing = list(range(len(tensors)))
        inputs = draw(st.lists(st.sampled_from(existing), max_size=3, unique=True)) if existing else []
        nature = draw(st.sampled_from(["plain", "plain", "view", "in_place"])) if sharing and inputs else "plain"
        made = 1 if nature != "plain" else draw(st.sampled_from([1, 1, 1, 2]))
        outputs = list(range(len(tensors), len(tensors) + made))
        for _ in outputs:
            base = inputs[0] if nature == "view" else None
            size = tensors[inputs[0]].size_bytes if nature != "plain" else draw(st.integers(0, 9))
            tensors.append(TensorSpec(size, op, view_of=base, kept=draw(st.integers(0, 5)) == 0))
        ops.append(
            OpSpec(
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                time_ns=(draw(st.integers(0, 9)),),
                workspace_bytes=(draw(st.sampled_from([0, 0, 0, 3])),),
                repeatable=draw(st.integers(0, 6)) > 0,
                in_place=((inputs[0], outputs[0]),) if nature == "in_place" else (),
            )
        )
    fixed = draw(st.sampled_from([0, 0, 100]))
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40, fixed),), (Device("cpu", 0),))


@st.composite
def schedules(draw: st.DrawFn, problem: Problem, max_repeats: int = 6) -> Schedule:
    """A legal schedule: a random topological order with random recomputes put in."""
    done: set[int] = set()
    made: set[int] = set()
    steps: list[int] = []
    repeats = draw(st.integers(0, max_repeats))
    while len(done) < len(problem.ops):
        ready = [
            op
            for op, spec in enumerate(problem.ops)
            if set(spec.inputs) <= made and (op not in done or spec.repeatable)
        ]
        fresh = [op for op in ready if op not in done]
        again = [op for op in ready if op in done]
        repeat = bool(again) and repeats > 0 and draw(st.booleans())
        op = draw(st.sampled_from(again if repeat else fresh))
        repeats -= repeat
        done.add(op)
        made.update(problem.ops[op].outputs)
        steps.append(op)
    return Schedule.of_ops(steps)


def fraction_of(peak_bytes: int, fraction: float, fixed_bytes: int = 0) -> int:
    """`fixed + fraction x (peak - fixed)`, rounded up: a percentage budget in bytes."""
    return fixed_bytes + math.ceil(Fraction(str(fraction)) * (peak_bytes - fixed_bytes))
