"""Figures of each node as data that model-explorer lays over its picture of a model.

Its format is one of node data: by the name of a graph, `results` with a value by the name of a node, and a `gradient`.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.report.regions import step_times_ns

MIB: Final = 2**20
TITLES: Final = {"live": "live memory, MiB", "time": "time, ms", "repeats": "times it runs again"}
GRADIENT: Final = ({"stop": 0.0, "bgColor": "#e6f2ec"}, {"stop": 1.0, "bgColor": "#2f7d5b"})


class OverlayRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a node: what is held at most while it runs, its time in all, and how often it runs again."""

    node: str
    live_bytes: int
    time_ns: int
    repeats: int = 0


def overlay_paths(path: Path) -> dict[str, Path]:
    """A file for each figure beside a path: `FILE.live.json` and so on."""
    return {what: path.with_name(f"{path.stem}.{what}.json") for what in TITLES}


def overlay_files(graph_name: str, rows: Sequence[OverlayRow]) -> dict[str, bytes]:
    """The contents of these files."""
    values: dict[str, Mapping[str, float]] = {
        "live": {row.node: round(row.live_bytes / MIB, 4) for row in rows},
        "time": {row.node: round(row.time_ns / 1e6, 6) for row in rows},
        "repeats": {row.node: row.repeats for row in rows if row.repeats},
    }
    files = {}
    for what, title in TITLES.items():
        results = {node: {"value": value} for node, value in values[what].items()}
        data = {graph_name: {"results": results, "name": title, "gradient": GRADIENT}}
        files[what] = json.dumps(data, indent=1).encode()
    return files


def model_rows(problem: Problem, graph: Graph, nodes: Mapping[str, tuple[str, ...]]) -> tuple[OverlayRow, ...]:
    """Of a model as it is: the file's nodes that became one op have its figures together."""
    held = baseline(problem).memory_bytes[0]
    return tuple(
        OverlayRow(node=node, live_bytes=held[place], time_ns=spec.time_ns[0] or 0)
        for place, (op, spec) in enumerate(zip(graph.ops, problem.ops, strict=True))
        for node in nodes.get(op.name, ())
    )


def plan_rows(plan: PlanFile, nested: str) -> tuple[OverlayRow, ...]:
    """Of a plan that is one model: nodes of the new file, which lie in a body where that has the steady form."""
    runs, gates, ops = plan.promise.runs, set(plan.promise.gates), iter(plan.schedule.op_ids())
    before = nested if runs is not None and runs.ballast_bytes is not None else ""
    seen: dict[int, int] = defaultdict(int)
    rows = []
    for name, held, time_ns in zip(plan.promise.order, plan.promise.memory_bytes, step_times_ns(plan), strict=True):
        repeats = 0
        if name not in gates:
            op = next(ops)
            repeats, seen[op] = seen[op], seen[op] + 1
        rows.append(OverlayRow(node=f"{before}{name}", live_bytes=held, time_ns=time_ns, repeats=repeats))
    return tuple(rows)
