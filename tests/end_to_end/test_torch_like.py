"""Promises hold on random models that look like exports: same outputs, planned order, peaks to the byte."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.torch_like.outcome import ERROR, EXACT, FAILED, LEARNT, Outcome, outcome_of
from tests.torch_like.survey import summary

FEW, SOME, MANY = (28,), (9, 10, 17, 38, 43), range(1000, 1500)
LEAST_EXACT = 0.95  # of the plans, whose first prediction was exact


pytestmark = pytest.mark.usefixtures("cache")


def test_promises_hold_on_a_few_random_models(tmp_path):
    check([outcome_of(seed, "min", tmp_path, capped_run=False, time_limit="1s") for seed in FEW])


@pytest.mark.slow
def test_promises_hold_on_some_more_that_once_failed(tmp_path):
    check([outcome_of(seed, "min", tmp_path, capped_run=False, time_limit="1s") for seed in SOME])


@pytest.mark.slow
def test_promises_hold_on_many_random_models(tmp_path, capsys):
    outcomes = []
    for seed in MANY:
        for budget in ("min", "60%"):
            outcomes.append(outcome_of(seed, budget, tmp_path, capped_run=False))
        (tmp_path / f"torch_like_{seed}.onnx").unlink()
    with capsys.disabled():
        tell(summary(outcomes))
    check(outcomes)
    planned = [found for found in outcomes if found.status in (EXACT, LEARNT)]
    at_once = sum(found.status == EXACT for found in planned)
    assert at_once >= LEAST_EXACT * len(planned), summary(outcomes)


def check(outcomes: Iterable[Outcome]) -> None:
    """No row is refused, and every plan that there is keeps its promises."""
    broken = [found for found in outcomes if found.status in (ERROR, FAILED)]
    assert not broken, "\n".join(line for found in broken for line in (found.line, *found.details))


def tell(lines: Iterable[str]) -> None:
    """Print in the middle of a test run."""
    print("", *lines, sep="\n", flush=True)  # noqa: T201
