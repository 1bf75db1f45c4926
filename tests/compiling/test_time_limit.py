"""Every stage of a search looks at the clock: told by counted looks at it, never by how long anything takes."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.clock import SearchClock
from remat_cli.base.progress import silent
from remat_cli.cli import main
from remat_cli.compiling.fit import fit
from remat_cli.compiling.search.loop import KeepRule, SplitTask, search
from remat_cli.compiling.search.loops import Loops
from remat_cli.compiling.search.rungs import RungLadder
from remat_cli.compiling.solve import LEAST_SECONDS, BudgetAnswer, BudgetQuestion, Search, _limits
from remat_cli.contest.runner import tiny_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.solver_run import ProvedFloor, SolverRun, Status
from remat_cli.core.values.sizes import Dim, Term
from remat_cli.core.values.sizes import number as number_of
from remat_cli.solvers import make_solver
from remat_cli.solvers.base import Limits
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_regions import SizedView, find_loops
from tests.compiling.test_search_loop import Guess, Guesses
from tests.splitting.random_models import Sketch
from tests.splitting.split_case import make_case

LIMIT_SECONDS = 5
LARGE_BYTES = 1024
FIXED = ("--budget", "40%", "--no-verify", "--force", "--time-limit", f"{LIMIT_SECONDS}s")


class CountedTime:
    """A time that passes by a step whenever somebody looks at it."""

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds, self.looks = step_seconds, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks * self.step_seconds


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory):
    """Reads lines of text as a recogniser does: convolutions by channel and by point, then attention along a line."""
    rng, weights, nodes = np.random.default_rng(0), list[onnx.TensorProto](), list[onnx.NodeProto]()

    def op(kind: str, *reads: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, list(reads), [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    def weight(*shape: int) -> str:
        weights.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 9, f"w{len(weights)}"))
        return f"w{len(weights) - 1}"

    made = op("Conv", "x", weight(16, 3, 3, 3), strides=[2, 2], pads=[1] * 4)
    for _ in range(2):
        made = op("Sigmoid", op("Conv", made, weight(16, 1, 3, 3), group=16, pads=[1] * 4))
        made = op("Mul", op("Conv", made, weight(16, 16, 1, 1)), made)
    made = op("Transpose", op("Squeeze", op("ReduceMean", made, axes=[2], keepdims=1), axes=[2]), perm=[0, 2, 1])
    scores = op("MatMul", made, op("Transpose", made, perm=[0, 2, 1]))
    nodes.append(helper.make_node("MatMul", [op("Softmax", scores, axis=2), made], ["y"]))
    port = helper.make_tensor_value_info
    ports = [port("x", TensorProto.FLOAT, ["n", 3, 32, "w"]), port("y", TensorProto.FLOAT, ["n", "t", 16])]
    graph = helper.make_graph(nodes, "recogniser", ports[:1], ports[1:], weights)
    path = tmp_path_factory.mktemp("limit") / "recogniser.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8), path)
    return path


@pytest.mark.usefixtures("cache")
def test_a_search_over_ranges_ends_with_its_time_and_says_so(recogniser, capsys, monkeypatch):
    time = CountedTime(LIMIT_SECONDS / 100)
    begun = []

    def begin(search):
        begun.append(SearchClock(search.limits.seconds, time))
        return replace(search, clock=begun[-1])

    monkeypatch.setattr(Search, "begun", begin)
    dims = ("--dim", "n=1..6", "--dim", "w=32..320")
    assert main(["compile", str(recogniser), *FIXED, *dims]) == 4
    text = capsys.readouterr().out
    assert "the search was cut after 5 s (--time-limit)" in text
    assert "try a longer --time-limit or a larger --budget" in text
    assert time.looks < 150  # 100 are its time; without a look at the clock it would go on for thousands
    assert main(["compile", str(recogniser), *FIXED, *dims, "--format", "json", "--quiet"]) == 4
    assert json.loads(capsys.readouterr().out)["asked"]["search_was_cut"]


@pytest.mark.usefixtures("cache")
def test_more_time_is_not_advised_where_all_was_tried(recogniser, capsys, monkeypatch):
    monkeypatch.setattr(Search, "begun", lambda search: replace(search, clock=SearchClock()))
    few = ["--budget", "10%", *FIXED[2:]]
    assert main(["compile", str(recogniser), *few, "--dim", "n=1..2", "--dim", "w=32..48"]) == 4
    text = capsys.readouterr().out
    assert "try a larger --budget" in text
    assert "time-limit" not in text


def test_once_time_is_over_no_further_tiles_are_looked_at(monkeypatch):
    """Many regions in many numbers of tiles take a minute to estimate: what is known by then is chosen from."""
    time, looked = CountedTime(0), []

    def estimated(loops, regions, chosen):
        looked.append(chosen[0].rows)
        time.step_seconds = LIMIT_SECONDS * (len(looked) == 3)
        return looked[-1]

    monkeypatch.setattr(Loops, "_finest", lambda loops, region, tiles: Tiling(region // tiles))
    monkeypatch.setattr(Loops, "_rung", estimated)
    loops, ladder = Loops(SimpleNamespace(clock=SearchClock(LIMIT_SECONDS, time))), RungLadder([4096])
    assert list(loops._rungs_of(ladder)) == [2048, 1024, 512] == looked
    assert list(loops._rungs_of(ladder)) == [2048, 1024, 512] == looked
    assert loops.task.clock.has_cut


def within(time: CountedTime, seconds: float = LIMIT_SECONDS) -> Search:
    return Search(make_solver("auto"), Limits(seconds=seconds), clock=SearchClock(seconds, time))


def test_a_solver_gets_no_more_than_the_search_has_left_and_a_little_in_any_case():
    question = BudgetQuestion(tiny_problem(), baseline(tiny_problem()), "80%")
    assert _limits(question, within(CountedTime(1)), silent()).seconds == LIMIT_SECONDS - 1
    assert _limits(question, within(CountedTime(99)), silent()).seconds == LEAST_SECONDS
    assert _limits(question, within(CountedTime(0)).share(0.5), silent()).seconds == LIMIT_SECONDS / 2
    assert _limits(question, within(CountedTime(0)).part(0.4), silent()).seconds == LIMIT_SECONDS * 0.4


def test_once_time_is_over_nothing_more_is_built_and_what_was_measured_is_planned():
    told: list[str] = []
    time = CountedTime(0)

    class Slow(Guess):
        def measure(self):
            time.looks, time.step_seconds = 1, 2 * LIMIT_SECONDS
            return super().measure()

    task = SplitTask(None, None, None, None, silent())
    request = type("Request", (), {"search": within(time)})
    task = replace(task, request=request)
    found = search(Guesses([Slow(2, told), Guess(1, told)]), KeepRule(is_enough=lambda found: False), task.ending)
    assert found.time_ns == 2
    assert told == ["measure 2", "plan 2"]
    assert task.clock.has_cut


def test_a_plan_whose_form_is_too_large_is_not_tried_again_and_again_once_time_is_over():
    problem, built = tiny_problem(), list[int]()
    run = SolverRun(solver="auto", seed=0, status=Status.FEASIBLE, space="free", floor=ProvedFloor(1), seconds=0.0)
    first = BudgetAnswer(BudgetQuestion(problem, baseline(problem), "1"), replace(run, plan=baseline(problem)))

    class TooLarge:
        peak_bytes = needed_bytes = (10**12,)

    def build(answer):
        built.append(1)
        return answer, TooLarge()

    assert fit(first, build, within(CountedTime(99)), silent())[1] is None
    assert len(built) <= 2


def test_regions_are_found_in_time_that_grows_as_the_model_does():
    def looks(ops: int) -> int:
        sketch = Sketch(np.random.default_rng(0))
        made = sketch.input("x", (64, 8))
        for number in range(ops):
            made = sketch.add("Sigmoid" if number % 2 else "Tanh", [made], (64, 8))
        view = make_case(sketch.sample([sketch.add("ReduceMax", [made], (64, 1), axes=[1])])).view
        dims = {name: (Dim((Term(("n",)),)), number_of(tensor.shape[1])) for name, tensor in view.tensors.items()}
        counted = CountedTime(0)
        (region,) = find_loops(SizedView(view, dims, counted), LARGE_BYTES)
        assert len(region.ops) == ops + 1
        return counted.looks

    assert looks(80) <= 5 * looks(20)
