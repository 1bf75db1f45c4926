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

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

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


def selecting(op_type: str) -> onnx.ModelProto:
    """An op that takes twice its result as workspace, between two others."""
    shape = [8, 64, 96]
    port = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=shape)
    last = {
        "Where": [
            helper.make_node("Greater", ["a", "x"], ["flags"], name="greater"),
            helper.make_node("Where", ["flags", "a", "x"], ["b"], name="op"),
        ],
        "Softmax": [helper.make_node("Softmax", ["a"], ["b"], name="op", axis=1)],
    }[op_type]
    nodes = [helper.make_node("Exp", ["x"], ["a"], name="exp"), *last, helper.make_node("Exp", ["b"], ["y"], name="z")]
    graph = helper.make_graph(nodes, "g", [port("x")], [port("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
@pytest.mark.parametrize("op_type", ["Where", "Softmax"])
def test_workspace_of_two_blocks_is_asked_for_where_it_is_foretold(op_type, tmp_path, tracer):
    path = tmp_path / "model.onnx"
    onnx.save(selecting(op_type), path)
    source = load(path, DimBindings())
    feeds = make_feeds(inputs_of(source.ir), 0)
    graph = to_graph(source.ir, run_profiled(path, feeds, SessionSettings()).types)
    costs = measure(path, feeds, [op.name for op in graph.ops], ProfileRequest(intra_op_threads=1)).ops
    plan = baseline(make_problem(graph, Profile("cpu", "", NOWHERE, costs, 0, graph.input_bytes)))
    found = run_requests(graph, plan, KeptBuffers((), ()), installed_rules().workspaces)
    traced = [Request(*event) for event in json.loads(watched("traced", path, tracer, tracer=tracer).stdout)]
    assert alike(list(found)) == alike(traced)
