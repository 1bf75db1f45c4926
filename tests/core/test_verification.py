from __future__ import annotations

import msgspec
import pytest

from tests.report.samples import verification


def test_kept_promises_pass():
    assert verification().passed
    assert verification().failures == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outputs_identical": False}, "outputs differ"),
        ({"outputs_identical": False, "outputs_close": False}, "by more than sums in another order explain"),
        ({"order_honoured": False}, "plan's order"),
        ({"measured_peak_bytes": 1}, "measured peak is 1 bytes"),
        ({"within_budget": False}, "more than the budget"),
    ],
)
def test_each_broken_promise_is_named(changes, words):
    broken = msgspec.structs.replace(verification(), **changes)
    assert not broken.passed
    assert len(broken.failures) == 1
    assert words in broken.failures[0]


@pytest.mark.parametrize(
    ("changes", "is_broken"),
    [({"measured_peak_bytes": 1}, False), ({"order_honoured": False}, True), ({"outputs_identical": False}, True)],
)
def test_bytes_can_be_mended_and_order_and_outputs_cannot(changes, is_broken):
    assert msgspec.structs.replace(verification(), **changes).is_broken is is_broken


def test_no_gain_under_a_cap_breaks_no_promise_and_is_known():
    seen = msgspec.structs.replace(verification(), capped_run_ok=False)
    assert seen.passed
    assert seen.is_worse_under_cap


def test_close_outputs_are_kept():
    seen = msgspec.structs.replace(verification(), outputs_identical=False, outputs_close=True)
    assert seen.passed
    assert seen.are_outputs_kept


def test_not_measured_is_not_a_failure():
    assert msgspec.structs.replace(verification(), capped_run_ok=None).passed
