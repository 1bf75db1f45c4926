"""1F1B*, PipeDream's cuts and the best contiguous partition: vectors, the judge, and enumeration."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.base.errors import InputError
from remat_cli.pipelines.plan.chain import PipelineChain
from remat_cli.pipelines.plan.judge import simulate_pipeline
from remat_cli.pipelines.solve.contiguous import best_contiguous
from remat_cli.pipelines.solve.onef1b_star import (
    best_period,
    candidate_periods,
    contiguous_schedule,
    items_of,
    onef1b_star,
    stage_bytes,
)
from remat_cli.pipelines.solve.pipedream import pipedream, pipedream_1f1b_star
from tests.pipelines.solve.vectors import MEMORY_MODELS, chain_of, chains, inferring, of_kind


@pytest.mark.parametrize("entry", of_kind("onef1b_star"), ids=lambda entry: entry["id"])
def test_1f1b_star_vectors(entry):
    chain, cuts = chain_of(entry), entry["cuts"]
    items = items_of(chain, cuts)
    assert candidate_periods(items) == [row["T"] for row in entry["candidates"]]
    for row in entry["candidates"]:
        grouping = onef1b_star(items, row["T"])
        assert list(grouping.groups[::2]) == row["group_of_stage"]
        assert list(grouping.groups[1::2]) == row["group_of_link"]
        assert list(grouping.forward_starts[::2]) == row["start_F"]
        assert list(grouping.backward_starts[::2]) == row["start_B"]
        schedule = contiguous_schedule(chain, cuts, row["T"])
        for model, name in zip(MEMORY_MODELS, ["peak_nca", "peak_buf", "peak_full_stage"], strict=True):
            assert max(stage_bytes(chain, cuts, row["group_of_stage"], model)) == row[name]
            run = simulate_pipeline(chain, schedule, model)
            assert max(run.peak_bytes.values()) == row[name]
            assert run.normalized_period == row["T"]


@pytest.mark.parametrize("entry", of_kind("best_contiguous"), ids=lambda entry: entry["id"])
def test_best_contiguous_vectors(entry):
    chain, devices = chain_of(entry), entry["instance"]["P"]
    assert best_contiguous(chain, devices, entry["rows"][0]["M"] - 1) is None
    limits = [(row, row["M"]) for row in entry["rows"]]
    limits += [(row, after["M"] - 1) for row, after in zip(entry["rows"], entry["rows"][1:], strict=False)]
    for row, memory in limits:
        found = best_contiguous(chain, devices, memory)
        assert found.period == row["T_opt"]
        listed = best_period(chain, row["cuts"], memory)
        assert (listed.period, list(listed.alive)) == (row["T_opt"], row["nca"])
    for row in entry["rows"]:
        cuts = pipedream(chain, devices, row["M"])
        assert (cuts and cuts.bottleneck) == row["pipedream_bottleneck"]
        if cuts is not None:
            again = best_period(chain, row["pipedream_cuts"], row["M"])
            assert (again and again.period) == row["pipedream_then_1f1bstar_T"]


def all_cuts(chain: PipelineChain, devices: int) -> list[tuple[int, ...]]:
    inner = range(1, chain.layers)
    return [
        (*cuts, chain.layers) for stages in range(min(devices, chain.layers)) for cuts in combinations(inner, stages)
    ]


@given(chains(), st.integers(1, 4), st.integers(0, 80))
def test_best_contiguous_equals_enumeration_and_keeps_its_word(chain, devices, memory):
    plans = [best_period(chain, cuts, memory) for cuts in all_cuts(chain, devices)]
    best = min((plan.period for plan in plans if plan), default=None)
    found = best_contiguous(chain, devices, memory)
    assert (found and found.period) == best
    baseline = pipedream_1f1b_star(chain, devices, memory)
    assert baseline is None or found.period <= baseline.period
    if found:
        run = simulate_pipeline(chain, contiguous_schedule(chain, found.cuts, found.period), "buf")
        assert run.normalized_period == found.period
        assert max(run.peak_bytes.values()) <= memory


@given(chains(), st.data())
def test_planned_bytes_and_live_mini_batches_are_those_of_the_judge(chain, data):
    cuts = data.draw(st.sampled_from(all_cuts(chain, 3)))
    items = items_of(chain, cuts)
    for period in candidate_periods(items):
        alive = onef1b_star(items, period).groups[::2]
        schedule = contiguous_schedule(chain, cuts, period)
        for model in MEMORY_MODELS:
            run = simulate_pipeline(chain, schedule, model)
            assert list(run.peak_bytes.values()) == stage_bytes(chain, cuts, alive, model)


@given(chains(), st.integers(1, 3), st.integers(0, 60))
def test_more_memory_or_devices_or_faster_links_never_slow_down(chain, devices, memory):
    plan = best_contiguous(chain, devices, memory)
    if plan is None:
        return
    assert best_contiguous(chain, devices, memory + 7).period <= plan.period
    assert best_contiguous(chain, devices + 1, memory).period <= plan.period
    slower = PipelineChain(
        chain.forward, chain.backward, chain.weights, chain.sizes, tuple(c + 1 for c in chain.transfers), chain.copies
    )
    found = best_contiguous(slower, devices, memory)
    assert found is None or found.period >= plan.period


@given(chains(), st.integers(1, 3), st.integers(0, 40), st.sampled_from(MEMORY_MODELS))
def test_inference_is_a_question_of_the_largest_load(training, devices, memory, model):
    chain = inferring(training)
    fitting = []
    for cuts in all_cuts(chain, devices):
        bounds = [0, *cuts]
        stages = list(pairwise(bounds))
        held = [
            sum(chain.weights[i:j]) + (chain.sizes[i] if i else 0) + (chain.sizes[j] if j < chain.layers else 0)
            for i, j in stages
        ]
        if max(held) <= memory:
            links = [chain.transfers[cut - 1] for cut in cuts[:-1]]
            fitting.append(max([sum(chain.forward[i:j]) for i, j in stages] + links))
    found = best_contiguous(chain, devices, memory)
    assert (found and found.period) == min(fitting, default=None)
    if found:
        run = simulate_pipeline(chain, contiguous_schedule(chain, found.cuts, found.period), model)
        assert run.normalized_period == found.period
        if model != "full":
            assert max(run.peak_bytes.values()) <= memory


def test_bad_input_is_named():
    with pytest.raises(InputError, match="uB has 1 figures where this chain needs 2"):
        PipelineChain((1, 1), (1,), (0, 0), (1, 1, 0), (0,))
    with pytest.raises(InputError, match="W must not be negative, but has -1"):
        PipelineChain((1,), (1,), (-1,), (1, 0), ())
    chain = PipelineChain((2, 2), (1, 1), (0, 0), (1, 1, 0), (0,))
    with pytest.raises(InputError, match="cuts \\[2, 1\\] must rise"):
        items_of(chain, [2, 1])
    with pytest.raises(InputError, match="a period of 2 is below the largest load, 3"):
        onef1b_star(items_of(chain, [1, 2]), 2)
