"""The advice of a dear plan: a larger budget whose plan takes less time, never its own or a smaller one."""

import pytest

from remat_cli.compiling.asked_for import next_cheaper
from remat_cli.core.values.promises import CheaperBudget

OWN = CheaperBudget(60, -5.0)


@pytest.mark.parametrize(
    ("known", "share", "overhead", "named"),
    [
        ([OWN], 59.3, -5.0, None),  # itself, its peak rounded up
        ([CheaperBudget(70, -5.0)], 60.0, -5.0, None),  # no less time
        ([CheaperBudget(70, -6.0)], 60.0, -5.0, None),  # hardly less
        ([CheaperBudget(70, -20.0)], 60.0, -5.0, 70),
        ([CheaperBudget(70, 0.0)], 60.0, 0.0, None),
        ([CheaperBudget(50, 2.0), CheaperBudget(60, 2.0)], 60.0, 40.0, None),  # no larger budget
        ([CheaperBudget(80, 2.0), CheaperBudget(70, 30.0), CheaperBudget(71, 31.0)], 60.0, 40.0, 70),
        ([CheaperBudget(100, 0.0)], 60.0, 40.0, None),  # the model as it is
    ],
)
def test_only_a_larger_budget_with_less_time_is_named(known, share, overhead, named):
    found = next_cheaper(known, share, overhead)
    assert (None if found is None else found.share_percent) == named
