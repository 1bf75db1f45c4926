"""Seeds of one property: a few in the fast tests, the others in the slow ones."""

from __future__ import annotations

import pytest


def few(seeds: range, fast: int) -> list[object]:
    """All of them as parameters, marked slow but for the first ones."""
    return [*seeds[:fast], *(pytest.param(seed, marks=pytest.mark.slow) for seed in seeds[fast:])]
