"""The ladder of `min`: rungs leave time to measure them, and go on below where the last one was affordable."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remat_cli.base.clock import SearchClock
from remat_cli.base.progress import silent
from remat_cli.compiling.search import least
from remat_cli.compiling.search.least import LeastSplits, ladder
from remat_cli.compiling.search.loop import Known, SplitTask

MIB = 2**20


@dataclass
class Steps:
    """Stands for the splits of a model of 64 MiB: a rung takes `rung_seconds` to find, nothing lies below `floor`."""

    clock: SearchClock
    passed: list[float]
    rung_seconds: float
    floor_bytes: int = MIB
    most_trials: int = 4
    offered: list[float] = field(default_factory=list)

    @property
    def task(self) -> SplitTask:
        search = SimpleNamespace(clock=self.clock, max_overhead_share=0.2)
        stand_ins: dict[str, Any] = {
            "whole": SimpleNamespace(profile=SimpleNamespace(fixed_bytes=0)),
            "question": SimpleNamespace(baseline=SimpleNamespace(peak=64 * MIB, time_ns=1000)),
            "request": SimpleNamespace(search=search),
        }
        return SplitTask(**stand_ins, work=Path(), progress=silent())

    def propose(self, free_bytes: int, most_seconds: float) -> tuple[Any, ...]:
        self.offered.append(most_seconds)
        self.passed[0] += min(self.rung_seconds, most_seconds)
        is_found = free_bytes >= self.floor_bytes and self.rung_seconds <= most_seconds
        return (SimpleNamespace(peak_bytes=free_bytes, added_ns=1, regions=("r",)),) if is_found else ()


def steps(rung_seconds: float, seconds: float = 30.0, **more: Any) -> Steps:
    passed = [0.0]
    return Steps(SearchClock(seconds, now=lambda: passed[0]), passed, rung_seconds, **more)


def probed(tiles: Steps, is_affordable: Any, measure_seconds: float = 1.0) -> list[int]:
    """The peaks that are measured, one after another."""
    known, found = Known(), []
    for proposed in LeastSplits(tiles).propose(known):  # type: ignore[arg-type]
        if not hasattr(proposed, "proposal"):
            break
        tiles.passed[0] += measure_seconds
        found.append(proposed.proposal.peak_bytes)
        known.trial = SimpleNamespace(least_ns=1000 if is_affordable(found[-1]) else 2000)  # type: ignore[assignment]
    return found


def test_a_rung_that_cannot_be_had_does_not_take_all_of_the_time() -> None:
    tiles = steps(rung_seconds=1.0, floor_bytes=40 * MIB)
    assert probed(tiles, lambda peak: True)
    assert max(tiles.offered) <= least.RUNG_SHARE * 30


@pytest.mark.parametrize("rung_seconds", [0.1, 1.0, 4.0])
def test_something_is_measured_before_time_is_over(rung_seconds: float) -> None:
    tiles = steps(rung_seconds)
    known = LeastSplits(tiles).propose(Known())  # type: ignore[arg-type]
    next(known)
    assert tiles.clock.left >= (1 - least.CLIMB_SHARE) * 30 - rung_seconds


def test_where_all_is_affordable_the_ladder_goes_on() -> None:
    slow = steps(rung_seconds=3.0)
    peaks = probed(slow, lambda peak: True, measure_seconds=0.5)
    assert len(peaks) > 1
    assert peaks == sorted(peaks, reverse=True)


def test_where_the_last_rung_is_too_dear_a_higher_one_is_tried() -> None:
    tiles = steps(rung_seconds=0.1)
    peaks = probed(tiles, lambda peak: peak > 20 * MIB)
    assert peaks[0] < 20 * MIB < max(peaks)


def test_the_ladder_ends_at_what_cannot_be_cut() -> None:
    tiles = steps(rung_seconds=0.1, floor_bytes=30 * MIB)
    found = [each.peak_bytes for each in ladder(tiles)]  # type: ignore[arg-type]
    assert 30 * MIB <= found[-1] < 32 * MIB
