"""What kernels take of the heap, counted, beside the rules; and what processes with such kernels hold as predicted."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.kernel_calls import heaps_of
from remat_cli.runtime.observe.resident import ResidentJob, measure_resident
from remat_cli.runtime.sessions._ort import installed_rules, pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings

MIB = 2**20
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
KINDS = {"float32": FLOAT, "int64": INT64}
THREADS = 2
SHARE, ROOM_BYTES = 0.03, 2 * MIB
NEEDS_GLIBC = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists() or platform.libc_ver()[0] != "glibc", reason="needs /proc and glibc"
)

NEEDS_GCC = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")

COUNTED = """
import ctypes, json, sys
import numpy as np
import onnxruntime as ort
counter = ctypes.CDLL(sys.argv[1])
counter.memcount_current.restype = counter.memcount_peak.restype = ctypes.c_long
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
options.enable_mem_pattern = False
found = {}
for path in sys.argv[3:]:
    session = ort.InferenceSession(path + ".onnx", options, providers=["CPUExecutionProvider"])
    feeds = dict(np.load(path + ".npz"))
    for _ in range(2):
        session.run(None, feeds)  # the arena has all it needs
    before = counter.memcount_current()
    counter.memcount_reset()
    results = session.run(None, feeds)
    peak = counter.memcount_peak() - before
    found[path] = peak, [(str(each.dtype), each.shape) for each in results]
