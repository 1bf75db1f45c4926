"""Where a search ends: what each stage makes of a proof about whole ops, an obstacle, Ctrl-C and dear plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import onnx_ir as ir
import pytest
from msgspec import structs

from remat_cli.base.progress import Progress, silent
from remat_cli.compiling.plan import within_overhead
from remat_cli.compiling.planned import Answered, OneModel, PlannedModel, Refused
from remat_cli.compiling.search import family as family_stage
from remat_cli.compiling.search import splitter as splitter_stage
from remat_cli.compiling.search.loop import SplitTask, SplitTrial
from remat_cli.compiling.search.loops import LoopCandidate, Loops
from remat_cli.compiling.search.rungs import ladder_of
from remat_cli.compiling.search.splitter import MADE_BY_RUNTIME, plan_split, without_splits
from remat_cli.compiling.search.tensor_cap import CapSearch
from remat_cli.compiling.search.tiles import Tiles
from remat_cli.compiling.solve import BudgetAnswer, BudgetQuestion, Search
from remat_cli.contest.runner import tiny_problem
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.solver_run import ProvedFloor, SolverRun, Status
from remat_cli.core.schedule.splits import SplitOptions
from remat_cli.report.solution import CHEAPEST_PERCENT, MOST_PERCENT
from remat_cli.splitting.tiles.obstacle import SplitObstacle

BASE_NS = 1000
STOPPED = Progress(lambda event: None, lambda: True)
NOT_FINAL, FINAL = SplitObstacle("in no region", False), SplitObstacle("'y' is a model output", True)
UNCUT = SplitObstacle("op 'f' cannot be cut", True, op=0)
JOINED = SplitObstacle("'y' exists beside the tiles it is joined of", True, op=0, is_of_ops=False)


def planned(status: Status, *, least: bool = False, time_ns: int | None = None) -> PlannedModel:
    """A plan, or none, by a solver that ended so; `time_ns`: of a plan that takes so long."""
    problem = tiny_problem()
    question = BudgetQuestion(
        problem, structs.replace(baseline(problem), time_ns=BASE_NS), "50%", "min" if least else "share"
    )
    plan = None if time_ns is None else structs.replace(question.baseline, time_ns=time_ns)
    run = SolverRun(
        solver="auto", seed=0, status=status, space="free", floor=ProvedFloor(9, (0,)), seconds=1.0, plan=plan
    )
    source = SimpleNamespace(ir=ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}), ir_version=8))
    prepared = SimpleNamespace(source=source, graph=Graph((), (), ()), runnable=None)
    found = Answered(prepared=prepared, platform=None, answer=BudgetAnswer(question, run), whole=prepared)
    return found.refused() if plan is None else found.as_model(SimpleNamespace(plan=plan))


REQUEST = SimpleNamespace(search=Search(None, None), splits=SplitOptions(), least="live")


def tiles(status: Status, found: SplitObstacle | None, progress: Progress) -> Tiles:
    whole = planned(status)
    request = SimpleNamespace(search=Search(None, None), splits=SplitOptions(), least="live")
    looking = Tiles(SplitTask(whole, whole.answer.question, request, None, progress))
    view = SimpleNamespace(nodes=("fused",))
    looking.__dict__["proposer"] = SimpleNamespace(
        timeline=SimpleNamespace(view=view),
        obstacle=lambda floor_op, free_bytes, names: found,
        propose=lambda free_bytes, most_seconds: (),
    )
    looking.__dict__["item_proposers"] = [None]  # its items do not run one by one
    return looking


@pytest.mark.parametrize(
    ("status", "obstacle", "is_own", "is_stopped", "wanted"),
    [
        (Status.INFEASIBLE, None, True, False, Status.NOT_FOUND),
        (Status.INFEASIBLE, NOT_FINAL, True, False, Status.NOT_FOUND),
        (Status.INFEASIBLE, FINAL, True, False, Status.INFEASIBLE),
        (Status.INFEASIBLE, UNCUT, True, False, Status.INFEASIBLE),
        (Status.INFEASIBLE, UNCUT, False, False, Status.NOT_FOUND),
        (Status.INFEASIBLE, JOINED, False, False, Status.NOT_FOUND),
        (Status.INFEASIBLE, FINAL, True, True, Status.NOT_FOUND),
        (Status.NOT_FOUND, FINAL, True, False, Status.NOT_FOUND),
    ],
)
def test_whole_ops_are_no_proof_where_splits_might_do(monkeypatch, status, obstacle, is_own, is_stopped, wanted):
    monkeypatch.setattr(splitter_stage, "has_op", lambda model, node: is_own)
    found = without_splits(tiles(status, obstacle, STOPPED if is_stopped else silent()))
    assert found.answer.run.status is wanted
    assert found.obstacle is None if obstacle is None or is_stopped else found.obstacle.startswith(obstacle.text)
    assert (MADE_BY_RUNTIME in (found.obstacle or "")) == (obstacle is UNCUT and not is_own)


@pytest.mark.parametrize(("obstacle", "told"), [(NOT_FINAL, None), (FINAL, FINAL.text), (None, None)])
def test_once_time_is_over_only_what_no_split_gets_around_is_told(monkeypatch, obstacle, told):
    monkeypatch.setattr(splitter_stage, "has_op", lambda model, node: True)
    looking = tiles(Status.INFEASIBLE, obstacle, silent())
    looking.task.clock.seconds = 0.0
    found = without_splits(looking)
    assert found.obstacle == told
    assert found.answer.run.status is (Status.INFEASIBLE if told else Status.NOT_FOUND)


def test_splits_are_not_searched_for_where_outputs_alone_are_too_much(monkeypatch):
    looking, searched = tiles(Status.INFEASIBLE, FINAL, silent()), []
    monkeypatch.setattr(splitter_stage, "fit_budget", lambda tiles, **known: searched.append(tiles))
    monkeypatch.setattr(splitter_stage, "fit_needy", lambda *given, **known: None)
    kept = SimpleNamespace(name="y", producer=None, size_bytes=looking.free_bytes + 1, kept=True)
    looking.task.whole.prepared.graph = SimpleNamespace(tensors=(kept,), ops=())
    assert plan_split(looking).obstacle == FINAL.text
    assert not searched
    kept.size_bytes -= 1
    assert plan_split(looking).obstacle == FINAL.text
    assert searched == [looking]


@pytest.mark.parametrize(
    ("proposed", "is_less", "aimed", "order"),
    [
        ((), False, None, ["needy", "aimed"]),  # nothing fits by estimate
        (("some",), False, None, ["aimed", "needy"]),  # a solver that looks for ops to make again may take all the time
        (("some",), False, "dear", ["aimed", "needy"]),
        (("some",), False, "cheap", ["aimed"]),
        (("some",), True, None, ["needy at most 1", "aimed", "needy"]),  # the one that is cheaper by estimate
        (("some",), True, "cheap", ["needy at most 1", "aimed"]),
    ],
)
def test_splits_that_fit_by_estimate_come_before_dearer_ones_that_make_ops_again(
    monkeypatch, proposed, is_less, aimed, order
):
    looking, called = tiles(Status.INFEASIBLE, FINAL, silent()), []
    found_by_aim = None if aimed is None else SimpleNamespace(name=aimed, plan=SimpleNamespace(time_ns=7))
    looking.proposer.propose = lambda free_bytes, most_seconds: proposed
    monkeypatch.setattr(Tiles, "is_cheap", lambda self, planned: planned.name == "cheap")
    monkeypatch.setattr(SplitTask, "rank", lambda self, planned: (0, 0))
    monkeypatch.setattr(SplitTask, "better", lambda self, one, other: other)

    def fit_needy(tiles, known_share, tried, most=None):
        called.append("needy" if most is None else f"needy at most {most}")

    monkeypatch.setattr(splitter_stage, "is_less_by_needy", lambda tiles, found: is_less)
    monkeypatch.setattr(splitter_stage, "fit_budget", lambda tiles, **known: (called.append("aimed"), found_by_aim)[1])
    monkeypatch.setattr(splitter_stage, "fit_needy", fit_needy)
    found = plan_split(looking)
    assert called == order
    assert found is found_by_aim if aimed else found.obstacle == FINAL.text


@pytest.mark.parametrize("status", [Status.INFEASIBLE, Status.NOT_FOUND])
@pytest.mark.parametrize("progress", [silent(), STOPPED])
def test_loops_that_were_not_tried_are_not_ruled_out(monkeypatch, status, progress):
    monkeypatch.setattr(Loops, "obstacle", lambda self: "tiles may have other bits")
    whole = planned(status)
    found = family_stage.without_loops(Loops(SplitTask(whole, whole.answer.question, REQUEST, None, progress)))
    assert found.answer.run.status is Status.NOT_FOUND
    assert found.obstacle == (None if progress is STOPPED else "tiles may have other bits")


def test_splits_under_a_cap_that_nobody_tried_are_not_blamed():
    tensor = SimpleNamespace(name="t", op="o", size_bytes=9)
    tried = CapSearch(tiles(Status.INFEASIBLE, None, silent()), 4, (tensor,))._without_plan()
    assert "in every split that was tried" in tried.obstacle
    stopped = CapSearch(tiles(Status.INFEASIBLE, None, STOPPED), 4, (tensor,))._without_plan()
    assert stopped.obstacle is None
    assert {each.answer.run.status for each in (tried, stopped)} == {Status.NOT_FOUND}


def search(limit: Fraction | None) -> Search:
    return Search(None, None, Fraction(1, 5), None, limit)


@pytest.mark.parametrize(
    ("limit", "least", "percent", "is_allowed"),
    [
        (None, False, 300, True),
        (Fraction(1, 10), False, 10, True),
        (Fraction(1, 10), False, 11, False),
        (None, True, 20, True),
        (None, True, 21, False),
    ],
)
def test_a_plan_that_costs_more_than_allowed_is_none_and_its_cost_is_told(limit, least, percent, is_allowed):
    dear = planned(Status.OPTIMAL, least=least, time_ns=BASE_NS + BASE_NS * percent // 100)
    found = within_overhead(dear, search(limit))
    if is_allowed:
        assert found is dear
        return
    run = found.answer.run
    assert (type(found), run.plan, run.status) == (Refused, None, Status.NOT_FOUND)
    assert run.facts[CHEAPEST_PERCENT] == pytest.approx(percent)
    assert run.facts[MOST_PERCENT] == pytest.approx(100 * float(limit or Fraction(1, 5)))


COSTS = {90: 1, 70: 5, 50: 8, 30: 60, 20: None, 10: 90}


class Ladder(Loops):
    """Rungs by what they hold, each of which costs so many percent once it is measured (None: it cannot be used)."""

    def ladder(self):
        return ladder_of([SimpleNamespace(peak_bytes=held, extra_ns=1000 - held) for held in COSTS])

    def with_dims(self, found):
        return found

    def obstacle(self):
        return None


def measured(candidate):
    return None if COSTS[candidate.rung.peak_bytes] is None else SplitTrial(candidate, None, None, None)


def planned_rung(candidate, trial):
    held = candidate.rung.peak_bytes
    found = planned(Status.OPTIMAL, least=True, time_ns=BASE_NS + BASE_NS * COSTS[held] // 100)
    return replace(found, written=SimpleNamespace(plan=structs.replace(found.plan, peak_bytes=(held,))))


@pytest.mark.parametrize(("percent", "held"), [(100, 10), (60, 30), (10, 50), (5, 70), (0, 1000)])
def test_the_least_budget_for_a_range_costs_no_more_than_allowed(monkeypatch, percent, held):
    monkeypatch.setattr(LoopCandidate, "measure", measured)
    monkeypatch.setattr(LoopCandidate, "plan", planned_rung)
    whole = planned(Status.OPTIMAL, least=True, time_ns=BASE_NS)
    whole = replace(whole, written=SimpleNamespace(plan=structs.replace(whole.plan, peak_bytes=(1000,))))
    allowed = replace(search(None), max_overhead_share=Fraction(percent, 100))
    request = SimpleNamespace(search=allowed, splits=SplitOptions(), least="live")
    found = family_stage.plan_family(Ladder(SplitTask(whole, whole.answer.question, request, None, silent())))
    assert found.written.plan.peak == held


def test_an_interrupted_plan_is_kept_without_its_proof():
    found = planned(Status.OPTIMAL, time_ns=7).cut_short()
    assert (type(found), found.answer.run.status, found.answer.run.interrupted) == (OneModel, Status.FEASIBLE, True)


def test_time_counts_from_the_beginning_of_the_whole_search():
    found = planned(Status.OPTIMAL, time_ns=7)
    found = replace(found, answer=replace(found.answer, run=replace(found.answer.run, seconds_to_best=0.25)))
    solved = found.solved_since(100.0).searched_since(62.0)
    assert solved.span is not None
    assert solved.span.seconds_to_best == 38.25
    assert solved.span.seconds == solved.span.ended - 62.0
