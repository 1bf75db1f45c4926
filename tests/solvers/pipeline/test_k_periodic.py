"""Schedules with several mini-batches per pattern; loads alone; bounds."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.base.errors import InputError
from remat_cli.core.pipelines.pipeline import MEMORY_MODELS, PipelineChain
from remat_cli.core.pipelines.simulate_pipeline import simulate_pipeline
from remat_cli.solvers._pipeline.bounds import contiguous_bottleneck, general_bottleneck, memory_bound, period_bound
from remat_cli.solvers._pipeline.contiguous import best_contiguous
from remat_cli.solvers._pipeline.integer_program import least_memory, least_period
from remat_cli.solvers._pipeline.k_periodic import StagedPipeline, best_any_k, best_exactly_k
from remat_cli.solvers._pipeline.onef1b_star import best_period
from remat_cli.solvers._pipeline.thinning import best_thinned, thinned_schedule
from tests.solvers.pipeline.vectors import chains, of_kind


@pytest.mark.parametrize("entry", of_kind("k_periodic"), ids=lambda entry: entry["id"])
def test_k_periodic_vectors(entry):
    pipeline = StagedPipeline(*(tuple(entry[name]) for name in ("uF", "uB", "nca_limit")))
    exactly = entry["best_normalized_period_exactly_k"]
    assert best_exactly_k(pipeline, len(exactly)) == [Fraction(exactly[k]) for k in sorted(exactly, key=int)]
    assert best_any_k(pipeline) == Fraction(entry["best_normalized_period_any_k"])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_family_where_k_matters(k):
    stages = k + 1
    pipeline = StagedPipeline((1,) * stages, (1,) * stages, (k, *range(k, 0, -1)))
    best = best_exactly_k(pipeline, k)
    assert best[-1] == best_any_k(pipeline) == 2 * (1 + Fraction(1, k))
    assert all(value >= 2 * (1 + Fraction(1, j)) for j, value in enumerate(best, 1))


def test_larger_k_is_not_always_better():
    pipeline = StagedPipeline((1,) * 3, (1,) * 3, (2, 2, 1))
    assert best_exactly_k(pipeline, 4) == [4, 3, Fraction(10, 3), 3]


@pytest.mark.parametrize("entry", of_kind("load_gap"), ids=lambda entry: entry["id"])
def test_load_gap_vectors(entry):
    loads = [Fraction(load) for load in entry["layer_cost"]]
    assert contiguous_bottleneck(loads, entry["P"]) == Fraction(entry["best_contiguous"])
    assert general_bottleneck(loads, entry["P"]) == Fraction(entry["best_noncontiguous"])


@given(chains(5), st.integers(1, 4), st.integers(4, 60), st.sampled_from(MEMORY_MODELS))
def test_thinned_schedules_keep_their_word(chain, devices, memory, model):
    cuts = [*range(1, min(devices, chain.layers)), chain.layers]
    plan = best_thinned(chain, cuts, memory, model)
    once = best_period(chain, cuts, memory, model)
    assert once is None or plan.normalized_period <= once.period
    if plan:
        run = simulate_pipeline(chain, thinned_schedule(chain, plan), model)
        assert run.normalized_period == plan.normalized_period
        assert max(run.peak_bytes.values()) <= memory


def test_thinning_wins_where_k_matters():
    # Three unit stages that may hold 2, 2, 1: a thinned 1F1B* of period 2 takes 3 per mini-batch, 1F1B* takes 4.
    chain = PipelineChain((1,) * 3, (1,) * 3, (0,) * 3, (1, 1, 2, 0), (0, 0), copies=0)
    assert best_period(chain, [1, 2, 3], 2, "nca").period == 4
    plan = best_thinned(chain, [1, 2, 3], 2, "nca")
    assert (plan.normalized_period, plan.k, plan.alive) == (3, 2, (2, 2, 1))


@given(chains(3), st.integers(1, 3), st.sampled_from(MEMORY_MODELS))
def test_nothing_beats_the_bounds(chain, devices, model):
    roomy = least_period(chain, devices, 10_000, model)
    assert roomy.is_optimal
    assert roomy.value >= period_bound(chain, devices)
    slow = sum(chain.forward) + sum(chain.backward) + 2 * sum(chain.transfers)
    small = least_memory(chain, devices, slow, model)
    assert small.value >= memory_bound(chain, devices, model)
    contiguous = best_contiguous(chain, devices, 10_000)
    assert contiguous.period >= period_bound(chain, devices)


def test_pipelines_that_are_none_are_named():
    with pytest.raises(InputError, match="uF, uB and nca_limit have 2, 1 and 2 figures"):
        StagedPipeline((1, 1), (1,), (1, 1))
    with pytest.raises(InputError, match="limits of at least 1"):
        StagedPipeline((1,), (1,), (0,))