print(json.dumps(found))
"""


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def places(below: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, below, shape)


def forest(trees: int) -> dict[str, list[int] | list[float] | list[str]]:
    """Trees of one question and two leaves, for a target each."""
    leaves = [(tree, leaf) for tree in range(trees) for leaf in (1, 2)]
    return {
        "nodes_treeids": [tree for tree in range(trees) for _ in range(3)],
        "nodes_nodeids": [0, 1, 2] * trees,
        "nodes_featureids": [0] * 3 * trees,
        "nodes_values": [0.5, 0.0, 0.0] * trees,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * trees,
        "nodes_truenodeids": [1, 0, 0] * trees,
        "nodes_falsenodeids": [2, 0, 0] * trees,
        "target_treeids": [tree for tree, _ in leaves],
        "target_nodeids": [leaf for _, leaf in leaves],
        "target_ids": [leaf - 1 for _, leaf in leaves],
        "target_weights": [1.0] * len(leaves),
    }


CASES = {
    "scatter": ("ScatterElements", {"x": drawn(9), "i": places(9, 400_000), "u": drawn(400_000)}, [FLOAT], {}),
    "scatter_nd": ("ScatterND", {"x": drawn(9, 4), "i": places(9, 90_000, 1), "u": drawn(90_000, 4)}, [FLOAT], {}),
    "gather_nd": ("GatherND", {"x": drawn(9, 4), "i": places(4, 90_000, 2)}, [FLOAT], {}),
    "top_many": ("TopK", {"x": drawn(2, 90_000), "k": np.array([50_000])}, [FLOAT, INT64], {}),
    "top_few": ("TopK", {"x": drawn(400_000), "k": np.array([10_000])}, [FLOAT, INT64], {}),
    "non_zero": ("NonZero", {"x": drawn(300, 300)}, [INT64], {}),
    "grid": ("GridSample", {"x": drawn(1, 2, 9, 9), "g": drawn(1, 100, 90, 2)}, [FLOAT], {}),
    "products": ("MatMul", {"x": drawn(9000, 2, 2), "z": drawn(9000, 2, 2)}, [FLOAT], {}),
    "trees": ("TreeEnsembleRegressor", {"x": drawn(9000, 2)}, [FLOAT], {**forest(20), "n_targets": 2}),
}


def saved(name: str, folder: Path) -> Path:
    """A model of one op, and its inputs."""
    op, feeds, makes, attributes = CASES[name]
    domain = "ai.onnx.ml" if op.startswith("Tree") else ""
    results = [f"y{at}" for at in range(len(makes))]
    node = helper.make_node(op, list(feeds), results, "op", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        name,
        [
            helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for key, value in feeds.items()
        ],
        [helper.make_tensor_value_info(key, kind, None) for key, kind in zip(results, makes, strict=True)],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=imports), folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", **feeds)
    return folder / name


MOST_COUNTS = 5  # of what took less than it should with all threads at work


def counted(paths: Sequence[Path], folder: Path) -> dict[str, tuple[int, list[tuple[str, list[int]]]]]:
    """By model the most that a run takes of the heap, and types of its results."""
    source, library = Path(__file__).with_name("memcount.c"), folder / "memcount.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, str(library), str(THREADS), *map(str, paths)],
        env={"LD_PRELOAD": str(library), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@NEEDS_GLIBC
@NEEDS_GCC
def test_kernels_take_of_the_heap_what_the_rules_say(tmp_path):
    paths = [saved(name, tmp_path) for name in CASES]
    found, expected = counted(paths, tmp_path), dict[Path, int]()
    for path in paths:
        made = tuple(
            TensorType({"float32": "float"}.get(kind, kind), tuple(shape)) for kind, shape in found[str(path)][1]
        )
        model = ir.load(f"{path}.onnx")
        uses = heaps_of(model, to_graph(model, {"op": made}), THREADS, installed_rules().loading).get("op", ())
        assert uses, path.name
        expected[path] = sum(use.bytes for use in uses)
    seen = {path: found[str(path)][0] for path in paths}
    for _ in range(MOST_COUNTS):  # where other programs are in the way, one thread may end before the next begins
        less = [path for path in paths if seen[path] < expected[path] * 0.98 - 2**14]
        again = counted(less, tmp_path) if less else {}
        seen |= {path: max(seen[path], again[str(path)][0]) for path in less}
    for path in paths:
        # The counter sees heads of blocks, and a kernel's small ones.
        assert expected[path] == pytest.approx(seen[path], rel=0.02, abs=2**14), path.name


@NEEDS_GLIBC
@NEEDS_GCC
def test_products_of_a_few_bits_take_their_workspace_of_the_heap(tmp_path):
    """Rows in bytes, with a scale and a sum for each block: past the arena, which has all it needs by then."""
    rows, terms, columns, size = 900, 512, 64, 32
    dice, blocks = np.random.default_rng(0), terms // size
    sizes = {"K": terms, "N": columns, "bits": 4, "block_size": size, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], "op", domain="com.microsoft", **sizes)
    weights = {
        "w": dice.integers(0, 256, (columns, blocks, size // 2)).astype(np.uint8),
        "s": drawn(columns * blocks),
    }
    graph = helper.make_graph(
        [node],
        "few_bits",
        [helper.make_tensor_value_info("x", FLOAT, [rows, terms])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=imports), tmp_path / "few_bits.onnx")
    np.savez(tmp_path / "few_bits.npz", x=drawn(rows, terms))
    peak_bytes, _ = counted([tmp_path / "few_bits"], tmp_path)[str(tmp_path / "few_bits")]
    beside_bytes = 8  # a scale and a sum
    assert peak_bytes == pytest.approx(rows * blocks * (size + beside_bytes), rel=0.02, abs=2**14)


@NEEDS_GLIBC
def test_a_process_holds_what_is_predicted_where_kernels_take_of_the_heap(tmp_path):
    count, found = 3_000_000, 1_000_000
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "relu"),
        helper.make_node("TopK", ["h", "k"], ["values", "places"], "top", axis=0),
        helper.make_node("ReduceMax", ["values"], ["y"], "most", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "top",
        [helper.make_tensor_value_info("x", FLOAT, [count])],
        [helper.make_tensor_value_info("y", FLOAT, [])],
        [numpy_helper.from_array(np.array([found]), "k")],
    )
    path = tmp_path / "top.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)]), path)
    report = remat_cli.inspect(path, cache_dir=tmp_path / "cache", intra_op_threads=1)
    memory = report.process
    assert memory is not None
    job = ResidentJob(str(path), pack_all({"x": drawn(count)}), SessionSettings(exact=False, intra_op_threads=1))
    seen = run_fresh(measure_resident, job).run_peak_bytes
    first, later = seen[0].total_bytes, max(each.total_bytes for each in seen[1:])
    assert first == pytest.approx(memory.first_run_bytes, rel=SHARE, abs=ROOM_BYTES)
    # A later run finds the place of the one before, or takes a second one, by chance.
    room_bytes = SHARE * memory.later_runs_bytes + ROOM_BYTES
    assert -room_bytes <= memory.later_runs_bytes - later <= 8 * count + room_bytes
