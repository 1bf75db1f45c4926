from __future__ import annotations

import msgspec
import pytest

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.splits import Region, RegionFacts
from remat_cli.core.values.promises import Asked
from remat_cli.report import render_text
from remat_cli.report.regions import (
    obstacle_lines,
    planned_regions,
    region_lines,
    region_report,
    region_reports,
    split_lines,
    step_times_ns,
)
from remat_cli.report.style import Style
from tests.report import samples

MIB = samples.MIB


def region(**changes):
    facts = msgspec.structs.replace(samples.region_facts(), **changes.pop("facts", {}))
    return region_report(msgspec.structs.replace(samples.splitting().regions[0], **changes), facts)


def test_a_region_with_what_splitting_it_does():
    found = region()
    assert (found.ops, found.exits, found.axis, found.tiles, found.extent) == (("grow", "shrink"), ("h",), 2, 8, 112)
    assert (found.peak_before_bytes, found.peak_after_bytes) == (26 * MIB + 66560, 21 * MIB)
    assert found.overhead_percent == pytest.approx(5.25)  # 8.00 -> 8.42 ms
    assert not found.is_estimate
    assert region(facts={"time_before_ns": 0}).overhead_percent is None


def test_nothing_split_has_no_regions():
    assert region_reports(None) == planned_regions(samples.plan_file()) == ()
    assert region_lines(()) == split_lines(()) == []


def test_steps_of_a_region_are_its_slices_tiles_join_and_the_gates_between():
    # order: make_skip, slice, grow, shrink, gate, slice, grow, shrink, h/join, join
    (found,) = planned_regions(samples.split_plan_file())
    assert found.steps == ((1, 8),)


def test_recomputed_tiles_and_whole_ops_between_are_told_apart():
    file = samples.split_plan_file()
    promise = msgspec.structs.replace(
        file.promise,
        order=("make_skip", "s/slice_0", "grow/tile_0", "shrink/tile_0", "make_skip/remat_1", "gate_1", "s/slice_1",
               "grow/tile_1", "shrink/tile_1", "h/join", "join"),
    )  # fmt: skip
    changed = msgspec.structs.replace(
        file, promise=promise, schedule=type(file.schedule).of_ops((0, 1, 2, 3, 0, 4, 5, 6, 7, 8))
    )
    (found,) = planned_regions(changed)
    assert found.steps == ((1, 3), (5, 9))
    assert step_times_ns(changed)[4:6] == (1_000_000, 0)


def test_a_proposal_marks_the_steps_of_whole_ops():
    (found,) = samples.proposal_report().regions
    assert (found.steps, found.is_estimate) == (((1, 2),), True)


def test_a_split_line():
    assert split_lines([region()]) == [
        "split  2 ops grow..shrink into 8 tiles of 14 rows (axis 2), +3.1 % work at their edges: 26.06 MiB -> 21.00 MiB"
    ]
    one = region(ops=("conv",), tiles=5, axes=(0,), facts={"extent": 7})
    assert "1 op conv into 5 tiles of up to 2 positions (axis 0)" in split_lines([one])[0]
    assert "7 tiles of 1 row (axis 2)" in split_lines([region(tiles=7, facts={"extent": 7})])[0]
    assert split_lines([msgspec.structs.replace(region(), is_estimate=True)])[0].endswith("(estimated)")


def test_many_regions_are_cut_off_with_a_count():
    assert split_lines([region()] * 15)[-1] == "split  and 3 more regions"
    assert "  and 3 more regions" in region_lines([region()] * 15)


def test_tiles_that_are_faster_cost_less_than_nothing():
    line = region_lines([region(facts={"time_after_ns": 7_600_000})])[1]
    assert line.endswith("-400.00 us (-5.00 %)")


def test_the_heading_says_what_is_an_estimate():
    assert region_lines([region()])[0] == "ops that run in tiles:"
    assert "estimated" in region_lines([msgspec.structs.replace(region(), is_estimate=True)])[0]


def test_the_obstacle_is_told_where_the_budget_is_out_of_reach():
    text = render_text(samples.obstacle_report(), Style())
    lines = text.splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("impossible"))
    assert lines[at + 1] == "splitting cannot help: output 'y' (1.00 MiB) is a model output and must exist whole"
    not_found = msgspec.structs.replace(samples.obstacle_report(), solution=samples.no_solution("not_found"))
    assert "splitting cannot help: output 'y'" in render_text(not_found, Style())
    assert obstacle_lines("x", [region()]) == ["splitting goes no further: x"]
    assert obstacle_lines(None, ()) == []


@pytest.mark.parametrize(("floor_bytes", "may_help"), [(3 * MIB, False), (1 * MIB, True)])
def test_more_time_is_advised_only_where_it_may_help(floor_bytes, may_help):
    solution = msgspec.structs.replace(samples.no_solution("not_found"), floor_bytes=floor_bytes)
    asked = Asked(time_limit_seconds=30.0, search_was_cut=True)
    text = render_text(msgspec.structs.replace(samples.obstacle_report(), solution=solution, asked=asked), Style())
    assert ("a longer --time-limit" in text) is may_help
    assert "a larger --budget" in text


@pytest.mark.parametrize("status", ["infeasible", "not_found"])
def test_both_floors_are_told_where_the_budget_is_out_of_reach(status):
    solution = msgspec.structs.replace(samples.no_solution(status), floor_with_splitting_bytes=12 * MIB)
    text = render_text(msgspec.structs.replace(samples.impossible_report(), solution=solution), Style())
    assert "whole ops" in text
    assert "12,582,912 bytes (12.00 MiB)" in text


def test_an_obstacle_and_a_floor_when_inspecting():
    report = msgspec.structs.replace(samples.proposal_report(), regions=(), split_obstacle="input 'x' is whole")
    text = render_text(report, Style())
    assert "does not fit" in text.splitlines()[0]
    assert "whole ops need more, and splitting cannot help" in text.splitlines()[0]
    assert "splitting cannot help: input 'x' is whole" in text


def test_a_region_without_an_axis_per_exit_is_refused():
    with pytest.raises(ModelError, match="a region of 1 ops has 1 exits, 2 axes"):
        Region(("a",), ("t",), (2, 2), 4)
    assert RegionFacts(4, 0.0, 2, 1, 1, 1).extent == 4
