"""Running models under the profiler: what was executed, what came out, and how much was live at once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.core.schedule.program import InputSpec
from remat_cli.core.values.profile import OpCost, Profile, Provenance
from remat_cli.onnx_io.read.interface import DATA_TYPES
from remat_cli.onnx_io.read.load import prepare_optimized

SUFFIX = "_kernel_time"
NOWHERE = Provenance("", "", "", "", "", 1, "all", 0, 0, measured=False)

Feeds = Mapping[str, np.ndarray]


def profile_events(
    model: bytes | str | Path, feeds: Feeds, exact: bool
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Kernel events of one run in order of execution, and the outputs.

    `exact`: file order, no optimisation, no reuse of buffers; otherwise default options, apart from one thread.
    """
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_reuse = False
        options.enable_mem_pattern = False
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "run")
        source = model if isinstance(model, bytes) else str(model)
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_text())
    return [e for e in events if e.get("cat") == "Node" and e["name"].endswith(SUFFIX)], outputs


def run_profiled(model: bytes | str | Path, feeds: Feeds, exact: bool) -> tuple[list[str], list[np.ndarray], int]:
    """Names of the executed nodes in order, the outputs, and the largest number of bytes live at once."""
    events, outputs = profile_events(model, feeds, exact)
    return [e["name"].removesuffix(SUFFIX) for e in events], outputs, live_peak(events)


def live_peak(events: list[dict[str, Any]]) -> int:
    """The most that was held when one of these kernels ended, above what was held before the first."""
    held = [int(e["args"]["mem_bytes_requested_in_use"]) for e in events]
    start = held[0] - int(events[0]["args"]["mem_requested_in_use_delta"])
    return max(held) - start


def observe(model: ir.Model, feeds: Feeds) -> dict[str, tuple[TensorType, ...]]:
    """Types of the results of every node, from one run."""
    events, _ = profile_events(to_bytes(model), feeds, exact=True)
    names = {node.name for node in model.graph}
    return {
        name: tuple(TensorType(*next(iter(o.items()))) for o in _typed(event))
        for event in events
        if (name := event["name"].removesuffix(SUFFIX)) in names
    }


def _typed(event: dict[str, Any]) -> list[dict[str, tuple[int, ...]]]:
    return [{k: tuple(v) for k, v in output.items()} for output in event["args"]["output_type_shape"]]


def to_bytes(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString()


def optimise(model: onnx.ModelProto | ir.Model, folder: Path, extended: bool = False) -> ir.Model:
    """What the runtime's offline optimiser makes of a model, prepared as a reference model.

    It is run until nothing changes: one pass may leave what the next one fuses.
    """
    source = ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model
    data = to_bytes(source)
    path = folder / "optimised.onnx"
    ops: list[str] = []
    while True:
        before = ops
        _optimise_once(data, path, extended)
        data = path.read_bytes()
        ops = sorted(node.op_type for node in onnx.load(path).graph.node)
        if ops == before:
            return prepare_optimized(path, source)


def _optimise_once(data: bytes, path: Path, extended: bool) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_EXTENDED if extended else level.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def random_feeds(inputs: tuple[InputSpec, ...], seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded inputs: normally distributed floats, integers and booleans of 0 and 1."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for spec in inputs:
        dtype = DATA_TYPES[spec.dtype].numpy()
        is_float = np.issubdtype(dtype, np.floating)
        values = rng.standard_normal(spec.shape) if is_float else rng.integers(0, 2, spec.shape)
        feeds[spec.name] = np.asarray(values).astype(dtype)
    return feeds


def free_problem(graph: Any) -> Problem:
    """A problem whose ops cost nothing and need no workspace, without a fixed part or a budget."""
    profile = Profile("cpu", "", NOWHERE, tuple(OpCost(op.name, 0) for op in graph.ops), 0, 0)
    return make_problem(graph, profile, 2**62)
