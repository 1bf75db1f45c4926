"""Which form a file takes: the one in which a process holds least, where that is worth an op or two."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import pytest

from remat_cli.core.values.resident import RunsForecast
from remat_cli.ort_rules import forms
from remat_cli.ort_rules.arena import Arena
from remat_cli.ort_rules.forecast import most_of, own_requests, predict_sessions
from remat_cli.ort_rules.forms import NO_BALLAST, Formed, InForm, best_form, may_gain, roomy_form
from remat_cli.ort_rules.records import RULES_1_32
from remat_cli.ort_rules.requests import Request
from remat_cli.ort_rules.runtime import Runtime
from remat_cli.ort_rules.steady import Ballast, SteadyBranch, SteadyForm, steady_requests
from tests.ort_rules.plans import HERE, MIB, Judged, chain, on

RULES = RULES_1_32.arena
LONG = 10**6
"""Nanoseconds of each op of a model that may well take a little more."""
WIDE = chain([9 * MIB, 5 * MIB, 7 * MIB, 2 * MIB, 8 * MIB, MIB], LONG)
"""Two neighbours of it live at a time: at most 14 MiB."""
LIVE = 14 * MIB


def within(judged: Judged = WIDE, runtime: Runtime = HERE, early: tuple[str, ...] = ()) -> InForm:
    return InForm((judged,), SteadyBranch(2), early, runtime)


WITHOUT = predict_sessions(WIDE, HERE).runs


def test_little_is_not_worth_a_form():
    assert may_gain(RunsForecast(MIB, 0, 0, 0))
    assert not may_gain(RunsForecast(MIB - 1, MIB - 1, 0, 0))


def test_ballasts_are_workspaces_for_which_the_arena_takes_a_region_of_each_of_its_sizes():
    found = forms._ballasts(LIVE, RULES)
    for number, size in enumerate(found):
        arena = Arena(RULES)
        arena.take(1, Ballast.of(size).workspace_bytes)
        assert arena.regions == [MIB << number]
    assert found[-1] <= LIVE < 2 * found[-1]
    assert forms._ballasts(MIB // 2 + 256, RULES) == [MIB // 2 + 256]  # just that large
    assert forms._ballasts(MIB // 2 + 255, RULES) == []


def all_forms(count: int) -> list[SteadyForm]:
    sizes = forms._ballasts(1.25 * LIVE, RULES)
    return [SteadyForm(chosen) for chosen in itertools.combinations(sizes, count)]


def held(form: SteadyForm, inside: InForm) -> RunsForecast:
    return most_of([inside.runs(form, *each) for each in inside.requests])


def price(runs: RunsForecast) -> float:
    """What is resident, and the fiftieth part of what is only reserved."""
    return runs.most_bytes + runs.reserved_bytes / 50


def test_the_form_is_the_one_in_which_a_process_holds_least():
    inside = within(early=("y",))
    found = best_form(WITHOUT, inside, LIVE)
    assert found.form is not None
    assert found.form.early == ("y",)
    plain = replace(found.form, early=())
    assert found.runs == held(plain, inside)
    assert found.runs.most_bytes < WITHOUT.most_bytes - MIB
    candidates = [NO_BALLAST, *itertools.chain.from_iterable(map(all_forms, (1, 2, 3)))]
    assert plain in candidates
    # Each more ballast has to save the two-hundredth part of what is held.
    least = min(price(held(form, inside)) for form in candidates)
    assert price(found.runs) <= least / 0.995


def test_fewer_ballasts_are_taken_where_more_save_nothing():
    small = chain([900 * 2**10, 12], LONG)
    without = RunsForecast(10 * MIB, 10 * MIB, 0, 0)
    found = best_form(without, within(small), MIB)
    assert found.form is not None
    assert len(found.form.ballast_bytes) <= 1
    assert found.runs == held(found.form, within(small))


@pytest.mark.parametrize("factor", [1, 4])
def test_a_form_saves_a_mebibyte_and_a_twentieth_or_is_not_taken(factor):
    judged = chain([factor * size for size in (9 * MIB, 5 * MIB, 7 * MIB, 2 * MIB, 8 * MIB, MIB)], LONG)
    without = predict_sessions(judged, HERE).runs
    most = best_form(without, within(judged), factor * LIVE).runs.most_bytes
    least = max(most + MIB, -(-most * 20 // 19))  # of which a twentieth is what it saves
    assert (least == most + MIB) == (factor == 1)
    for without_bytes, is_taken in ((least, True), (least - 1, False)):
        before = RunsForecast(without_bytes, 0, 0, 0)
        found = best_form(before, within(judged), factor * LIVE)
        assert (found.form is not None) == is_taken
        assert is_taken or found == Formed(None, before)


def test_a_model_that_takes_no_time_has_no_time_for_a_form():
    """The form's own ops take 20 microseconds, which may be the fiftieth part of all."""
    for time_ns, is_taken in ((10**6, True), (10**6 - 1, False)):
        judged = replace(WIDE, plan=msgspec.structs.replace(WIDE.plan, time_ns=time_ns))
        assert (best_form(WITHOUT, within(judged), LIVE).form is not None) == is_taken
        assert (roomy_form(within(judged), LIVE).form != NO_BALLAST) == is_taken


