"""The shared test vectors as Problems: tiny graphs with the exact optimum for every budget and search space."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared"
PATH = SHARED / "algorithms" / "dag_vectors.json"
INSTANCES = SHARED / "instances"


@dataclass(frozen=True)
class Case:
    """One graph: `problems[i]` is it under budget i, `optimum[space][i]` its least time there (None: infeasible)."""

    name: str
    problems: tuple[Problem, ...]
    optimum: dict[str, tuple[int | None, ...]]


def load_cases(devices: int | None = 1) -> list[Case]:
    """All cases with that many devices (None: more than one); skips the test when the vectors are not there."""
    if not PATH.exists():
        pytest.skip(f"no test vectors beside the checkout ({PATH.name})")
    cases = json.loads(PATH.read_text())["cases"]
    return [_case(case) for case in cases if (case["devices"] == devices if devices else case["devices"] > 1)]


def _case(case: dict[str, Any]) -> Case:
    problem = _problem(case)
    problems = []
    for budgets in case["budgets"]:
        limited = problem
        for memory, budget in enumerate(budgets):
            limited = limited.with_budget(budget, memory)
        problems.append(limited)
    return Case(case["name"], tuple(problems), {space: tuple(times) for space, times in case["optimum"].items()})


def _problem(case: dict[str, Any]) -> Problem:
    count = case["devices"]
    producer = {tensor: v for v, op in enumerate(case["ops"]) for tensor in op["outputs"]}
    copies = case.get("copy_time", [])
    return Problem(
        ops=tuple(
            OpSpec(tuple(op["inputs"]), tuple(op["outputs"]), tuple(op["time"]), (op["workspace"],) * count)
            for op in case["ops"]
        ),
        tensors=tuple(
            TensorSpec(size, producer[tensor], kept=tensor in case["kept"])
            for tensor, size in enumerate(case["tensor_bytes"])
        ),
        memories=tuple(Memory(f"memory{d}", 0) for d in range(count)),
        devices=tuple(Device(f"device{d}", d) for d in range(count)),
        copy_ns=tuple(tuple(tuple(times) for times in row) for row in copies),
    )
