"""The judge of pipelines, on schedules worked out by hand; each illegal kind is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from remat_cli.base.errors import InvalidSchedule
from remat_cli.pipelines.plan.chain import PeriodicSchedule, PipelineChain
from remat_cli.pipelines.plan.judge import simulate_pipeline

CHAIN = PipelineChain((1, 1), (1, 1), (10, 20), (3, 5, 0), (1,), copies=2)
# F1 0-1, move 1-2, F2 2-3, B2 3-4, move 4-5, B1 5-6; the next one 4 later: F1 4-5 beside B1 5-6, link 5-6 after 4-5.
GOOD = PeriodicSchedule(4, (0, 1), ((0, 2, 3, 5),), ((1, None, 4),))


def changed(**fields: object) -> PeriodicSchedule:
    values = {"period": 4, "devices": GOOD.devices, "starts": GOOD.starts, "transfers": GOOD.transfers}
    return PeriodicSchedule(**{**values, **fields})


def test_memory_by_hand():
    # Device 0: 2 * 10 weights; F1 of the next (4) starts before B1 (ends 6): two inputs of 3.
    nca = simulate_pipeline(CHAIN, GOOD, "nca")
    assert nca.peak_bytes == {0: 26, 1: 45}
    assert nca.live == (2, 1)
    assert nca.normalized_period == 4
    # Buffers: twice 5 on both. Device 0 while F1 runs: its output 5, with two inputs; while B1: 5 + 3.
    assert simulate_pipeline(CHAIN, GOOD, "buf").peak_bytes == {0: 36, 1: 55}
    # Device 1 while B2 runs: the gradients 0 and 5.
    assert simulate_pipeline(CHAIN, GOOD, "full").peak_bytes == {0: 44, 1: 60}


def test_what_waits_on_its_device_counts():
    # One device, F1 0-1, F2 2-3, B2 3-4, B1 4-5: the output of F1 (5) waits from 1 to 2, and is saved from 2 on.
    # At B2: saved 3 + 5, gradients 0 + 5; at B1: saved 3, gradients 5 + 3.
    chain = PipelineChain((1, 1), (1, 1), (0, 0), (3, 5, 0), (1,))
    run = simulate_pipeline(chain, PeriodicSchedule(5, (0, 0), ((0, 2, 3, 4),), ((None,) * 3,)), "full")
    assert [held for time, held in run.memory[0] if 0 <= time < 5] == [8, 8, 8, 13, 11]


def test_several_mini_batches_per_pattern():
    twice = changed(period=9, starts=((0, 2, 3, 5), (4, 6, 7, 9)), transfers=((1, None, 4), (5, None, 8)))
    with pytest.raises(InvalidSchedule, match="device 0 does two things at time 9"):
        simulate_pipeline(CHAIN, twice, "nca")
    run = simulate_pipeline(CHAIN, changed(period=10, starts=twice.starts, transfers=twice.transfers), "nca")
    assert run.normalized_period == Fraction(5)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"period": 0}, "not positive"),
        ({"period": 1}, "device 0 does two things"),
        ({"devices": (0,)}, "1 layers have a device"),
        ({"starts": ()}, "each mini-batch of the pattern"),
        ({"starts": ((0, 2, 3),)}, "needs 4 starts and 3 transfers"),
        ({"transfers": ((None, None, 4),)}, "after task 1 a transfer is missing"),
        ({"transfers": ((1, 3, 4),)}, "after task 2 a transfer is too many"),
        ({"starts": ((0, 1, 3, 5),)}, "what follows task 1 starts at 1, before 2"),
        ({"transfers": ((0, None, 4),)}, "what follows task 1 starts at 0, before 1"),
        ({"period": 3}, "the link between devices 0 and 1 does two things"),
    ],
)
def test_illegal_schedules_are_refused(fields, text):
    with pytest.raises(InvalidSchedule, match=text):
        simulate_pipeline(CHAIN, changed(**fields), "nca")
