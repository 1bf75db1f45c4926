"""The table of packing kernels against the runtime: what the arena holds after loading, and what the heap holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from remat_cli.core.schedule.program import InputSpec, Reader, WeightUse
from remat_cli.onnx_io.read.interface import weight_uses
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.runtime.sessions._ort import installed_rules
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.packing import PackingJob, save_packed
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled
from tests.runtime.models import save_model, untyped, value, weight

PACKING = installed_rules().packing
N = 512
MS = "com.microsoft"
FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
SCALES = {"s": np.float32(0.02), "z": np.uint8(0)}


class Case(msgspec.Struct, frozen=True):
    """An op that reads the weight `w` as input `index`, what else it reads, and whether it packs the weight."""

    op_type: str
    inputs: str
    weight: tuple[int, ...]
    fed: tuple[int, ...]
    packs: bool
    domain: str = ""
    dtype: str = "float32"
    fed_type: int = FLOAT
    attributes: dict[str, object] = {}
    others: dict[str, tuple[int, ...]] = {}


def in_blocks(bits: int, level: int, packs: bool = True) -> Case:
    """A product with a matrix in blocks of so many bits, at an accuracy level."""
    sizes = {"K": N, "N": N, "bits": bits, "block_size": 32, "accuracy_level": level}
    return Case(
        "MatMulNBits",
        "x w scales",
        (N, N // 32, 4 * bits),
        (8, N),
        packs,
        MS,
        dtype="uint8",
        attributes=sizes,
        others={"scales": (N * N // 32,)},
    )


SQUARE = (N, N)
CASES = {
    "MatMul": Case("MatMul", "x w", SQUARE, (8, N), True),
    "MatMul, one column": Case("MatMul", "x w", (N * N, 1), (8, N * N), True),
    "MatMul, left": Case("MatMul", "w x", SQUARE, (N, 8), False),
    "MatMul, 3 dimensions": Case("MatMul", "x w", (1, N, N), (1, 8, N), False),
    "MatMul, double": Case("MatMul", "x w", SQUARE, (8, N), False, dtype="float64", fed_type=TensorProto.DOUBLE),
    "MatMul, half": Case("MatMul", "x w", SQUARE, (8, N), False, dtype="float16", fed_type=TensorProto.FLOAT16),
    "Gemm": Case("Gemm", "x w", SQUARE, (8, N), True),
    "Gemm, transposed": Case("Gemm", "x w", SQUARE, (8, N), True, attributes={"transB": 1}),
    "Gemm, left": Case("Gemm", "w x", SQUARE, (N, 8), False),
    "FusedGemm": Case("FusedGemm", "x w", SQUARE, (8, N), True, MS, attributes={"activation": "Relu"}),
    "FusedMatMul": Case("FusedMatMul", "x w", SQUARE, (8, N), True, MS, attributes={"transB": 1}),
    "Conv": Case("Conv", "x w", (128, 128, 3, 3), (1, 128, 8, 8), False),
    "FusedConv": Case(
        "FusedConv", "x w", (128, 128, 3, 3), (1, 128, 8, 8), False, MS, attributes={"activation": "Relu"}
    ),
    "ConvTranspose": Case("ConvTranspose", "x w", (128, 128, 3, 3), (1, 128, 8, 8), True),
    "LSTM, input": Case(
        "LSTM", "x w r", (1, 512, 256), (2, 1, 256), True, attributes={"hidden_size": 128}, others={"r": (1, 512, 128)}
    ),
    "LSTM, state": Case(
        "LSTM", "x r w", (1, 512, 128), (2, 1, 256), True, attributes={"hidden_size": 128}, others={"r": (1, 512, 256)}
    ),
    "GRU, input": Case(
        "GRU", "x w r", (1, 384, 256), (2, 1, 256), True, attributes={"hidden_size": 128}, others={"r": (1, 384, 128)}
    ),
    "RNN": Case(
        "RNN", "x w r", (1, 128, 256), (2, 1, 256), False, attributes={"hidden_size": 128}, others={"r": (1, 128, 128)}
    ),
    "MatMulInteger": Case("MatMulInteger", "x w", SQUARE, (8, N), True, dtype="uint8", fed_type=UINT8),
    "QLinearMatMul": Case("QLinearMatMul", "x s z w s z s z", SQUARE, (8, N), True, dtype="uint8", fed_type=UINT8),
    "QLinearConv": Case(
        "QLinearConv", "x s z w s z s z", (128, 128, 3, 3), (1, 128, 8, 8), True, dtype="uint8", fed_type=UINT8
    ),
    "ConvInteger": Case("ConvInteger", "x w", (128, 128, 3, 3), (1, 128, 8, 8), False, dtype="uint8", fed_type=UINT8),
    "DynamicQuantizeMatMul": Case("DynamicQuantizeMatMul", "x w s z", SQUARE, (8, N), True, MS, dtype="uint8"),
    "MatMulIntegerToFloat": Case(
        "MatMulIntegerToFloat", "x w s s z z", SQUARE, (8, N), True, MS, dtype="uint8", fed_type=UINT8
    ),
    "QGemm": Case("QGemm", "x s z w s z  s z", SQUARE, (8, N), True, MS, dtype="uint8", fed_type=UINT8),
    "MatMulNBits": in_blocks(4, 0),
    "MatMulNBits on bytes": in_blocks(4, 4),
    "MatMulNBits of bytes": in_blocks(8, 0, packs=False),
    "MatMulNBits of bytes, on bytes": in_blocks(8, 4),
    "Attention": Case(
        "Attention", "x w b", (256, 768), (1, 8, 256), True, MS, attributes={"num_heads": 8}, others={"b": (768,)}
    ),
    "Gather": Case("Gather", "w x", SQUARE, (8,), False, fed_type=TensorProto.INT64),
    "Add": Case("Add", "x w", SQUARE, (1,), False),
    "Einsum": Case("Einsum", "x w", SQUARE, (8, N), False, attributes={"equation": "ij,jk->ik"}),
}


def save_case(path: Path, case: Case) -> tuple[Path, tuple[WeightUse, ...]]:
    """The one-op model, and its weights as the product sees them."""
    generator = np.random.default_rng(0)
    names = case.inputs.split(" ")
    arrays = {"w": (generator.standard_normal(case.weight) * 20).astype(case.dtype)}
    arrays |= {n: generator.standard_normal(shape).astype(np.float32) for n, shape in case.others.items()}
    arrays |= {n: np.asarray(array) for n, array in SCALES.items() if n in names}
    node = helper.make_node(case.op_type, names, ["y"], name="op", domain=case.domain, **case.attributes)
    weights = [weight(name, array) for name, array in arrays.items()]
    save_model(path, [node], [value("x", case.fed_type, case.fed)], untyped("y"), weights)
    return path, weight_uses(ir.load(path))


def packed_bytes(path: Path, case: Case) -> int:
    names = {1: "float", 2: "uint8", 7: "int64", 10: "float16", 11: "double"}
    feeds = make_feeds([InputSpec("x", names[case.fed_type], case.fed)], 0)
    return run_profiled(path, feeds, SessionSettings(intra_op_threads=1)).baseline_bytes


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.packs])
def test_packed_copies_can_be_saved(tmp_path, name):
    path, uses = save_case(tmp_path / "m.onnx", CASES[name])
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0)
    save_packed(PackingJob(str(path), str(tmp_path / "saved.onnx"), 1024))
    copies = packed_weights(tmp_path / "saved.onnx").copies["w"]
    assert copies
    if CASES[name].op_type == "MatMulNBits":
        made = [sum(buffer.bytes for buffer in copy.buffers) for copy in copies]
        assert made == [uses[0].size_bytes + uses[0].readers[0].beside_bytes]
    assert PACKING.can_save_packed(uses[0].readers[0]) is (name != "QLinearConv")  # which does not always


@pytest.mark.parametrize("name", CASES)
def test_table_says_which_weights_are_packed(tmp_path, name):
    case = CASES[name]
    path, uses = save_case(tmp_path / "m.onnx", case)
    reader = uses[0].readers[0]
    assert PACKING.packs_weight(reader, uses[0].dtype, uses[0].shape) is case.packs
    in_arena = packed_bytes(path, case) - sum(use.size_bytes for use in uses[1:] if use.size_bytes <= 127)
    assert (in_arena >= uses[0].size_bytes) is case.packs


LOADED = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from remat_cli.runtime.sessions.packing import PackingJob, save_packed
from remat_cli.runtime.sessions.session import SessionSettings, open_session, session_options
counter = ctypes.CDLL(sys.argv[2])
counter.memcount_current.restype = ctypes.c_long
options = session_options(SessionSettings(intra_op_threads=1))
options.enable_cpu_mem_arena = False
sessions = []
for model in (sys.argv[3], *sys.argv[3:]):  # once to warm up
    before = counter.memcount_current()
    sessions.append(open_session(Path(model), SessionSettings(), options))
    print(counter.memcount_current() - before)
"""


