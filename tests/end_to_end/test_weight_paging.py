"""A model whose weights are more than the budget: planned, run, verified; and what happens when a run is disturbed."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import time
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.base.errors import RematError
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.schedule.program import LoadAction
from remat_cli.core.values.spill import Paging
from remat_cli.runtime.paging import _weight_reader
from remat_cli.runtime.paging.paged_run import PagedRunner
from remat_cli.runtime.segments import _session_turns
from remat_cli.runtime.segments.segment_memory import see_memory
from tests.compiling.paged_steps import fed
from tests.end_to_end.test_paging import started

WIDTH, LAYERS = 768, 8  # 2.25 MiB each
BUDGET = 14 * 2**20
RATE = 2e9


def layers_of_products(path: Path) -> Path:
    """Products that pack their weights, one convolution and one table that do not, biases that are small."""
    rng = np.random.default_rng(0)
    weights, nodes, last = [], [], "x"

    def weight(name: str, *shape: int) -> str:
        scale = 1 / np.sqrt(shape[-1])
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name))
        return name

    for number in range(LAYERS):
        names = [last, weight(f"w{number}", WIDTH, WIDTH), weight(f"b{number}", WIDTH)]
        nodes.append(helper.make_node("Gemm", names, [f"y{number}"], f"gemm{number}", transB=number % 2))
        nodes.append(helper.make_node("Relu", [f"y{number}"], [f"r{number}"], f"relu{number}"))
        last = f"r{number}"
    nodes.append(helper.make_node("Mul", [last, weight("scale", 16, WIDTH)], ["scaled"], "mul"))
    weights.append(numpy_helper.from_array(np.array([1, WIDTH, 4, 4]), "shape"))
    nodes.append(helper.make_node("Transpose", ["scaled"], ["turned"], "turn", perm=[1, 0]))
    nodes.append(helper.make_node("Reshape", ["turned", "shape"], ["image"], "reshape"))
    nodes.append(helper.make_node("Conv", ["image", weight("kernel", 64, WIDTH, 3, 3)], ["y"], "conv"))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, 2, 2])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return layers_of_products(tmp_path_factory.mktemp("weights") / "layers.onnx")


@pytest.fixture(scope="module")
def verified(model):
    folder = model.parent / "pages"
    folder.mkdir()
    spill = {"folder": str(folder), "write_bytes_per_second": RATE, "read_bytes_per_second": RATE}
    return remat_cli.compile(
        model, spill=spill, budget=BUDGET, solver="paging", time_limit="2s", output=model.with_name("paged.onnx")
    )


@pytest.fixture(scope="module")
def plan_path(verified) -> Path:
    return Path(verified.plan)


@pytest.fixture(scope="module")
def feeds(plan_path):
    return fed(plan_path)


@pytest.fixture(scope="module")
def opened(plan_path):
    """The plan, ready to run, for all tests that leave its files alone."""
    with remat_cli.load(plan_path) as plan:
        yield plan


@pytest.fixture(scope="module")
def expected(model, feeds):
    """What an ordinary session says of the user's own model."""
    return ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def test_a_model_whose_weights_are_more_than_the_budget_runs_within_it(verified, model):
    seen, paging = verified.verification, verified.paging
    weights = sum(
        np.prod(each.dims) * 4 for each in onnx.load(model).graph.initializer if each.data_type == TensorProto.FLOAT
    )
    assert weights > BUDGET == verified.solution.budget_bytes
    assert verified.exit_code == 0
    assert seen.outputs_identical
    assert seen.measured_peak_bytes["cpu"] <= seen.predicted_peak_bytes["cpu"] <= BUDGET
    assert seen.paging.process_bytes <= BUDGET
    assert paging.released_bytes > weights - BUDGET
    assert paging.weight_bytes >= paging.released_bytes
    assert paging.written_bytes == 0
    assert paging.read_bytes == paging.weight_bytes
    assert paging.overhead_percent == pytest.approx(verified.solution.overhead_percent, abs=0.1)


def test_its_bits_are_those_of_the_plain_model_in_every_run(opened, feeds, expected):
    for _ in range(2):
        assert opened.run(feeds)["y"].tobytes() == expected.tobytes()
    with PagedRunner(opened.program, is_overlapped=False) as alone:
        assert alone.run(feeds)["y"].tobytes() == expected.tobytes()


def test_every_session_is_opened_over_what_was_planned(opened, feeds):
    program = opened.program
    seen = see_memory(program, feeds)
    (fixed,) = program.planned_fixed_bytes
    assert seen.fixed_bytes[0] <= fixed
    planned = [action.planned_bytes[0] - fixed for action in program.actions]
    assert max(held for (held,) in seen.action_bytes) <= max(planned)  # reads may take another session's time
    loads = [action for action in program.actions if isinstance(action, LoadAction)]
    assert {load.session for load in loads} == program.away_weights.keys()
    plain = [name for load in loads for name in load.images if name not in load.drops]
    packed = [name for load in loads for name in load.drops]
    assert plain
    assert packed


