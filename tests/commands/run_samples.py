"""A small program and what running it showed, by hand."""

from __future__ import annotations

from msgspec.structs import replace

from remat_cli.core.schedule.program import (
    ActionRecord,
    CopyAction,
    InputSpec,
    Program,
    RunRecord,
    SeenMemory,
    SegmentFile,
    SessionAction,
    Value,
)
from remat_cli.devices.provider_table import named_spec

FIRST = SegmentFile("0.onnx", ("x",), ("b",), ("a", "b"), (0, 1), {})
SECOND = SegmentFile("1.onnx", ("b/remat_1",), ("y",), ("c",), (3,), {})
PROGRAM = Program(
    folder="nowhere",
    devices=(named_spec("cpu:1threads"), replace(named_spec("cpu:2threads"), memory="node1")),
    memories=("cpu", "node1"),
    memory_of=(0, 1),
    budgets=(150, 30),
    actions=(
        SessionAction(0, FIRST, (), {"b": 5}, (0, 3000), (140, 10), {"a": (0, 1000), "b": (1000, 3000)}),
        CopyAction(0, 1, "b", "b/remat_1", ("b",), (3000, 4000), (116, 26)),
        SessionAction(1, SECOND, ("b/remat_1",), {}, (4000, 6000), (100, 30), {"c": (4000, 6000)}),
    ),
    inputs=(InputSpec("x", "float", (4,)),),
    outputs=("y",),
    values={
        "x": Value("float", (4,), 16),
        "b": Value("float", (4,), 16),
        "b/remat_1": Value("float", (4,), 16, 1),
        "y": Value("float", (1,), 4, 1),
    },
    planned_ns=6000,
    planned_fixed_bytes=(100, 10),
)
RECORD = RunRecord(
    (
        ActionRecord(100, 5000, (0, 0), (16, 0)),
        ActionRecord(5200, 6200, (16, 0), (16, 16)),
        ActionRecord(6300, 9300, (0, 16), (0, 20)),
    ),
    10_000,
)
SLOWER = RunRecord(RECORD.actions, 14_000)
SEEN = SeenMemory((100, 10), (0, 0), ((45, 0), (16, 16), (0, 20)), (False, False))
