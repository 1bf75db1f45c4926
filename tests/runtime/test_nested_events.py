"""What an op that runs a subgraph takes inside: by the counters of its kernels, not by what the allocator rounds up."""

from __future__ import annotations

from remat_cli.core.schedule.graph import TensorType
from remat_cli.runtime.measure.profilers import workspace_bytes
from remat_cli.runtime.measure.turns import op_at_peak
from remat_cli.runtime.observe._events import ProfiledRun, ProfileEvent, without_nested

MIB = 2**20


def event(
    name: str,
    start_us: int,
    requested: int,
    in_use: int,
    peak: int,
    *,
    grown: int = 0,
    told: int = 0,
    op_type: str = "",
) -> ProfileEvent:
    sizes = (size * MIB for size in (requested, grown, in_use, peak, peak))
    types = (TensorType("float", (told * MIB // 4,)),) if told else ()
    return ProfileEvent(name, op_type, start_us, 1, *sizes, types)


def run(*events: ProfileEvent) -> ProfiledRun:
    return ProfiledRun(without_nested(events), 100)


def test_buffers_that_were_longer_before_are_no_workspace():
    """Results that grow tile by tile lie in freed buffers that are up to twice as large."""
    seen = run(event("a", 0, 10, 10, 10), event("join", 30, 60, 75, 75), event("loop", 20, 44, 46, 75))
    assert [each.name for each in seen.events] == ["a", "loop"]
    assert op_at_peak(seen) == ("loop", 16 * MIB)


def test_what_kernels_in_a_body_take_counts():
    seen = run(event("a", 0, 10, 10, 10), event("conv", 30, 50, 52, 80), event("loop", 20, 44, 46, 80))
    assert seen.events[-1].nested_bytes == 50 * MIB
    assert op_at_peak(seen) == ("loop", (50 + 80 - 52 - 44) * MIB)


def test_what_was_in_use_before_is_not_theirs():
    """A kernel after the peak says nothing by how far below it it is."""
    events = [event("a", 0, 90, 90, 90), event("conv", 30, 50, 50, 90), event("loop", 20, 44, 44, 90)]
    seen = run(*events)
    assert seen.events[-1].nested_full_bytes == 50 * MIB


def test_loops_in_branches_count_for_the_branch():
    inner = [event("join", 40, 60, 70, 70), event("tiles", 30, 50, 50, 70)]
    seen = run(event("a", 0, 10, 10, 10), *inner, event("if", 20, 44, 46, 70))
    assert [each.name for each in seen.events] == ["a", "if"]
    assert op_at_peak(seen) == ("if", 16 * MIB)


def test_results_of_a_loop_are_there_beside_what_its_last_round_made():
    """20 in use when the last kernel ends, and 8 of results that are copies of some of it."""
    inner = [event("add", 30, 18, 18, 18), event("mul", 40, 20, 20, 20)]
    seen = run(event("a", 0, 10, 10, 10), *inner, event("loop", 20, 18, 18, 28, grown=8, told=8, op_type="Loop"))
    assert op_at_peak(seen) == ("loop", (28 - 18) * MIB)
    assert workspace_bytes(seen.events, {})["loop"] == (28 - 18) * MIB


def test_sequences_are_passed_on():
    """Of a sequence no type is told; what a loop grew by is what its rounds put there."""
    inner = [event("mul", 30, 18, 18, 19), event("insert", 40, 18, 18, 19)]
    seen = run(event("a", 0, 10, 10, 10), *inner, event("loop", 20, 18, 18, 20, grown=8, op_type="Loop"))
    assert seen.events[-1].nested_full_bytes == 19 * MIB


def test_results_of_a_branch_are_what_its_kernels_made():
    inner = [event("add", 30, 18, 18, 18), event("mul", 40, 20, 20, 20)]
    seen = run(event("a", 0, 10, 10, 10), *inner, event("if", 20, 18, 18, 20, grown=8, op_type="If"))
    assert workspace_bytes(seen.events, {})["if"] == (20 - 18) * MIB


def test_of_kernels_that_run_in_many_rounds_the_most_counts():
    rounds = [event("conv", 30, 12, 12, 30), event("conv", 40, 16, 16, 30), event("conv", 50, 14, 14, 30)]
    seen = run(event("a", 0, 10, 10, 10), *rounds, event("scan", 20, 10, 10, 30, op_type="Scan"))
    assert workspace_bytes(seen.events, {"conv": 5 * MIB})["scan"] == (16 + 5 - 10) * MIB
    assert workspace_bytes(seen.events, {"conv": 50 * MIB})["scan"] == (30 - 10) * MIB


def test_what_a_guard_does_inside_is_no_op_of_the_file_even_where_it_seems_to_begin_with_it():
    inner = [event("made_for_x/goes_on", 20, 1, 1, 1), event("made_for_x/apart", 20, 1, 1, 1)]
    seen = run(*inner, event("made_for_x", 20, 1, 1, 1), event("a", 30, 10, 10, 10))
    assert [each.name for each in seen.events] == ["made_for_x", "a"]
    assert seen.events[0].nested_bytes == 0
