"""The shared test vectors on chains: chains of stages, joins, and training graphs with what is known of them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.chains.actions import Chain
from tests.solvers.random_training import step_of
from tests.solvers.vectors import SHARED

PATH = SHARED / "algorithms" / "chains_vectors.json"
GRAPHS = range(8)


@cache
def chain_vectors() -> dict[str, Any]:
    """All of them, by kind; skips the test when they are not there."""
    if not PATH.exists():
        pytest.skip(f"no test vectors beside the checkout ({PATH.name})")
    return json.loads(PATH.read_text())


def chain_of(entry: dict[str, Any]) -> Chain:
    """A chain of stages; both kinds of forward take the same extra."""
    rows = [(0, *entry["uF"]), (0, *entry["uB"]), entry["a"], (0, *entry["abar"]), entry["delta"]]
    extra = (0, *entry["oF"])
    return Chain(*map(tuple, rows), extra, extra, (0, *entry["oB"]))


def graph_problem(graph: dict[str, Any]) -> Problem:
    """A training graph; nothing is kept."""
    nodes = [(tuple(n["deps"]), n["size"], "backward" if n["backward"] else "forward") for n in graph["nodes"]]
    times = {f"op{node['id']}": {"time_ns": (node["cost"],)} for node in graph["nodes"]}
    return step_of(*nodes, **times)
