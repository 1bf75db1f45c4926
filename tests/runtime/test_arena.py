"""The simulated arena and memory pattern beside the runtime's own log, byte for byte."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import Profile
from remat_cli.onnx_io.read.body_wiring import body_wiring
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load, save
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.steady import steady
from remat_cli.ort_rules import arena as arenas
from remat_cli.ort_rules.arena import Arena
from remat_cli.ort_rules.requests import Request, run_requests
from remat_cli.ort_rules.reuse import KeptBuffers
from remat_cli.ort_rules.steady import SteadyBranch, SteadyForm, steady_requests
from remat_cli.runtime.measure.profilers import ProfileRequest, measure
from remat_cli.runtime.sessions._ort import installed_rules
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings, optimize, run_profiled
from tests.helpers import NOWHERE

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "sample_models").glob("*.onnx"))
FEW = {"transformer", "unet"}
ALIGNED_BYTES = 64
RULES = installed_rules().arena
pattern_bytes = partial(arenas.pattern_bytes, rules=RULES)


@pytest.fixture(scope="module")
def tracer(tmp_path_factory) -> Path:
    """The library that notes requests."""
    library = tmp_path_factory.mktemp("tracer") / "requests.so"
    source = Path(__file__).with_name("requests.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def watched(kind: str, model: Path, *rest: object, tracer: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({} if tracer is None else {"LD_PRELOAD": str(tracer)})}
    command = [sys.executable, "-m", "tests.runtime.watch_arena", kind, str(model), *map(str, rest)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
@pytest.mark.parametrize(
    "sample",
    [pytest.param(path, id=path.stem, marks=() if path.stem in FEW else pytest.mark.slow) for path in SAMPLES],
)
def test_regions_and_block_are_those_of_the_runtime(sample, tmp_path, tracer):
    model = tmp_path / "optimised.onnx"
    optimize(sample, model, "all", 1)
    found = [Request(*event) for event in json.loads(watched("traced", model, tracer, tracer=tracer).stdout)]
    first, second = watched("logged", model, 2, 0).stderr.split("RUN\n")[1:]
    arena = Arena(RULES)
    arena.run(found)
    assert arena.regions == [int(size) for size in re.findall(r"Extended allocation by (\d+) bytes", first)]
    given_back = {request.number for request in found if not request.takes}
    block = pattern_bytes([request for request in found if request.number in given_back])
    assert [str(block)] == re.findall(r"rounded_bytes:(\d+)", second)[:1]


def alike(found: list[Request]) -> list[tuple[int, int, bool]]:
    """Requests with numbers in order of appearance, and sizes as they are asked for without an arena."""
    numbers: dict[int, int] = {}
    return [
        (numbers.setdefault(each.number, len(numbers)), -(-each.bytes // ALIGNED_BYTES), each.takes) for each in found
    ]


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
@pytest.mark.parametrize(
    "ballast_bytes", [(), (2**19 + 256,), (2**24 + 256, 2**27 + 256), (2**19 + 256, 2**21 + 256, 2**24 + 256)]
)
def test_the_steady_form_asks_for_what_is_said_of_it(ballast_bytes, tmp_path, tracer):
    size = 2**12
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, size])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, size])
    relu = helper.make_node("Relu", ["x"], ["y"], name="relu")
    model = ir.from_proto(
        helper.make_model(
            helper.make_graph([relu], "g", [value], [result]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
    )
    form, path = SteadyForm(ballast_bytes), tmp_path / "steady.onnx"
    save(steady(model, form), path)
    found = [Request(*event) for event in json.loads(watched("traced", path, tracer, tracer=tracer).stdout)]
    inner = [Request(0, 3 * size * 4, True, in_block=False)]
    assert alike(found) == alike(list(steady_requests(inner, SteadyBranch(2), form)))


def growing_loop() -> ir.Model:
    """A Loop whose result grows by a row in each round; of two tensors of one size in a round the second dies first."""
    width, rounds = 2**16, 4
    row = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, width])
    grown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, width]) for name in ("rows", "more")]
    flag = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("goes", "goes_on")]
    body = helper.make_graph(
        [
            helper.make_node("Exp", ["x"], ["a"], name="exp"),
            helper.make_node("Concat", ["a", "a"], ["aa"], name="pair", axis=0),
            helper.make_node("ReduceMax", ["aa"], ["b"], name="most", axes=[0], keepdims=1),
            helper.make_node("Sub", ["a", "b"], ["c"], name="sub"),
            helper.make_node("Concat", ["rows", "c"], ["more"], name="grow", axis=0),
            helper.make_node("Identity", ["goes"], ["goes_on"], name="goes_on"),
        ],
        "body",
        [helper.make_tensor_value_info("number", TensorProto.INT64, []), flag[0], grown[0]],
        [flag[1], grown[1]],
    )
    none = helper.make_tensor("none", TensorProto.FLOAT, [0, width], [])
    often = helper.make_tensor("often", TensorProto.INT64, [], [rounds])
    loop = helper.make_node("Loop", ["often", "", "none"], ["y"], name="loop", body=body)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, width])
    graph = helper.make_graph([loop], "g", [row], [result], [none, often])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
def test_a_body_asks_for_what_is_derived_from_its_kernels(tmp_path, tracer):
    model, path = growing_loop(), tmp_path / "loop.onnx"
    save(model, path)
    feeds = make_feeds(inputs_of(load(path, DimBindings()).ir), 0)
    request = ProfileRequest(intra_op_threads=1, wiring=body_wiring(model))
    requests = measure(path, feeds, ["loop"], request).bodies["loop"]
    held: list[int] = []
    derived: list[tuple[int, bool]] = []
    for number in requests:
        if number > 0:
            held.append(number)
        derived.append((number, True) if number > 0 else (held.pop(-1 - number), False))
    traced = json.loads(watched("traced", path, tracer, tracer=tracer).stdout)
    least = 2**16
    # Where two are given back at once the order says nothing: what is held after each request does.
    assert held_after(derived, least) == held_after([(size, takes) for _, size, takes in traced], least)


def held_after(events: list[tuple[int, bool]], least: int) -> list[list[int]]:
    """Sizes that are held whenever more is asked for, rounded as they are asked for without an arena."""
    held: list[int] = []
    found: list[list[int]] = []
    for size, takes in events:
        if size < least:
            continue
        if takes:
            held.append(size // ALIGNED_BYTES)
            found.append(sorted(held))
        else:
            held.remove(size // ALIGNED_BYTES)
    return found


MS = "com.microsoft"
STEPS, ITEMS, FED, STATE = 40, 8, 64, 96
WEIGHTS = np.random.default_rng(0)


def weight(name: str, *shape: int, dtype: str = "float32") -> TensorProto:
    values = WEIGHTS.standard_normal(shape) if dtype == "float32" else WEIGHTS.integers(0, 100, shape)
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def selecting() -> onnx.ModelProto:
    """An op that takes twice its result as workspace, between two others."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("Greater", ["a", "x"], ["flags"], name="greater"),
        helper.make_node("Where", ["flags", "a", "x"], ["b"], name="op"),
        helper.make_node("Exp", ["b"], ["y"], name="z"),
    ]
    return of_nodes(nodes, {"x": [8, 64, 96]}, ["y"])


