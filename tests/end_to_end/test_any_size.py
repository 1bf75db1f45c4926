"""Promises hold on random encoders for all sizes: outputs at ten of them, and all that verification looks at."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.torch_like.any_size import any_size_outcome
from tests.torch_like.outcome import EXACT, NO_PLAN

FEW, MANY = (4,), range(200)
BUDGET = "50%"
MOST_WITHOUT = 0.05  # of encoders, which no plan was found for


pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.slow
@pytest.mark.parametrize("seed", FEW)
def test_promises_hold_at_all_sizes_of_a_few_random_encoders(tmp_path, seed):
    found = any_size_outcome(seed, BUDGET, tmp_path)
    assert (found.status, found.details) == (EXACT, ())


@pytest.mark.slow
def test_promises_hold_at_all_sizes_of_many_random_encoders(tmp_path):
    rows = [any_size_outcome(seed, BUDGET, tmp_path) for seed in MANY]
    broken = [row for row in rows if row.status not in (EXACT, NO_PLAN)]
    assert not broken, broken
    ends = Counter(row.status for row in rows)
    assert ends[NO_PLAN] <= MOST_WITHOUT * len(rows), ends