def save_in_loop(path: Path) -> tuple[Path, tuple[WeightUse, ...]]:
    """A product in the body of a loop, with a weight from right outside, as the product sees it."""
    port, node = helper.make_tensor_value_info, helper.make_node
    weights = [
        weight("w", np.random.default_rng(0).standard_normal(SQUARE).astype(np.float32)),
        weight("n", np.array(3)),
    ]
    state = [[port(f"{name}{at}", kind, shape) for name, kind, shape in STATE] for at in (0, 1)]
    body = [node("MatMul", ["x", "w"], ["y1"], name="op"), node("Identity", ["go0"], ["go1"])]
    inner = helper.make_graph(body, "body", [port("i", TensorProto.INT64, []), *state[0]], state[1])
    loop = node("Loop", ["n", "", "x"], ["y"], name="loop", body=inner)
    save_model(path, [loop], [value("x", FLOAT, (8, N))], untyped("y"), weights)
    return path, weight_uses(ir.load(path))


STATE = (("go", TensorProto.BOOL, []), ("y", FLOAT, [8, N]))


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
def test_kept_weight_bytes_are_what_the_heap_holds(tmp_path):
    source, library = Path(__file__).with_name("memcount.c"), tmp_path / "memcount.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    given = CASES | {"in a loop": CASES["MatMul"]}
    cases = [save_case(tmp_path / f"{number}.onnx", case) for number, case in enumerate(CASES.values())]
    cases.append(save_in_loop(tmp_path / "loop.onnx"))
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", LOADED, root, str(library), *(str(path) for path, _ in cases)],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    session_bytes = 128 * 1024  # a session of one op without weights needs 60 to 100 KiB
    for counted, (path, uses), (name, case) in zip(done.stdout.split()[1:], cases, given.items(), strict=True):
        kept = PACKING.kept_weight_bytes(uses, packed_bytes(path, case))
        assert 0 <= int(counted) - kept < session_bytes, name