def of_nodes(
    nodes: list[onnx.NodeProto], fed: dict[str, list[int]], made: list[str], weights: tuple[TensorProto, ...] = ()
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in fed.items()]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=name) for name in made], weights)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def behind_negation(
    op_type: str, fed: dict[str, list[int]], more: list[str], *weights: TensorProto, domain: str = "", **how: object
) -> onnx.ModelProto:
    """An op that reads results of others, which die with it."""
    nodes = [helper.make_node("Neg", [name], [f"{name}-"], name=f"neg {name}") for name in fed]
    inputs = [*(f"{name}-" for name in fed), *more]
    nodes.append(helper.make_node(op_type, inputs, ["y"], name="op", domain=domain, **how))
    return of_nodes(nodes, fed, ["y"], weights)


def recurrent(op_type: str, gates: int, direction: str, **how: object) -> onnx.ModelProto:
    ways = 2 if direction == "bidirectional" else 1
    read = [weight("w", ways, gates * STATE, FED), weight("r", ways, gates * STATE, STATE)]
    biases = weight("b", ways, 2 * gates * STATE)
    fed = {"x": [STEPS, ITEMS, FED]}
    return behind_negation(op_type, fed, ["w", "r", "b"], *read, biases, hidden_size=STATE, direction=direction, **how)


