"""The methods of `remat partition`, side by side on chains with long times: each keeps its word by the judge."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.base.errors import ConfigError
from remat_cli.pipelines.plan.chain import PipelineChain
from remat_cli.pipelines.plan.judge import simulate_pipeline
from remat_cli.pipelines.solve.integer_program import ProgramEffort, least_period
from remat_cli.pipelines.solve.planner import (
    METHODS,
    SLOTS,
    PipelineQuestion,
    least_bytes,
    lower_bounds,
    plan_stages,
)
from remat_cli.pipelines.solve.stages import merge
from tests.pipelines.solve.vectors import chains, inferring

EFFORT = ProgramEffort(seconds=2.0)


@st.composite
def slow_chains(draw: st.DrawFn, layers: int = 5) -> PipelineChain:
    """Times of some microseconds, so that a tick is longer than one, and no two of them are multiples of it."""
    chain = draw(chains(layers))
    off = draw(st.integers(0, 999))
    longer = {
        name: tuple((SLOTS // 4) * time + (off * (at + 1)) % 97 for at, time in enumerate(getattr(chain, name)))
        for name in ("forward", "backward", "transfers")
    }
    return msgspec.structs.replace(chain, **longer)


def planned(chain, devices, memory, method):
    """The period, None where there is no plan; what it says of itself is held against the judge."""
    plan = plan_stages(PipelineQuestion(chain, devices, memory, EFFORT), method)
    if plan.schedule is None:
        return None
    assert plan.bound is None or plan.bound <= plan.schedule.period
    assert len(set(plan.schedule.devices)) <= devices
    assert plan.schedule.period >= lower_bounds(chain, devices)[0]
    if not any(plan.again):
        run = simulate_pipeline(merge(chain, plan.stages), plan.schedule, "full")
        assert run.normalized_period == plan.schedule.period
        assert max(run.peak_bytes.values()) <= memory
        assert max(run.peak_bytes.values()) >= lower_bounds(chain, devices)[1]
    return plan.schedule.period


@settings(max_examples=50)
@given(slow_chains(), st.integers(1, 3), st.integers(4, 90))
def test_no_method_is_worse_than_the_best_partition_at_any_memory(chain, devices, memory):
    alone = planned(chain, devices, memory, "1f1b-star")
    assert (alone is not None) == (least_bytes(chain, devices) <= memory)
    baseline = planned(chain, devices, memory, "pipedream")
    assert baseline is None or alone <= baseline
    for method in ("madpipe", "joint", "auto"):
        period = planned(chain, devices, memory, method)
        assert alone is None or period <= alone


@settings(max_examples=20)
@given(slow_chains(3), st.integers(1, 2), st.integers(10, 90))
def test_bounds_of_rounded_times_hold_for_exact_ones(chain, devices, memory):
    exact = least_period(chain, devices, memory, "full", effort=ProgramEffort(seconds=10.0))
    rounded = plan_stages(PipelineQuestion(chain, devices, memory, EFFORT), "pipeline-ilp")
    if exact.is_optimal and rounded.bound is not None:
        assert rounded.bound <= exact.value <= rounded.schedule.period


@settings(max_examples=50)
@given(slow_chains(), st.integers(1, 3), st.integers(4, 60), st.sampled_from(sorted(METHODS)))
def test_every_method_takes_models_that_only_infer(training, devices, memory, method):
    chain = inferring(training)
    planned(chain, devices, memory, method)


def test_just_enough_memory_is_enough():
    chain = PipelineChain((3, 2, 4), (5, 1, 6), (4, 7, 2), (3, 5, 2, 0), (2, 1))
    least = least_bytes(chain, 2)
    for method in ("1f1b-star", "madpipe", "joint", "auto", "pipeline-ilp"):
        assert planned(chain, 2, least, method) is not None
    assert planned(chain, 2, least - 1, "1f1b-star") is None


def test_an_unknown_method_is_named():
    chain = PipelineChain((1,), (1,), (0,), (0, 0), ())
    with pytest.raises(ConfigError, match="no method named 'best'"):
        plan_stages(PipelineQuestion(chain, 1, 1, EFFORT), "best")