MATMUL, GATHER, GEMM = Reader("", "MatMul", 1), Reader("", "Gather", 0), Reader("", "Gemm", 1)


def use(*readers: Reader, size: int = 1000) -> WeightUse:
    return WeightUse("float", (10, size // 40), size, readers)


def test_weight_that_somebody_reads_plainly_is_held_twice():
    assert PACKING.kept_weight_bytes([use(MATMUL)], 1024) == 1024
    assert PACKING.kept_weight_bytes([use(MATMUL, GATHER)], 1024) == 2024
    assert PACKING.kept_weight_bytes([use(MATMUL, GEMM)], 2048) == 2048
    assert PACKING.kept_weight_bytes([use(GATHER), use()], 0) == 1000


def test_small_weight_is_in_the_arena_already():
    assert PACKING.kept_weight_bytes([use(GATHER, size=120)], 120) == 120


def test_shared_weights_are_packed_once_per_way_of_reading(tmp_path):
    generator = np.random.default_rng(0)
    weights = [weight("w", generator.standard_normal(SQUARE).astype(np.float32))]
    nodes = {
        "twice": [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
            helper.make_node("MatMul", ["a", "w"], ["y"], name="y"),
        ],
        "two ways": [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
            helper.make_node("Gemm", ["a", "w"], ["y"], name="y", transB=1),
        ],
    }
    expected = {"twice": N * N * 4, "two ways": 2 * N * N * 4}
    for name, ops in nodes.items():
        path = save_model(tmp_path / f"{name}.onnx", ops, [value("x", FLOAT, (8, N))], untyped("y"), weights)
        seen = run_profiled(path, {"x": np.ones((8, N), np.float32)}, SessionSettings())
        assert seen.baseline_bytes == expected[name]
