"""Names of ops and tensors."""

from __future__ import annotations

import pytest

from remat_cli.onnx_io.read.normalise import fresh_name


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_numbers_follow_each_other(count):
    taken = {"Relu"}
    assert [fresh_name("Relu", taken) for _ in range(count)] == [f"Relu_{number}" for number in range(1, count + 1)]
    assert len(taken) == count + 1


def test_a_free_name_stays_and_is_taken_then():
    taken = {"Relu_1"}
    assert fresh_name("Relu", taken) == "Relu"
    assert fresh_name("Relu", taken) == "Relu_2"
    assert taken == {"Relu", "Relu_1", "Relu_2"}


def test_gaps_do_not_make_a_name_twice():
    taken = {"a"} | {f"a_{number}" for number in (1, 2, 4, 5, 9)}
    given = [fresh_name("a", taken) for _ in range(20)]
    assert len(set(given)) == 20
    assert not set(given) & {"a", "a_1", "a_2", "a_4", "a_5", "a_9"}


def test_nothing_is_no_name():
    assert fresh_name("", set()) == "_1"
