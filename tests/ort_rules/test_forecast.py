"""What a process holds, put together: one run, later runs in an arena or without one, loading, several at once."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import msgspec
import pytest

from remat_cli.core.values.resident import ProcessMemory, RunsForecast, SessionMemory
from remat_cli.ort_rules import forecast, records
from remat_cli.ort_rules.arena import LoadedSession, RunMemory, simulate_runs
from remat_cli.ort_rules.at_once import simulate_at_once
from remat_cli.ort_rules.forecast import (
    FileFacts,
    Forecast,
    Judged,
    Steady,
    asked_for,
    in_one_run,
    most_of,
    own_requests,
    predict,
    predict_at_once,
    predict_runs,
    predict_runs_below,
    predict_sessions,
)
from remat_cli.ort_rules.loading import LoadedWeight, LoadForecast
from remat_cli.ort_rules.records import RULES_1_31, RULES_1_32
from remat_cli.ort_rules.requests import Request
from remat_cli.ort_rules.runtime import Runtime
from remat_cli.ort_rules.steady import SteadyBranch, SteadyForm, steady_requests
from tests.ort_rules.plans import HERE, KIB, MIB, Step, chain, on

KEPT = chain([Step(100, "a"), Step(52, "b", 7), Step(60, "c"), Step(100, "a"), Step(12, "d")])
"""The fourth result has the shape of the first, which died a step before it is made."""


def test_an_exact_session_holds_what_the_judge_says_and_a_default_one_dead_buffers_too():
    exact, default = in_one_run(KEPT, HERE)
    assert exact == SessionMemory((116, 175, 128, 176, 128), (100, 152, 112, 160, 112), (0, 0, 0, 0, 0), 16)
    assert default == SessionMemory((116, 175, 228, 176, 128), (100, 152, 212, 160, 112), (0, 0, 0, 100, 0), 16)


def test_sessions_that_keep_no_buffers_hold_what_the_judge_says():
    exact, default = in_one_run(KEPT, on(reuses_dead_buffers=False))
    assert exact == default


def test_a_view_of_an_input_has_no_buffer_that_a_later_tensor_could_take():
    judged = chain([Step(16, "a", is_view=True), Step(52, "b"), Step(60, "c"), Step(16, "a"), Step(12, "d")])
    assert [each.bytes for each in own_requests(judged, HERE) if each.takes] == [52, 60, 16, 12]


def told(requests: tuple[Request, ...]) -> list[int]:
    """Bytes that are asked for, and given back below zero."""
    return [each.bytes if each.takes else -each.bytes for each in requests]


def test_requests_of_an_op_follow_the_rules_of_its_workspace_and_what_its_body_did():
    judged = chain([100, Step(400, workspace_bytes=808, op_type="Where"), 60])
    assert told(own_requests(judged, HERE)) == [100, 400, 408, 400, -408, -400, -100, 60, -400]
    judged = chain([100, Step(400, workspace_bytes=808), 60], bodies={"o1": (72, 400, -1)})
    assert told(own_requests(judged, HERE)) == [100, 72, 400, -72, -100, 60, -400]


def test_values_in_buffers_of_others_are_requests_only_where_there_is_no_arena():
    judged = chain([100, Step(100, is_view=True), 60, 40])
    assert told(own_requests(judged, HERE)) == [100, 60, -100, 40, -60]
    assert sorted(told(own_requests(judged, on(has_arena=False)))) == [-100, -60, 0, 0, 40, 60, 100]


def test_a_file_asks_for_what_its_form_and_the_options_of_its_session_make_of_it():
    own = own_requests(KEPT, HERE)
    assert asked_for(KEPT, HERE) == own
    assert any(each.in_block for each in own)
    without = asked_for(KEPT, on(has_memory_pattern=False))
    assert told(without) == told(own)
    assert {each.in_block for each in without} == {False}
    branch, form = SteadyBranch(2, (64,)), SteadyForm((MIB,))
    formed = chain([100, 60], steady=Steady(form, branch))
    assert asked_for(formed, HERE) == steady_requests(own_requests(formed, HERE), branch, form)


def random_requests(seed: int) -> list[Request]:
    """Tensors of a run, of some MiB each; some are its results."""
    dice, found, live = random.Random(seed), list[Request](), list[Request]()
    for number in range(dice.randint(3, 9)):
        live.append(Request(number, dice.randint(1, 9) * MIB // 2, True, in_block=dice.random() < 0.5))
        found.append(live[-1])
        while live and dice.random() < 0.6:
            gone = live.pop(dice.randrange(len(live)))
            found.append(Request(gone.number, gone.bytes, False, in_block=gone.in_block))
    results = {each.number for each in live}
    return [replace(each, in_block=each.in_block and each.number not in results) for each in found]


WAYS = tuple(itertools.product((0, 1), (True, False)))
"""Callers drop outputs before the next run or after it; new regions lie below older ones or above them."""


def test_runs_are_promised_however_callers_hold_outputs_and_the_system_places_regions():
    alone_worst = set[tuple[int, bool]]()
    for seed in range(60):
        requests = random_requests(seed)
        found = predict_runs(requests, HERE)
        each_way = {
            way: simulate_runs(requests, 8, way[0], LoadedSession(RULES_1_32.arena, (), way[1])) for way in WAYS
        }
        later = {way: max(run.resident_bytes for run in runs[1:]) for way, runs in each_way.items()}
        assert found.later_runs_bytes >= max(later.values())
        assert found.first_run_bytes == max(runs[0].resident_bytes for runs in each_way.values())
        assert found.reserved_bytes >= max(runs[-1].reserved_bytes for runs in each_way.values())
        worst = [way for way in WAYS if later[way] == max(later.values())]
        alone_worst |= set(worst) if len(worst) == 1 else set()
        assert found.most_bytes == max(found.first_run_bytes, found.later_runs_bytes)
    assert {newest for _, newest in alone_worst} == {True, False}  # neither may be left out
    assert any(held for held, _ in alone_worst)


def test_a_forecast_of_runs_names_the_block_and_the_ballasts():
    requests = [Request(0, 3 * MIB, True), Request(1, MIB, True, in_block=False), Request(0, 3 * MIB, False)]
    found = predict_runs(requests, HERE)
    assert (found.block_bytes, found.ballast_bytes) == (3 * MIB, None)
    assert predict_runs(requests, HERE, SteadyForm((MIB,))).ballast_bytes == (MIB,)


@pytest.mark.parametrize("seed", range(6))
def test_a_forecast_below_a_bound_is_the_same_or_none(seed):
    form, requests, copies = SteadyForm((MIB,)), random_requests(seed), (300, MIB)
    whole = predict_runs(requests, HERE, form, copies)
    assert predict_runs_below(whole.most_bytes + 1, requests, HERE, form, copies) == whole
    assert predict_runs_below(whole.most_bytes, requests, HERE, form, copies) is None
    assert predict_runs_below(whole.most_bytes // 2, requests, HERE, form, copies) is None


@pytest.fixture
def heaps(monkeypatch) -> list[tuple[int, int]]:
    """Which heaps are drawn, and how many outputs callers hold in each: a run in one holds what its number says."""
    drawn: list[tuple[int, int]] = []

    def simulated(requests, held, loaded, malloc, arena) -> tuple[RunMemory, ...]:
        assert (malloc, arena) == (RULES_1_32.malloc, RULES_1_32.arena)
        drawn.append((held, loaded.seed))
        bytes_ = 1000 * held + 100 * loaded.seed + len(requests)
        return RunMemory(bytes_ + 1, 0, ()), RunMemory(bytes_, 0, ()), RunMemory(bytes_ - 1, bytes_ + 7, ())

    monkeypatch.setattr(forecast, "simulate_runs_without_arena", simulated)
    return drawn


REQUESTS = [Request(0, MIB, True), Request(0, MIB, False)]


@pytest.mark.parametrize("count", [3, 12])
def test_without_an_arena_runs_are_promised_for_so_many_heaps(heaps, count):
    found = predict_runs(REQUESTS, on(has_arena=False), heaps=count)
    assert sorted(heaps) == [(held, seed) for held in (0, 1) for seed in range(count)]
    most = 1000 + 100 * (count - 1) + 2
    assert found == RunsForecast(most + 1, most, MIB, most + 7)


def test_a_search_draws_few_heaps_and_a_promise_many(heaps):
    bare = on(has_arena=False)
    predict_sessions(chain([100, 60]), bare)
    assert {seed for _, seed in heaps} == {0, 1, 2}
    predict(chain([100, 60]), FileFacts((), False, False), bare)
    assert {seed for _, seed in heaps} == set(range(12))


def test_a_forecast_below_a_bound_is_the_same_without_an_arena(heaps):
    bare, form = on(has_arena=False), SteadyForm()
    whole = predict_runs(REQUESTS, bare, form)
    assert predict_runs_below(whole.most_bytes + 1, REQUESTS, bare, form, ()) == whole
    assert predict_runs_below(whole.most_bytes, REQUESTS, bare, form, ()) is None


def test_of_several_ways_to_run_a_file_each_figure_is_the_most():
    ways = [RunsForecast(1, 20, 3, 40, (5,)), RunsForecast(10, 2, 30, 4, (5,))]
    assert most_of(ways) == RunsForecast(10, 20, 30, 40, (5,))


def test_what_sessions_hold_is_forecast_with_the_form_that_the_file_has():
    judged = chain([MIB, MIB], steady=Steady(SteadyForm((MIB,)), SteadyBranch(1)))
    found = predict_sessions(judged, HERE)
    assert found.judged is judged
    assert (found.exact, found.default_session) == in_one_run(judged, HERE)
    assert found.runs == predict_runs(asked_for(judged, HERE), HERE, SteadyForm((MIB,)))
    assert found.runs.ballast_bytes == (MIB,)


def test_copies_that_loading_leaves_in_the_arena_decide_where_runs_find_place():
    packed = chain([700 * KIB, 12], copies=(500 * KIB,))
    found = predict_sessions(packed, HERE).runs
    assert found == predict_runs(asked_for(packed, HERE), HERE, None, (500 * KIB,))
    assert found != predict_sessions(chain([700 * KIB, 12]), HERE).runs


OP, BRANCH_OP = RULES_1_32.loading.op_bytes, RULES_1_32.loading.branch_op_bytes
NO_WEIGHTS = FileFacts((), is_mapped=False, is_primed=False)


def loading(file: FileFacts = NO_WEIGHTS, judged: Judged | None = None, runtime: Runtime = HERE) -> LoadForecast:
    return predict(judged or chain([100, 60]), file, runtime).loading


def facts(*weights: LoadedWeight, is_mapped: bool = False, **more) -> FileFacts:
    return FileFacts(weights, is_mapped, more.pop("is_primed", False), **more)


def test_every_op_of_the_file_is_loaded_and_those_in_branches_take_more():
    bare = loading().loaded_bytes
    assert loading(judged=chain([100, 60, 40])).loaded_bytes == bare + OP
    assert loading(facts(form_ops=3)).loaded_bytes == bare + 3 * OP
    assert loading(facts(levels=(1, 1, 2))).loaded_bytes == bare + 3 * OP + 4 * BRANCH_OP
    formed = chain([100, 60], steady=Steady(SteadyForm(), SteadyBranch(1)))
    assert loading(judged=formed).loaded_bytes == bare + 2 * BRANCH_OP
    assert loading(facts(levels=(1, 2)), formed).loaded_bytes == bare + 2 * OP + (2 + 5) * BRANCH_OP
    assert loading(facts(is_primed=True)).loaded_bytes == bare + RULES_1_32.loading.primed_bytes


TABLE = MIB // 32


@pytest.mark.parametrize(
    ("weight_bytes", "extra"),
    [
        (0, 512 - 300 + TABLE),  # a whole unit each, and the table of the region
        (MIB - 1, 512 - 300 + TABLE),
        (MIB, MIB - 300 + TABLE),  # the region lies in the heap, where reading weights left pages
    ],
)
def test_copies_in_the_arena_come_with_their_region(weight_bytes, extra):
    file = facts(*[LoadedWeight(weight_bytes)] * (weight_bytes > 0))
    with_copies = loading(file, chain([100, 60], copies=(300,)))
    assert with_copies.loaded_bytes - loading(file).loaded_bytes == extra
    bare = on(has_arena=False)
    assert loading(file, chain([100, 60], copies=(300,)), bare).loaded_bytes == loading(file).loaded_bytes


def test_inputs_that_a_process_made_before_decide_which_weights_lie_in_the_heap():
    """Each of two weights that lie in the heap leaves a place that the other does not fit in."""
    weights = [LoadedWeight(MIB), LoadedWeight(MIB)]
    bare = loading(facts(*weights)).loaded_bytes
    for inputs, holes in (((600 * KIB,), 0), ((MIB,), 2 * MIB), ((600 * KIB, 600 * KIB), 2 * MIB)):
        assert loading(facts(*weights, inputs_bytes=inputs)).loaded_bytes == bare + holes


def saved(size: int, **more) -> LoadedWeight:
    return LoadedWeight(size, size, is_mapped=True, is_saved=True, **more)


def test_weights_are_packed_in_the_order_in_which_ops_read_them():
    file = facts(*[saved(4 * MIB, packings=2)] * 2, is_mapped=True, is_primed=True)
    in_turn, apart = (chain([Step(100, weights=(first,)) for first in order]) for order in ((0, 1, 0, 1), (0, 0, 1, 1)))
    assert loading(file, in_turn).load_peak_bytes == loading(file, apart).load_peak_bytes + 4 * MIB


def test_what_few_processes_come_to_keeps_copies_that_primers_should_have_freed():
    file = facts(*[saved(16 * MIB)] * 5, is_mapped=True, is_primed=True)
    found = predict(chain([Step(100, weights=(at,)) for at in range(5)]), file, HERE)
    stuck = RULES_1_32.loading.stuck_copies * 16 * MIB
    assert found.process_at_most.loaded_bytes == found.process.loaded_bytes + stuck
    assert found.process_at_most.later_runs_bytes == found.process.later_runs_bytes + stuck
    assert found.loading.loaded_bytes + RULES_1_32.loading.run_bytes < found.process.later_runs_bytes


def test_a_file_for_several_versions_is_promised_the_most_of_each():
    file = facts(*[saved(16 * MIB)] * 3, is_mapped=True, is_primed=True)
    judged = chain([Step(100, weights=(at,)) for at in range(3)])
    old, new = (predict(judged, file, on(version)) for version in ("1.31.0", "1.32.0"))
    both = predict(judged, file, on(judged_as=("1.24.4", "1.32.0")))
    assert old.process.load_peak_bytes < new.process.load_peak_bytes  # which reads saved copies while it loads
    for mine, first, second in (
        (both.process, old.process, new.process),
        (both.process_at_most, old.process_at_most, new.process_at_most),
    ):
        for name in ProcessMemory.__struct_fields__:
            assert getattr(mine, name) == max(getattr(first, name), getattr(second, name))
    assert both.loading == new.loading
    assert (both.judged, both.exact, both.default_session) == (judged, new.exact, new.default_session)


RUN_CODE = RULES_1_32.loading.run_bytes


def parts(found: Forecast) -> tuple[LoadForecast, RunsForecast, ProcessMemory]:
    return found.loading, found.runs, found.process


def test_a_process_holds_its_file_and_its_runs():
    """Of weights inside the file all are its own; while it is read, the largest is there twice."""
    found = predict(KEPT, facts(LoadedWeight(8 * MIB)), HERE)
    assert (found.exact, found.default_session) == in_one_run(KEPT, HERE)
    load, runs, process = parts(found)
    assert process == ProcessMemory(
        load_peak_bytes=load.load_peak_bytes,
        loaded_bytes=load.loaded_bytes,
        first_run_bytes=load.loaded_bytes + runs.first_run_bytes + RUN_CODE,
        later_runs_bytes=load.loaded_bytes + runs.later_runs_bytes + RUN_CODE,
        mapped_bytes=0,
        anonymous_bytes=load.load_peak_bytes,
    )
    assert load.load_peak_bytes > process.later_runs_bytes


def test_weights_in_a_data_file_are_no_memory_of_the_process_alone_and_come_with_the_first_run():
    file = facts(LoadedWeight(8 * MIB, is_mapped=True), is_mapped=True)
    load, runs, process = parts(predict(chain([100, 60]), file, HERE))
    assert process.mapped_bytes == 8 * MIB
    assert process.loaded_bytes == load.loaded_bytes - 8 * MIB
    assert process.first_run_bytes == load.loaded_bytes + runs.first_run_bytes + RUN_CODE
    assert process.anonymous_bytes == load.loaded_bytes - 8 * MIB + runs.most_bytes + RUN_CODE


def test_saved_copies_that_loading_reads_are_there_when_it_has_ended():
    file = facts(saved(8 * MIB), is_mapped=True)
    load, _, process = parts(predict(chain([Step(100, weights=(0,))]), file, HERE))
    assert load.read_bytes == process.mapped_bytes == 8 * MIB
    assert process.loaded_bytes == load.loaded_bytes


def test_what_packing_takes_for_a_moment_of_a_data_file_is_dropped_when_memory_is_short():
    file = facts(LoadedWeight(16 * MIB, 16 * MIB, is_mapped=True), is_mapped=True)
    load, runs, process = parts(predict(chain([Step(100, weights=(0,))]), file, HERE))
    assert load.load_peak_bytes == load.loaded_bytes + 16 * MIB
    assert process.anonymous_bytes == load.loaded_bytes + runs.most_bytes + RUN_CODE < load.load_peak_bytes


def test_each_figure_is_that_of_the_version_in_which_it_is_most(monkeypatch):
    """Of an older version that reads more code, and a newer one that reads saved copies while it loads."""
    code = replace_rules(RULES_1_31, run_bytes=64 * MIB)
    monkeypatch.setattr(records, "RECORDS", {(1, 20): code, (1, 32): RULES_1_32})
    file, judged = facts(saved(16 * MIB), is_mapped=True, is_primed=True), chain([Step(100, weights=(0,))])
    both = predict(judged, file, on(judged_as=("1.24.4", "1.32.0")))
    old, new = (predict(judged, file, on(version)) for version in ("1.31.0", "1.32.0"))
    assert both.process.load_peak_bytes == new.process.load_peak_bytes > old.process.load_peak_bytes
    assert both.process.later_runs_bytes == old.process.later_runs_bytes > new.process.later_runs_bytes
    assert both.process_at_most.later_runs_bytes == old.process_at_most.later_runs_bytes


def replace_rules(rules: records.Rules, **loading: int) -> records.Rules:
    return msgspec.structs.replace(rules, loading=msgspec.structs.replace(rules.loading, **loading))


@pytest.mark.parametrize("is_mapped", [True, False])
def test_several_runs_at_once_share_weights_and_nothing_else(is_mapped):
    file = facts(LoadedWeight(8 * MIB, is_mapped=is_mapped), is_mapped=is_mapped)
    one = predict(chain([MIB, MIB]), file, HERE).process
    two = predict(chain([MIB, MIB]), file, on(runs_at_once=2)).process
    assert two.later_runs_bytes == 2 * one.later_runs_bytes - 8 * MIB
    assert two.first_run_bytes == 2 * one.first_run_bytes - 8 * MIB
    assert two.load_peak_bytes == one.load_peak_bytes


def test_runs_at_once_hold_what_an_arena_comes_to_in_which_they_meet():
    judged, one = chain([3 * MIB, 2 * MIB, 4 * MIB]), RunsForecast(1, 2, 3, 4, (5,))
    assert predict_at_once(judged, HERE, one) is one
    assert predict_at_once(judged, on(runs_at_once=3, has_arena=False), one) is one
    three = on(runs_at_once=3)
    found = predict_at_once(judged, three, one)
    assert (found.block_bytes, found.reserved_bytes, found.ballast_bytes) == (3, 4, (5,))


def test_runs_at_once_are_promised_wherever_the_system_places_regions():
    worst = set[int]()
    for seed in (0, 3, 31, 33):
        dice = random.Random(seed)
        judged = chain([dice.randint(1, 9) * MIB // 2 for _ in range(5)])
        found = predict_at_once(judged, on(runs_at_once=2), RunsForecast(0, 0, 0, 0))
        requests = asked_for(judged, HERE)
        below, above = (
            simulate_at_once(requests, 2, LoadedSession(RULES_1_32.arena, (), newest)) for newest in (True, False)
        )
        assert found.first_run_bytes == max(below[0].resident_bytes, above[0].resident_bytes)
        assert found.later_runs_bytes == max(below[-1].resident_bytes, above[-1].resident_bytes)
        worst.add(
            (below[-1].resident_bytes > above[-1].resident_bytes)
            - (below[-1].resident_bytes < above[-1].resident_bytes)
        )
    assert {1, -1} <= worst