def test_a_form_that_holds_no_less_than_what_is_known_already_is_not_wanted():
    best = best_form(WITHOUT, within(), LIVE)
    assert best_form(WITHOUT, within(), LIVE, best.runs.most_bytes) == Formed(None, WITHOUT)
    assert best_form(WITHOUT, within(), LIVE, best.runs.most_bytes + 1) == best


def test_without_an_arena_there_are_no_regions_to_make():
    bare = on(has_arena=False)
    without = RunsForecast(200 * MIB, 200 * MIB, 0, 0)
    found = best_form(without, within(runtime=bare), LIVE)
    assert found.form == NO_BALLAST
    assert found.runs == held(NO_BALLAST, within(runtime=bare))
    assert roomy_form(within(runtime=bare), LIVE) == Formed(NO_BALLAST, found.runs)


def test_a_file_that_runs_in_several_ways_is_promised_the_worst_of_them():
    other = chain([5 * MIB, 9 * MIB, 4 * MIB, 12], LONG)
    both = InForm((WIDE, other), SteadyBranch(2), (), HERE)
    assert both.requests == ((own_requests(WIDE, HERE), ()), (own_requests(other, HERE), ()))
    assert InForm((WIDE, WIDE), SteadyBranch(2), (), HERE).requests == ((own_requests(WIDE, HERE), ()),)
    found = best_form(WITHOUT, both, LIVE)
    assert found.form is not None
    alone = [held(found.form, within(each)) for each in (WIDE, other)]
    assert found.runs == most_of(alone)


def test_copies_in_the_arena_count_for_the_form():
    packed = replace(WIDE, copies=(3 * MIB,))
    assert within(packed).requests == ((own_requests(WIDE, HERE), (3 * MIB,)),)
    found = best_form(WITHOUT, within(packed), LIVE)
    assert found.form is not None
    assert found.runs == held(found.form, within(packed))
    assert found.runs != held(found.form, within())


def test_a_search_for_ballasts_ends_after_so_many_requests(monkeypatch):
    tried: list[SteadyForm] = []

    def noted(asked: tuple[Request, ...], branch: SteadyBranch, form: SteadyForm) -> tuple[Request, ...]:
        tried.append(form)
        return steady_requests(asked, branch, form)

    monkeypatch.setattr(forms, "steady_requests", noted)
    best_form(WITHOUT, within(), LIVE)
    assert tried == [NO_BALLAST, *all_forms(1), *all_forms(2), *all_forms(3)]
    monkeypatch.setattr(forms, "MOST_REQUESTS", 10 * sum(len(asked) for asked, _ in within().requests))
    tried.clear()
    best_form(WITHOUT, within(), LIVE)
    assert len(tried) == 1 + 10
    monkeypatch.setattr(forms, "MOST_REQUESTS", 1)
    tried.clear()
    best_form(WITHOUT, within(), LIVE)
    assert len(tried) == 1 + 8


