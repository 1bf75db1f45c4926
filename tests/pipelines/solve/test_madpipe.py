"""MadPipe: values and bounds of the vectors, its second phase, and its driver beside the best contiguous plan."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.pipelines.plan.chain import PipelineChain, PipelineStage
from remat_cli.pipelines.plan.judge import simulate_pipeline
from remat_cli.pipelines.solve.bounds import period_bound
from remat_cli.pipelines.solve.contiguous import best_contiguous
from remat_cli.pipelines.solve.integer_program import ProgramEffort, least_period
from remat_cli.pipelines.solve.madpipe import madpipe
from remat_cli.pipelines.solve.madpipe_phase1 import Grid, MadPipeQuestion, madpipe_dp, madpipe_phase1
from remat_cli.pipelines.solve.stages import merge
from tests.pipelines.solve.vectors import chain_of, chains, of_kind

EFFORT = ProgramEffort(seconds=60.0)
ROWS = [
    pytest.param(entry, row, id=f"{entry['id']}-{row['M']}") for entry in of_kind("madpipe") for row in entry["rows"]
]


def bound_of(found):
    return found[0].bound if found else None


@pytest.mark.parametrize(("entry", "row"), ROWS)
def test_madpipe_vectors(entry, row):
    chain, devices, memory = chain_of(entry), entry["instance"]["P"], row["M"]
    for name, is_tight in (("printed", False), ("tight", True)):
        question = MadPipeQuestion(chain, devices, memory, is_tight)
        for period, values in row["dp_at_That"].items():
            found = madpipe_dp(question, int(period))
            assert (found[0].bottleneck if found else None) == values[name]
        listed = row[f"phase1_{name}"]
        assert bound_of(madpipe_phase1(question)) == (listed and listed["bound"])
    contiguous = best_contiguous(chain, devices, memory)
    assert (contiguous and contiguous.period) == row["best_contiguous"]
    optimum = least_period(chain, devices, memory, "buf", effort=EFFORT)
    assert optimum.value == row["optimum_layer_granular"]
    assert optimum.is_optimal or optimum.is_infeasible


@pytest.mark.parametrize(("entry", "row"), ROWS)
def test_second_phase_of_the_listed_stages(entry, row):
    chain, devices, memory = chain_of(entry), entry["instance"]["P"], row["M"]
    for name in ("printed", "tight"):
        listed = row[f"phase1_{name}"]
        if listed is None:
            continue
        stages = stages_from(listed["stages"], devices)
        found = least_period(
            merge(chain, stages), devices, memory, "buf", allocation=[s.device for s in stages], effort=EFFORT
        )
        assert found.value == row[f"phase2_of_{name}_allocation"]
        assert found.is_optimal or found.is_infeasible


def stages_from(listed, devices):
    stages, ordinary = [], 0
    for first, last, kind in listed:
        stages.append(PipelineStage(first, last, devices - 1 if kind == "S" else ordinary))
        ordinary += kind == "N"
    return stages


def recursed(chain, devices, memory, period, is_tight):
    """D(n, P-1, 0, 0, 0, 0), written as the recurrence is: no labels, no dominance."""

    def add(x, y):
        return (
            x + y
            if ceil(Fraction(x, period)) == ceil(Fraction(x + y, period))
            else period * ceil(Fraction(x, period)) + y
        )

    def d(j, p, time, held, most, delay):
        if not j:
            return time
        best = inf
        for i in range(1, j + 1):
            load = sum(chain.forward[i - 1 : j]) + sum(chain.backward[i - 1 : j])
            link = 2 * chain.transfers[i - 2] if i > 1 else 0
            saved = sum(chain.saved_bytes[i - 1 : j])
            g = ceil(Fraction(delay + load, period))
            fixed = chain.copies * sum(chain.weights[i - 1 : j])
            fixed += (2 * chain.sizes[i - 1] if i > 1 else 0) + (2 * chain.sizes[j] if j < chain.layers else 0)
            after = add(add(delay, load), link)
            if p and fixed + g * saved <= memory:
                best = min(best, max(load, link, d(i - 1, p - 1, time, held, most, after)))
            own, largest = held + fixed + (g - 1) * saved, max(most, saved) if is_tight else 0
            if own + largest <= memory and (is_tight or p or i == 1):
                best = min(best, max(time + load, link, d(i - 1, p, time + load, own, largest, after)))
        return best

    return d(chain.layers, devices - 1, 0, 0, 0, 0)


@given(chains(5), st.integers(1, 3), st.integers(4, 70), st.integers(1, 40), st.booleans())
def test_labels_equal_the_plain_recurrence(chain, devices, memory, period, is_tight):
    found = madpipe_dp(MadPipeQuestion(chain, devices, memory, is_tight), period)
    assert (found[0].bottleneck if found else inf) == recursed(chain, devices, memory, period, is_tight)


def scanned(question):
    """The least max(D, H) by trying every target period."""
    chain = question.chain
    load = sum(chain.forward) + sum(chain.backward)
    periods = range(max(1, -(-load // question.devices)), load + 2 * sum(chain.transfers) + 1)
    return min((found[0].bound for period in periods if (found := madpipe_dp(question, period))), default=None)


@given(chains(5), st.integers(1, 3), st.integers(4, 70), st.booleans())
def test_bisection_finds_what_a_scan_of_all_periods_finds(chain, devices, memory, is_tight):
    question = MadPipeQuestion(chain, devices, memory, is_tight)
    assert bound_of(madpipe_phase1(question)) == scanned(question)


@given(chains(6), st.integers(1, 4), st.integers(4, 70))
def test_bounds_of_the_first_phase(chain, devices, memory):
    tight = madpipe_phase1(MadPipeQuestion(chain, devices, memory))
    printed = madpipe_phase1(MadPipeQuestion(chain, devices, memory, is_tight=False))
    contiguous = best_contiguous(chain, devices, memory)
    if contiguous:
        assert tight[0].bound <= contiguous.period
        below = madpipe_phase1(MadPipeQuestion(chain, devices, memory, below=contiguous.period))
        assert bound_of(below) == (tight[0].bound if tight[0].bound < contiguous.period else None)
    down = madpipe_phase1(MadPipeQuestion(chain, devices, memory, grid=Grid(6, 4, 4, 6, is_up=False)))
    if tight:
        assert printed[0].bound <= tight[0].bound
        assert down[0].bound <= tight[0].bound
    up = madpipe_phase1(MadPipeQuestion(chain, devices, memory, grid=Grid(6, 4, 4, 6)))
    if up:
        assert tight[0].bound <= up[0].bound


@pytest.mark.parametrize(("entry", "row"), ROWS)
def test_the_driver_is_between_the_optimum_and_the_best_contiguous(entry, row):
    plan = madpipe(chain_of(entry), entry["instance"]["P"], row["M"], EFFORT)
    tight = row["phase1_tight"]
    assert plan.is_exact
    if plan.schedule is None:
        assert row["best_contiguous"] is None
        assert row["phase2_of_tight_allocation"] is None
        return
    known = [row["best_contiguous"], row["phase2_of_tight_allocation"]]
    assert row["optimum_layer_granular"] <= plan.schedule.period <= min(each for each in known if each)
    assert plan.bound == min(each for each in (tight and tight["bound"], row["best_contiguous"]) if each)


@settings(max_examples=40)
@given(chains(6), st.integers(1, 4), st.integers(4, 70))
def test_the_driver_keeps_its_word(chain, devices, memory):
    plan = madpipe(chain, devices, memory, EFFORT)
    contiguous = best_contiguous(chain, devices, memory)
    assert plan.contiguous_period == (contiguous and contiguous.period)
    if contiguous:
        assert plan.schedule.period <= contiguous.period
        assert plan.bound <= contiguous.period
    for allocation in madpipe_phase1(MadPipeQuestion(chain, devices, memory))[:2]:
        blocks = merge(chain, allocation.stages)
        owners = [stage.device for stage in allocation.stages]
        second = least_period(blocks, devices, memory, "buf", allocation=owners, effort=EFFORT)
        assert second.is_infeasible or allocation.bound <= second.value
    if plan.schedule:
        run = simulate_pipeline(chain, plan.schedule, "buf")
        assert run.normalized_period == plan.schedule.period
        assert max(run.peak_bytes.values()) <= memory
        assert len(run.peak_bytes) <= devices


def test_the_driver_finds_what_no_contiguous_plan_can():
    chain = PipelineChain((1,) * 3, (1,) * 3, (1, 2, 1), (0,) * 4, (0,) * 2, copies=1)
    plan = madpipe(chain, 2, 2, EFFORT)
    assert (plan.contiguous_period, plan.bound, plan.schedule.period, plan.gap) == (None, 4, 4, 0.0)
    assert plan.schedule.devices == (1, 0, 1)


def test_long_chains_go_on_a_grid():
    layers = 40
    chain = PipelineChain(
        tuple(1000 + 37 * (layer % 7) for layer in range(layers)),
        tuple(2000 + 91 * (layer % 5) for layer in range(layers)),
        tuple(10 * layer for layer in range(layers)),
        (*(900 - 20 * layer for layer in range(layers)), 0),
        (50,) * (layers - 1),
    )
    plan = madpipe(chain, 4, 30_000, ProgramEffort(seconds=10.0))
    assert not plan.is_exact
    assert plan.bound <= plan.schedule.period <= plan.contiguous_period


def test_the_first_phase_ends_in_time_too():
    """With a clock on which every look costs a second, nothing but the contiguous plan and a plain bound are left."""
    rng = random.Random(1)
    times = [tuple(rng.randrange(1, 50) for _ in range(30)) for _ in range(2)]
    chain = PipelineChain(*times, (5,) * 30, (*(10,) * 30, 0), (3,) * 29)
    seconds = itertools.count()
    plan = madpipe(chain, 4, 600, ProgramEffort(seconds=2), clock=lambda: float(next(seconds)))
    assert plan.schedule is not None
    assert plan.schedule.period == plan.contiguous_period
    assert plan.bound == ceil(period_bound(chain, 4))
    assert next(seconds) < 20
