"""What was timed on a noisy machine decides nothing that lies within the noise."""

import msgspec
import pytest

from remat_cli.core.values.noise import TimeNoise, are_sure, multiple_error, multiple_in_turn, ratios_in_turn, weighed
from remat_cli.core.values.promises import Asked
from tests.report import samples

BUSY = {None: TimeNoise(None, 2.0, 2.0), 64.0: TimeNoise(64.0, 2.0, 2.0), 2.0: TimeNoise(2.0, 0.0, 2.0)}


def report_of(scatter, measured, predicted=10.0, most=20.0):
    seen = msgspec.structs.replace(
        samples.verification(),
        time_noise=BUSY[scatter],
        measured_overhead_percent=measured,
        predicted_overhead_percent=predicted,
    )
    solution = msgspec.structs.replace(samples.solution(), overhead_percent=predicted)
    return msgspec.structs.replace(
        samples.compile_report(seen), solution=solution, asked=Asked(max_overhead_percent=most)
    )


@pytest.mark.parametrize(
    ("scatter", "measured", "kept"),
    [
        (2.0, 21.0, False),
        (2.0, 19.0, True),
        (64.0, 21.0, None),
        (64.0, 19.0, None),
        (64.0, 83.9, None),
        (64.0, 84.1, False),
        (64.0, -44.1, True),
        (None, 500.0, None),
    ],
)
def test_time_is_undecided_within_its_own_noise(scatter, measured, kept):
    report = report_of(scatter, measured)
    (promise,) = (each for each in report.promises if each.measure == "max_overhead")
    assert (promise.promised, promise.measured, promise.kept) == (20.0, measured, kept)
    assert ("not kept" in report.verdict) is (kept is False)


@pytest.mark.parametrize(
    ("scatter", "measured", "predicted", "dear"),
    [
        (2.0, 31.0, 10.0, True),
        (64.0, 31.0, 10.0, False),
        (64.0, 94.1, 10.0, True),
        (64.0, 31.0, 31.0, True),
        (None, 500.0, 10.0, False),
    ],
)
def test_a_price_within_the_noise_is_not_called_dear(scatter, measured, predicted, dear):
    assert ("DEAR" in report_of(scatter, measured, predicted).verdict) is dear


def test_what_others_do_meanwhile_hardly_changes_the_ratio_of_neighbours():
    first = [[20, 10], [20, 30], [10, 12], [50, 40], [11, 10]]  # another program comes and goes
    second = [[99, 90], [36, 40], [12, 20], [48, 70], [12, 13]]
    ratios = ratios_in_turn(first, second)
    assert ratios == [9.0, 1.8, 1.2, 1.2, 1.2]
    assert multiple_in_turn(ratios) == 1.2
    assert multiple_in_turn(ratios[:1]) == 9.0  # nothing else is there


@pytest.mark.parametrize(
    ("ratios", "sure"),
    [
        ([5.0], False),
        ([5.0, 1.0, 1.0], False),
        ([5.0, 1.0, 1.0, 1.0], True),
        ([5.0, 1.0, 1.1, 1.2], False),
        ([5.0, *(1.0, 1.1) * 50], True),
    ],
)
def test_turns_end_once_more_of_them_would_hardly_tell_more(ratios, sure):
    assert are_sure(ratios) is sure


def test_an_estimate_counts_as_far_as_turns_do_not_agree():
    calm, busy = [9.0, 1.5, 1.501, 1.502, 1.5], [9.0, 1.5, 2.6, 1.2, 1.9]
    assert weighed(multiple_in_turn(calm), multiple_error(calm), 1.1) == pytest.approx(1.5, abs=0.001)
    assert 1.1 < weighed(multiple_in_turn(busy), multiple_error(busy), 1.1) < multiple_in_turn(busy) - 0.1
    assert multiple_error([9.0]) is None
    assert weighed(1.7, multiple_error([1.7]), 1.1) == 1.7  # one turn says nothing of how sure it is
