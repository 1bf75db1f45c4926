"""Models with ops that draw random numbers: they read nothing that could make them wait, and draw others each time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import remat_cli
from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.compiling.write import written_in_order
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.settings.settings import load_settings

LATE = """<ir_version: 8, opset_import: ["": 17]>
    late (float[64, 8] x) => (float[64, 8] y) {
        u = RandomUniform <shape: ints = [64, 1024], seed: float = 1.0> ()
        h = MatMul(x, w1)
        k = Concat <axis: int = 0> (h, h)
        s = MatMul(k, w2)
        p = ReduceMax <axes: ints = [0]> (s)
        t = MatMul(p, w3)
        z = Add(t, u)
        y = MatMul(z, w2)
    }"""


@pytest.fixture
def late(tmp_path):
    """A model whose numbers would best be drawn last, which no session does."""
    model, rng = parser.parse_model(LATE), np.random.default_rng(0)
    for name, shape in (("w1", (8, 1024)), ("w2", (1024, 8)), ("w3", (8, 1024))):
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    path = tmp_path / "late.onnx"
    onnx.save(model, path)
    return path


def test_what_reads_nothing_comes_first_where_it_cannot_wait(late, tmp_path):
    conditions = load_settings({"cache_dir": str(tmp_path / "cache")}).conditions
    prepared = prepare(late, conditions, tmp_path, silent())
    problem = make_problem(prepared.graph, profile_model(prepared, conditions, silent()).profile)
    names = [op.op_type for op in prepared.graph.ops]
    drawing = names.index("RandomUniform")
    late_ids = [op for op in range(len(names)) if op != drawing]
    late_ids.insert(names.index("Add") - (drawing < names.index("Add")), drawing)
    plan, written = written_in_order(prepared, problem, simulate(problem, Schedule.of_ops(late_ids)), 2**20)
    assert plan.schedule.op_ids()[0] == drawing
    assert written.step_ops[0] == prepared.graph.ops[drawing].name


def test_a_budget_that_only_a_late_draw_would_meet_has_no_plan(late, tmp_path):
    settings = {"cache_dir": str(tmp_path / "cache"), "split": "off", "time_limit": "2s"}
    report = remat_cli.compile(late, budget="80%", output=tmp_path / "out.onnx", **settings)
    assert report.exit_code == 4
    assert not (tmp_path / "out.onnx").exists()


def test_all_runs_of_numbers_that_are_drawn_are_compared_in_their_turn(late, tmp_path):
    """The first compile once said that no form of such a model had the bits of the user's file."""
    conditions = load_settings({"cache_dir": str(tmp_path / "cache")}).conditions
    assert prepare(late, conditions, tmp_path, silent()).notes == ()
