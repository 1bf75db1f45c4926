"""Slicing rules on random ops of every family: what a rule accepts has the bits of the whole, with any threads."""

from __future__ import annotations

import pytest

from tests.splitting import random_ops_indexed, random_ops_lines, random_ops_window
from tests.splitting.dice import campaign

FAMILIES = (*random_ops_indexed.FAMILIES, *random_ops_lines.FAMILIES, *random_ops_window.FAMILIES)
FEW, MANY = range(4), range(1000, 1150)
MOST_BROKEN = 0.5  # of the ops of a family: the runtime lacks kernels for some combinations


def names(draw):
    return draw.__name__


@pytest.mark.parametrize("draw", FAMILIES, ids=names)
def test_a_few_ops_of_each_family(draw):
    count = campaign(draw, FEW)
    assert count.exact + count.refused > 0


@pytest.mark.slow
@pytest.mark.parametrize("draw", FAMILIES, ids=names)
def test_many_ops_of_each_family(draw):
    count = campaign(draw, MANY)
    assert count.broken < MOST_BROKEN * len(MANY)
    assert count.exact > 0