def test_a_model_of_many_sizes_gets_a_region_with_room_for_all():
    found = roomy_form(within(), LIVE)
    assert found.form is not None
    *small, largest = found.form.ballast_bytes
    assert largest == forms._ballasts(1.25 * LIVE, RULES)[-1]
    assert len(small) <= 1
    assert found.runs == held(found.form, within())

    def at_all(form: SteadyForm) -> float:
        """Other sizes fill regions for small tensors, that the largest one left empty."""
        return price(held(form, within())) + sum(2 * (each - 256) for each in form.ballast_bytes[:-1])

    sizes = forms._ballasts(1.25 * LIVE, RULES)
    candidates = [SteadyForm((largest,)), *(SteadyForm((each, largest)) for each in sizes[:-1])]
    assert at_all(found.form) <= min(map(at_all, candidates)) / 0.995


def test_a_small_model_of_many_sizes_gets_the_smallest_region():
    found = roomy_form(within(chain([1000, 400], LONG)), 1000)
    assert found.form == SteadyForm((MIB // 2 + 256,))


A, B, C = (MIB * size // 2 + 256 for size in (1, 2, 4))


@dataclass(frozen=True)
class Priced(InForm):
    """A plan of which it is said what runs take in each form, in KiB: what is resident, and what is reserved."""

    said: Mapping[tuple[int, ...], tuple[int, int]]

    def runs(self, form: SteadyForm, *_: object) -> RunsForecast:
        resident, reserved = self.said.get(form.ballast_bytes, (10**6, 10**6))
        return RunsForecast(1024 * resident, 0, 0, 1024 * reserved)

    def runs_below(self, most_bytes: int, form: SteadyForm, *_: object) -> RunsForecast | None:
        found = self.runs(form)
        return found if found.most_bytes < most_bytes else None


def priced(said: Mapping[tuple[int, ...], tuple[int, int]]) -> Priced:
    return Priced((WIDE,), SteadyBranch(2), (), HERE, said)


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ({(): (100000, 0), (A,): (99600, 0)}, ()),  # less than the two-hundredth part better
        ({(): (100000, 0), (A,): (99400, 0)}, (A,)),
        ({(): (100000, 0), (A,): (99000, 100000)}, ()),  # more is reserved
        ({(): (100000, 0), (A,): (99000, 40000)}, (A,)),
        ({(): (100000, 0), (A,): (99000, 0), (A, B): (98600, 0)}, (A,)),
        ({(): (100000, 0), (A,): (99000, 0), (A, B): (98000, 0)}, (A, B)),
        ({(): (100000, 0), (B,): (99000, 0), (A, B): (98000, 0), (A, B, C): (90000, 0)}, (A, B, C)),
    ],
)
def test_each_ballast_has_to_be_worth_it(said, chosen):
    found = best_form(RunsForecast(200 * MIB, 0, 0, 0), priced(said), 2 * MIB)
    assert found.form is not None
    assert found.form.ballast_bytes == chosen


@pytest.mark.parametrize(
    ("with_small", "chosen"),
    [((99000, 0), (C,)), ((98900, 0), (A, C)), ((97000, 100000), (C,))],
)
def test_a_region_for_small_tensors_saves_twice_what_other_sizes_may_put_there(with_small, chosen):
    """512 KiB, which the largest size leaves empty."""
    found = roomy_form(priced({(C,): (100000, 0), (A, C): with_small}), 2 * MIB)
    assert found.form is not None
    assert found.form.ballast_bytes == chosen