def recurrent_in_bytes(direction: str) -> onnx.ModelProto:
    ways = 2 if direction == "bidirectional" else 1
    read = [weight(name, ways, rows, 4 * STATE, dtype="int8") for name, rows in (("w", FED), ("r", STATE))]
    beside = weight("s", ways), weight("z", ways, dtype="int8")
    more = ["w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    how = {"hidden_size": STATE, "direction": direction, "domain": MS}
    return behind_negation("DynamicQuantizeLSTM", {"x": [STEPS, ITEMS, FED]}, more, *read, *beside, **how)


def grouped(rotary: bool, packed: bool) -> onnx.ModelProto:
    steps, past, heads, groups, width = 128, 64, 4, 2, 64
    total = numpy_helper.from_array(np.array(past + steps, np.int32), "total")
    lengths = numpy_helper.from_array(np.array([[past + steps - 1]], np.int32), "lengths")
    tables = [weight(name, 256, width // 2) for name in ("cos", "sin")] if rotary else []
    shapes = {"q": [1, steps, (heads + 2 * groups if packed else heads) * width]}
    if not packed:
        shapes |= {name: [1, steps, groups * width] for name in "kv"}
    before = {name: [1, groups, past, width] for name in ("pk", "pv")}
    nodes = [helper.make_node("Neg", [name], [f"{name}-"], name=f"neg {name}") for name in shapes]
    inputs = [f"{name}-" if name in shapes else "" for name in "qkv"]
    inputs += [*before, "lengths", "total", *(each.name for each in tables)]
    how = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": int(rotary)}
    made = ["y", "nk", "nv"]
    nodes.append(helper.make_node("GroupQueryAttention", inputs, made, name="op", domain=MS, **how))
    return of_nodes(nodes, {**shapes, **before}, made, (total, lengths, *tables))


SELF_ATTENTION = partial(
    behind_negation,
    "Attention",
    {"x": [2, 128, 256]},
    ["w", "b"],
    weight("w", 256, 768),
    weight("b", 768),
    domain=MS,
    num_heads=4,
)
ATTENDED = {"q": [2, 128, 256], "k": [2, 96, 256], "v": [2, 96, 256]}
KERNELS = {
    "Where": selecting,
    "Softmax": partial(behind_negation, "Softmax", {"x": [8, 64, 96]}, [], axis=1),
    "LRN": partial(behind_negation, "LRN", {"x": [1, 64, 40, 40]}, [], size=5),
    **{f"LSTM {way}": partial(recurrent, "LSTM", 4, way) for way in ("forward", "reverse", "bidirectional")},
    **{f"GRU {way}": partial(recurrent, "GRU", 3, way) for way in ("reverse", "bidirectional")},
    "GRU, reset apart": partial(recurrent, "GRU", 3, "bidirectional", linear_before_reset=1),
    **{f"LSTM in bytes {way}": partial(recurrent_in_bytes, way) for way in ("forward", "reverse", "bidirectional")},
    "Attention": SELF_ATTENTION,
    "Attention of later steps only": partial(SELF_ATTENTION, unidirectional=1),
    "MultiHeadAttention": partial(behind_negation, "MultiHeadAttention", ATTENDED, [], domain=MS, num_heads=4),
    "MultiHeadAttention, mask": partial(
        behind_negation,
        "MultiHeadAttention",
        ATTENDED,
        ["", "mask"],
        numpy_helper.from_array(np.ones((2, 96), np.int32), "mask"),
        domain=MS,
        num_heads=4,
    ),
    "Attention of ONNX": partial(
        behind_negation, "Attention", ATTENDED, [], q_num_heads=4, kv_num_heads=4, is_causal=1
    ),
    "GroupQueryAttention": partial(grouped, rotary=False, packed=False),
    "GroupQueryAttention, rotary": partial(grouped, rotary=True, packed=False),
    "GroupQueryAttention, packed": partial(grouped, rotary=True, packed=True),
    "DynamicQuantizeMatMul": partial(
        behind_negation,
        "DynamicQuantizeMatMul",
        {"x": [4, 100, 64]},
        ["w", "s"],
        weight("w", 64, 200, dtype="int8"),
        weight("s"),
        domain=MS,
    ),
}
FEW_KERNELS = {
    "Where",
    "Softmax",
    "GRU, reset apart",
    "LSTM in bytes bidirectional",
    "MultiHeadAttention, mask",
    "GroupQueryAttention, rotary",
    "DynamicQuantizeMatMul",
}
LEAST_BYTES = 2048  # smaller blocks do not matter, and biases may be part of one that does


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
@pytest.mark.parametrize(
    "kernel", [pytest.param(name, marks=() if name in FEW_KERNELS else pytest.mark.slow) for name in KERNELS]
)
def test_workspace_is_asked_for_in_the_blocks_that_are_foretold(kernel, tmp_path, tracer):
    path = tmp_path / "model.onnx"
    onnx.save(KERNELS[kernel](), path)
    source = load(path, DimBindings())
    feeds = make_feeds(inputs_of(source.ir), 0)
    graph = to_graph(source.ir, run_profiled(path, feeds, SessionSettings()).types)
    costs = measure(path, feeds, [op.name for op in graph.ops], ProfileRequest(intra_op_threads=1)).ops
    plan = baseline(make_problem(graph, Profile("cpu", "", NOWHERE, costs, 0, graph.input_bytes)))
    found = run_requests(graph, plan, KeptBuffers((), ()), installed_rules().workspaces)
    traced = [Request(*event) for event in json.loads(watched("traced", path, tracer, tracer=tracer).stdout)]
    # What is not given back and no result belongs to a thread, which keeps it.
    results = {ALIGNED_BYTES * -(-tensor.size_bytes // ALIGNED_BYTES) for tensor in graph.tensors if tensor.kept}
    given_back = {each.number for each in traced if not each.takes}
    seen = [each for each in traced if each.number in given_back or each.bytes in results]
    foretold, asked = taken(found), taken(seen)
    assert len(foretold) == len(asked)
    biases_bytes = 2 * 11 * 4 * STATE
    assert all(0 <= one - other <= LEAST_BYTES + biases_bytes for one, other in zip(foretold, asked, strict=True))


def taken(requests: list[Request]) -> list[int]:
    """Sizes in order of what is asked for and is not small."""
    return [
        ALIGNED_BYTES * -(-each.bytes // ALIGNED_BYTES) for each in requests if each.takes and each.bytes >= LEAST_BYTES
    ]
