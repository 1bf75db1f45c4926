"""Which of the splits that should fit a budget are built, one after another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remat_cli.base.clock import SearchClock
from remat_cli.base.progress import silent
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.search import aimed, splitter
from remat_cli.compiling.search.aimed import AimedSplits, Tried
from remat_cli.compiling.search.loop import Known, SplitTask
from remat_cli.core.values.curve import CurvePoint

MIB = 2**20
BASELINE_NS = 1_000_000


@dataclass
class Costs:
    """Stands for the splits of a model of 10 MiB: what holds less than a budget costs by estimate `shares` of a run."""

    shares: dict[float, float]
    free_bytes: int = 9 * MIB
    most_trials: int = 6
    left_seconds: float = math.inf
    offered: list[int] = field(default_factory=list)

    @property
    def task(self) -> SplitTask:
        clock = SimpleNamespace(left=self.left_seconds, ends=lambda: False)
        stand_ins: dict[str, Any] = {
            "question": SimpleNamespace(
                baseline=SimpleNamespace(peak=10 * MIB, time_ns=BASELINE_NS), budget_bytes=self.free_bytes
            ),
            "whole": SimpleNamespace(profile=SimpleNamespace(fixed_bytes=0)),
            "request": SimpleNamespace(search=SimpleNamespace(clock=clock)),
        }
        return SplitTask(**stand_ins, work=Path(), progress=silent())

    def propose(self, free_bytes: int, most_seconds: float = math.inf) -> tuple[Any, ...]:
        self.offered.append(free_bytes)
        fitting = [mib for mib in self.shares if mib * MIB <= free_bytes]
        if not fitting:
            return ()
        mib = max(fitting)
        added = int(self.shares[mib] * BASELINE_NS)
        found = {"form": "regions", "peak_bytes": int(mib * MIB), "added_ns": added, "doubted_ns": added}
        return (SimpleNamespace(**found, regions=("r",), key=mib),)


def built(tiles: Costs, measured: dict[float, float | None], **known: Any) -> list[float]:
    """Which splits are built, by their MiB, where they take what was measured (None: the plan does not fit)."""
    state, found = Known(), []
    for candidate in AimedSplits(tiles, **known).propose(state):  # type: ignore[arg-type]
        mib = candidate.proposal.key
        found.append(mib)
        share = measured[mib]
        state.trial = SimpleNamespace(least_ns=int((1 + (share or 0)) * BASELINE_NS))  # type: ignore[assignment]
        state.found = None if share is None else plan_of(share)
        if share is not None and (state.best is None or share < state.best.plan.time_ns / BASELINE_NS - 1):
            state.best = state.found  # type: ignore[assignment]
    return found


def plan_of(share: float) -> OneModel:
    plan = SimpleNamespace(time_ns=int((1 + share) * BASELINE_NS))
    written = SimpleNamespace(plan=SimpleNamespace(peak=0))
    nothing: dict[str, Any] = {"prepared": None, "platform": None, "whole": None, "written": written}
    return OneModel(**nothing, answer=SimpleNamespace(known_plan=plan))


def test_of_what_costs_about_as_much_the_smallest_is_built_first() -> None:
    tiles = Costs({8: 0.01, 5: 0.02, 3: 0.025, 2: 0.4})
    assert built(tiles, dict.fromkeys(tiles.shares, 0.0))[0] == 3


def test_where_one_costs_more_than_expected_others_are_tried_and_what_is_far_too_dear_is_not() -> None:
    tiles = Costs({8: 0.05, 5: 0.12, 2: 3.0})
    assert built(tiles, {8: 0.6, 5: 0.02, 2: 3.0}) == [8, 5]


def test_what_does_not_fit_is_followed_by_what_is_for_less() -> None:
    tiles = Costs({8.9: 0.01, 8.5: 0.04, 5: 0.2})
    assert built(tiles, {8.9: None, 8.5: None, 5: 0.2}) == [8.9, 8.5, 5]


def test_what_an_earlier_search_has_tried_is_not_built_again_and_corrects_its_kin() -> None:
    tried = Tried()
    assert built(Costs({8: 0.05}), {8: 0.9}, tried=tried) == [8]
    assert built(Costs({8: 0.05}), {8: 0.9}, tried=tried, known_share=1.5) == []  # it was built
    kin = Costs({7.9: 0.05})
    assert built(kin, {7.9: 0.9}, tried=tried, known_share=0.5) == []  # costs as much as its kin, not as estimated
    assert built(kin, {7.9: 0.9}, known_share=0.5) == [7.9]


def test_a_search_that_ends_with_a_candidate_has_learnt_what_it_takes() -> None:
    tried, known = Tried(), Known()
    proposals = AimedSplits(Costs({8: 0.05}), tried=tried).propose(known)  # type: ignore[arg-type]
    next(proposals)
    known.trial = SimpleNamespace(least_ns=2 * BASELINE_NS)  # type: ignore[assignment]
    del proposals
    ((point, share),) = tried.measured
    assert (point.share, share) == (0.05, 1.0)
    assert tried.seconds is not None


def test_nothing_is_built_of_which_no_more_is_expected_than_of_a_known_plan() -> None:
    tiles = Costs({8: 0.2, 5: 0.3})
    point = CurvePoint("one", int(8 * MIB), int(8 * MIB), int(8 * MIB), 1.2, is_split=True)
    assert built(tiles, {8: 0.2, 5: 0.3}, points=(point,), known_share=-0.3) == []
    assert built(tiles, {8: 0.2, 5: 0.3}, points=(), known_share=math.inf)[0] == 8


def test_caps_below_are_the_same_for_every_budget() -> None:
    first, second = (Costs({1: 0.1}, free_bytes=free * MIB) for free in (9, 8))
    for tiles in (first, second):
        built(tiles, {1: 0.1})
    below = set(second.offered[1:5])
    assert len(below) == 4
    assert all(min(abs(one - two) for two in first.offered[1:6]) <= 1 for one in below)


def test_where_no_time_is_left_only_the_budget_is_looked_at_first() -> None:
    tiles = Costs({8: 0.1, 5: 0.1}, left_seconds=0.0)
    assert built(tiles, {8: 0.04, 5: 0.04})[0] == 8


@pytest.mark.parametrize("may_be_brief", [True, False])
def test_a_plan_for_less_has_time_of_its_own_where_nobody_said_how_long(monkeypatch, may_be_brief):
    clock, asked = SearchClock(0.0), list[tuple[float, float]]()
    task = SimpleNamespace(request=SimpleNamespace(search=SimpleNamespace(may_be_brief=may_be_brief)), clock=clock)
    monkeypatch.setattr(aimed, "fit_budget", lambda tiles, aims: asked.append((tiles.task.clock.left, aims)))
    aimed.fit_less(SimpleNamespace(task=task), (0.5,))
    ((left, aims),) = asked
    assert aims == (0.5,)
    assert (left > 0) == may_be_brief


@pytest.mark.parametrize(
    ("found", "granted", "rounds"),
    [(0.1, 20.0, [0.0]), (0.5, 20.0, [0.0, 20.0]), (0.5, 0.0, [0.0]), (None, 20.0, [0.0])],
)
def test_a_brief_search_goes_on_where_it_found_none_but_dear_plans(monkeypatch, found, granted, rounds) -> None:
    asked, grants = list[float](), list[float]()
    search = SimpleNamespace(dear_seconds=granted, clock=SearchClock(1.0))
    stand_ins: dict[str, Any] = {
        "question": SimpleNamespace(baseline=SimpleNamespace(time_ns=BASELINE_NS), least=False),
        "whole": None,
        "request": SimpleNamespace(search=search, least=None),
    }
    task = SplitTask(**stand_ins, work=Path(), progress=silent())

    def grant(seconds):
        grants.append(seconds)
        search.clock.grant(seconds)

    tiles = SimpleNamespace(task=task, free_bytes=MIB, propose=lambda free: (), grant=grant, is_step=False)

    def fit_budget(tiles, *, tried, **words):
        asked.append(tried.granted_seconds)
        return None if found is None else plan_of(found / len(asked))

    monkeypatch.setattr(splitter, "fit_budget", fit_budget)
    best = splitter._within_budget(tiles, (), math.inf)  # type: ignore[arg-type]
    assert asked == rounds
    assert grants == rounds[1:]
    search.clock = search.clock.share(0.5)
    splitter._within_budget(tiles, (), math.inf)  # type: ignore[arg-type]
    assert grants == rounds[1:]  # parts of one search have no more together
    assert (best is None) == (found is None)
    if best is not None and found is not None:
        assert best.plan.time_ns == plan_of(found / len(rounds)).plan.time_ns


def test_what_sessions_need_beyond_a_plan_is_aimed_below_at_once():
    """Of a plan for 9 MiB sessions need 12, so that one for 6.75 is next; what a form adds goes step by step."""
    tiles = Costs({8.9: 0.1, 8.0: 0.2, 6.7: 0.3})
    for needed_mib, next_offered in ((12, 6.75), (9.01, 0.985 * 9)):
        tiles.offered.clear()
        state = Known()
        proposed = AimedSplits(tiles).propose(state)  # type: ignore[arg-type]
        next(proposed)
        state.found = SimpleNamespace(needed_bytes=int(needed_mib * MIB))  # type: ignore[assignment]
        tiles.offered.clear()
        next(proposed)
        assert tiles.offered[0] == pytest.approx(next_offered * MIB, rel=1e-6)
