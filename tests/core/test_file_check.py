"""What a compiled file keeps without its plan: verdicts on order, bits and bytes."""

from __future__ import annotations

import pytest

from remat_cli.core.values.file_check import FileVerification, OrderSeen, order_seen

ORDER = ("a", "b", "gate", "a/remat_1", "c")
COPIES = frozenset({"a/remat_1"})


@pytest.mark.parametrize(
    ("executed", "found"),
    [
        (ORDER, OrderSeen(True)),
        (("constant", *ORDER), OrderSeen(True)),  # what depends on no input may run or not
        (("b", "a", "gate", "a/remat_1", "c"), OrderSeen(False, "a")),
        (("a", "b", "gate", "c"), OrderSeen(False, "a/remat_1", ("a/remat_1",))),  # a copy was joined with its op
        (("a", "b", "a/remat_1", "c"), OrderSeen(None, None, ("gate",))),
        (("b", "a", "a/remat_1", "c"), OrderSeen(False, "a", ("gate",))),
        (("a", "a", "b", "gate", "a/remat_1", "c"), OrderSeen(False, "b")),
        ((*ORDER, "c"), OrderSeen(False, "c")),
        (("fused",), OrderSeen(False, "a/remat_1", ORDER)),
    ],
)
def test_order(executed, found):
    assert order_seen(ORDER, COPIES, executed) == found


def seen(**changes):
    figures = {
        "outputs_identical": True,
        "order_honoured": True,
        "predicted_peak_bytes": 100,
        "budget_bytes": 120,
        "measured_peak_bytes": 100,
        "measured_peak_default_session_bytes": 110,
        "runtime_version": "1.32.0",
        "inferences": 5,
    }
    return FileVerification(**{**figures, **changes})


def kept(found):
    return {each.measure: each.kept for each in found.promises}


def test_a_file_that_keeps_all_that_it_promises():
    assert kept(seen()) == {"outputs": True, "order": True, "live": True, "default_session": True}
    assert seen().passed
    assert not seen().is_broken


def test_less_than_promised_is_kept():
    assert seen(measured_peak_bytes=90).passed


@pytest.mark.parametrize(
    ("changes", "measure", "is_broken", "line"),
    [
        ({"outputs_identical": False}, "outputs", True, "outputs differ"),
        ({"order_honoured": False, "first_op_out_of_order": "b"}, "order", True, "not 'b' in its turn"),
        ({"measured_peak_bytes": 1001}, "live", False, "1,001 bytes, more than 100"),
        ({"measured_peak_default_session_bytes": 1210}, "default_session", False, "1,210 bytes, more than 120"),
    ],
)
def test_a_broken_promise(changes, measure, is_broken, line):
    found = seen(**changes)
    assert [name for name, is_kept in kept(found).items() if not is_kept] == [measure]
    assert (found.passed, found.is_broken) == (False, is_broken)
    (failure,) = found.failures
    assert line in failure


@pytest.mark.parametrize(("measured", "is_kept"), [(120, True), (1210, False)])
def test_on_another_family_of_processors_live_tensors_are_held_to_the_budget(measured, is_kept):
    found = seen(is_other_processor=True, measured_peak_bytes=measured)
    assert kept(found)["live"] is is_kept


def test_what_was_not_checked_is_neither_kept_nor_broken():
    found = seen(order_honoured=None, measured_peak_bytes=None, measured_peak_default_session_bytes=None)
    assert kept(found) == {"outputs": True, "order": None, "live": None, "default_session": None}
    assert found.passed


def test_a_portable_file_promises_nothing_in_an_ordinary_session():
    assert "default_session" not in kept(seen(is_portable=True, measured_peak_default_session_bytes=500))


def test_another_original_is_told_before_all_else():
    found = seen(outputs_identical=False, is_other_model=True, measured_peak_bytes=1001)
    assert found.is_broken
    assert found.failures[0].startswith("the original is another model than the file was made from")
    assert seen(is_other_model=True).passed
