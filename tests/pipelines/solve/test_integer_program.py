"""The integer program: optima of the vectors, and a judge for all that it returns."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.base.errors import InputError
from remat_cli.pipelines.plan.chain import PipelineChain
from remat_cli.pipelines.plan.judge import simulate_pipeline
from remat_cli.pipelines.solve.contiguous import best_contiguous
from remat_cli.pipelines.solve.integer_program import ProgramEffort, least_period
from remat_cli.pipelines.solve.onef1b_star import best_period
from remat_cli.pipelines.solve.stages import merge, spell_out, stages_of
from tests.pipelines.solve.least_memory import least_memory
from tests.pipelines.solve.vectors import MEMORY_MODELS, chain_of, chains, of_kind

EFFORT = ProgramEffort(seconds=60.0)
CURVES = [(entry, model) for entry in of_kind("general_1periodic") for model in entry["curves"]]


def judged(chain, schedule, model):
    run = simulate_pipeline(chain, schedule, model)
    return run.normalized_period, max(run.peak_bytes.values())


@pytest.mark.parametrize(("entry", "model"), CURVES, ids=lambda value: value if isinstance(value, str) else value["id"])
def test_general_vectors(entry, model):
    chain, devices = chain_of(entry), entry["instance"]["P"]
    rows = entry["curves"][model]
    assert least_period(chain, devices, rows[-1]["min_memory"] - 1, model, effort=EFFORT).is_infeasible
    for row in rows:
        fast = least_period(chain, devices, row["min_memory"], model, effort=EFFORT)
        assert fast.is_optimal
        assert judged(chain, fast.schedule, model) == (row["T"], row["min_memory"])
        memory, schedule = least_memory(chain, devices, row["T"], model)
        assert memory == row["min_memory"]
        assert judged(chain, schedule, model) == (row["T"], row["min_memory"])


@pytest.mark.parametrize("entry", of_kind("layer_granularity"), ids=lambda entry: entry["id"])
def test_layer_granularity_vectors(entry):
    chain, devices, fixed = chain_of(entry), entry["instance"]["P"], entry["allocation"]
    for row in entry["layer_level"]:
        found = least_period(chain, devices, row["min_memory"], "full", allocation=fixed, effort=EFFORT)
        assert (found.value, found.is_optimal) == (row["T"], True)
        assert judged(chain, found.schedule, "full") == (row["T"], row["min_memory"])
    stages = stages_of(fixed)
    blocks, devices_of_blocks = merge(chain, stages), [stage.device for stage in stages]
    for row in entry["stage_atomic"]:
        found = least_period(blocks, devices, row["min_memory"], "full", allocation=devices_of_blocks, effort=EFFORT)
        assert (found.value, found.is_optimal) == (row["T"], True)
        assert judged(chain, spell_out(chain, stages, found.schedule), "full") == (row["T"], row["min_memory"])
        plan = best_period(chain, [stage.last for stage in stages], row["min_memory"], "full")
        assert plan.period == row["T"]
        assert least_memory(blocks, devices, row["T"], "full", devices_of_blocks)[0] == row["min_memory"]


@pytest.mark.parametrize(
    ("forward", "backward", "devices", "period"), [((4, 1, 1), (1, 1, 4), 1, 12), ((3, 1, 2), (1, 2, 3), 2, 7)]
)
def test_all_orientations_of_transitivity(forward, backward, devices, period):
    chain = PipelineChain(forward, backward, (0,) * 3, (0,) * 4, (0,) * 2)
    assert least_period(chain, devices, 0, effort=EFFORT).value == period


def test_unused_transfers_take_no_time():
    chain = PipelineChain((1,) * 3, (1,) * 3, (0,) * 3, (0,) * 4, (9, 0))
    assert least_period(chain, 2, 0, effort=EFFORT).value == 4


def test_only_several_stages_on_a_device_fit():
    chain = PipelineChain((1,) * 3, (1,) * 3, (1, 2, 1), (0,) * 4, (0,) * 2, copies=1)
    found = least_period(chain, 2, 2, "nca", effort=EFFORT)
    assert (found.value, found.schedule.devices) == (4, (0, 1, 0))


@settings(max_examples=60)
@given(chains(4), st.integers(1, 3), st.integers(4, 60), st.sampled_from(MEMORY_MODELS))
def test_invariants_of_random_chains(chain, devices, memory, model):
    """A finer view, more memory, more devices or no transfers never make the optimum slower."""
    best = least_period(chain, devices, memory, model, effort=EFFORT)
    assert best.is_optimal or best.is_infeasible
    if best.schedule:
        period, peak = judged(chain, best.schedule, model)
        assert period == best.value
        assert peak <= memory
        assert least_period(chain, devices + 1, memory, model, effort=EFFORT).value <= best.value
        assert least_period(chain, devices, memory + 5, model, effort=EFFORT).value <= best.value
        near = msgspec.structs.replace(chain, transfers=(0,) * (chain.layers - 1))
        assert least_period(near, devices, memory, model, effort=EFFORT).value <= best.value
    if model == "buf":
        blocks = best_contiguous(chain, devices, memory)
        assert blocks is None or best.value <= blocks.period


@settings(max_examples=60)
@given(chains(5), st.data(), st.sampled_from(MEMORY_MODELS))
def test_blocks_of_a_contiguous_allocation_are_solved_by_1f1b_star(chain, data, model):
    owners = sorted(data.draw(st.lists(st.integers(0, 2), min_size=chain.layers, max_size=chain.layers)))
    stages = stages_of(owners)
    cuts = [stage.last for stage in stages]
    memory = data.draw(st.integers(4, 60))
    plan = best_period(chain, cuts, memory, model)
    blocks = list(range(len(stages)))
    found = least_period(merge(chain, stages), 3, memory, model, allocation=blocks, effort=EFFORT)
    assert found.value == (plan and plan.period)
    assert found.is_optimal or found.is_infeasible


def test_an_allocation_that_does_not_fit_is_named():
    chain = PipelineChain((1, 1), (1, 1), (0, 0), (0,) * 3, (0,))
    with pytest.raises(InputError, match=r"allocation \[0\] must give 2 layers one of 2 devices each"):
        least_period(chain, 2, 10, allocation=[0])


def test_a_finer_view_is_never_slower():
    chain = PipelineChain((2, 1, 1), (3, 1, 1), (1, 2, 0), (1, 3, 2, 0), (2, 1))
    assert best_period(chain, [2, 3], 23, "full").period == 11
    assert least_period(chain, 2, 23, "full", allocation=[0, 0, 1], effort=EFFORT).value == 8
