"""Every kind of plan has all that the road asks of one: a row, a check, a type, and a way that does everything."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from remat_cli.compiling.planned import PlannedModel, Refused
from remat_cli.compiling.ways import WAYS, Way, way
from remat_cli.core.files.plan_check import KIND_CHECKS
from remat_cli.core.values.profile import Kind

ASKED = [name for name, each in vars(Way).items() if inspect.isfunction(each) and not name.startswith("_")]
"""What the road asks of a way."""


def test_every_kind_has_a_row_a_check_and_a_type() -> None:
    kinds = set(get_args(Kind))
    assert set(WAYS) == kinds, "WAYS in compiling/ways.py"
    assert set(KIND_CHECKS) == kinds, "KIND_CHECKS in core/files/plan_check.py"
    assert {each.kind for each in get_args(PlannedModel) if each is not Refused} == kinds, "compiling/planned.py"


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("kind", WAYS)
def test_a_way_does_all_that_is_asked_of_one(kind: Kind, name: str) -> None:
    """What it left out would be the Protocol's, which does nothing and gives None."""
    own, asked = getattr(type(way(kind)), name), getattr(Way, name)
    assert own is not asked
    assert [*inspect.signature(own).parameters] == [*inspect.signature(asked).parameters]