def test_a_weight_that_is_too_large_is_named_with_the_least_budget_that_works(model, tmp_path):
    """A weight pages as a whole, and a product packs it beside what was read: one page less, and there is no plan."""
    spill = {"folder": str(tmp_path), "write_bytes_per_second": RATE, "read_bytes_per_second": RATE}
    words = {"spill": spill, "solver": "paging", "time_limit": "1s", "verify": False, "force": True}
    report = remat_cli.compile(model, budget=3 * 2**20, output=tmp_path / "x.onnx", **words)
    assert report.exit_code == 4
    assert report.obstacle is None
    assert report.solution.floor_bytes < 3 * 2**20
    (warning,) = report.warnings
    found = re.search(r"weight '(w[0-9])' of ([0-9,]+) bytes .* at least ([0-9,]+) bytes", warning)
    assert found is not None
    size, least = (int(number.replace(",", "")) for number in found.groups()[1:])
    assert size == WIDTH * WIDTH * 4
    assert 2 * size < least < 2 * size + 2**20
    assert remat_cli.compile(model, budget=least, output=tmp_path / "y.onnx", **words).exit_code == 0
    less = remat_cli.compile(model, budget=least - 1, output=tmp_path / "z.onnx", **words)
    assert less.exit_code == 4
    assert found[3] in less.warnings[0]


def test_what_no_plan_holds_is_not_blamed_on_weights_that_may_be_away(model, tmp_path):
    """An op alone does not need all weights: what it needs is named."""
    spill = {"folder": str(tmp_path), "write_bytes_per_second": RATE, "read_bytes_per_second": RATE}
    words = {"spill": spill, "solver": "paging", "time_limit": "1s", "verify": False}
    report = remat_cli.compile(model, budget=2**15, output=tmp_path / "y.onnx", **words)
    assert report.exit_code == 3
    assert 2**15 < report.obstacle.needs["cpu"] == report.solution.floor_bytes


def test_inspect_names_the_weights_and_the_price(plan_path, tmp_path):
    from remat_cli.report.style import Style

    report = remat_cli.inspect(plan_path)
    found = {weight for each in report.paging.weights for weight in each.weights}
    assert {f"w{number}" for number in range(LAYERS)} & found
    text = "\n".join(report.lines(Style()))
    assert "weights page:" in text
    assert "are read in each run, none written" in text
    assert "% planned in all" in text
    trace = tmp_path / "trace.json"
    ran = remat_cli.run(plan_path, repeat=2, trace=trace)
    assert ran.exit_code == 0
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert any(name.startswith("open session") for name in names)
    assert any(name.startswith("read weights of session") for name in names)


def test_weights_that_cannot_be_read_end_the_run_in_one_line(plan_path, feeds, expected, monkeypatch):
    with remat_cli.load(plan_path) as plan:
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
            with pytest.raises(RematError, match=r"weights cannot be read from .*: Input/output error"):
                plan.run(feeds)
        found, record = plan._runner.run_recorded(feeds)
        assert found["y"].tobytes() == expected.tobytes()
        room = plan.program.spill.room_bytes
        assert all(a.before_bytes[0] <= most for a, most in zip(record.actions, room[:-1], strict=True))
        for file in {weight.file for weight in plan.program.weights.values()}:
            (Path(plan.program.folder) / file).unlink()
        with pytest.raises(RematError, match="weights cannot be read from"):
            PagedRunner(plan.program)


def test_slow_reads_are_waited_for(opened, feeds, expected, monkeypatch):
    read = _weight_reader.WeightReader.read

    def slow(self, image, pages, is_over):
        time.sleep(0.02)
        read(self, image, pages, is_over)

    monkeypatch.setattr(_weight_reader.WeightReader, "read", slow)
    found, record = opened._runner.run_recorded(feeds)
    assert found["y"].tobytes() == expected.tobytes()
    room = opened.program.spill.room_bytes
    assert all(a.before_bytes[0] <= most for a, most in zip(record.actions, room[:-1], strict=True))


def test_what_a_session_packs_does_not_need_what_was_read(opened, feeds, expected, monkeypatch):
    """Its pages are somebody else's as soon as it is open: what is written there meanwhile changes nothing."""
    open_session, spoilt = _session_turns.SessionTurns.open, []

    def spoiling(self, number, given, kept):
        open_session(self, number, given, kept)
        for value in given.values():
            if not any(value is each for each in kept):
                ctypes.memset(value.data_ptr(), 0xFF, value.tensor_size_in_bytes())
                spoilt.append(number)

    monkeypatch.setattr(_session_turns.SessionTurns, "open", spoiling)
    assert opened.run(feeds)["y"].tobytes() == expected.tobytes()
    assert spoilt


@pytest.mark.parametrize("moment", [0.11, *(pytest.param(at, marks=pytest.mark.slow) for at in (0.0, 0.04, 0.3))])
def test_a_run_that_is_killed_leaves_no_pages(plan_path, feeds, tmp_path, moment):
    with started(plan_path, feeds, tmp_path) as process:
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not list((plan_path.parent / "pages").iterdir())


def test_a_plan_from_before_weights_paged_is_read(plan_path):
    assert read_plan(plan_path).paging.weights is not None
    old = json.loads(plan_path.read_text())["paging"]
    assert old.pop("weights") is not None
    assert msgspec.convert(old, Paging).weights is None
