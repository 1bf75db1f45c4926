"""Every kind of plan has all that the road asks of one: a row, a check, a type, and a way that does everything."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest

from remat_cli.base.errors import ConfigError
from remat_cli.base.named import named
from remat_cli.compiling import kinds
from remat_cli.compiling.kinds import WAYS, kind_of
from remat_cli.compiling.planned import Answered
from remat_cli.compiling.ways import Way, way
from remat_cli.core.files.plan_check import PART_CHECKS
from remat_cli.core.files.plan_file import PlanParts
from remat_cli.core.values.profile import Kind
from remat_cli.devices.provider_table import named_spec

ASKED = [name for name, each in vars(Way).items() if inspect.isfunction(each) and not name.startswith("_")]
"""What the road asks of a way."""


def kinds_of(found: type[Answered]) -> set[Kind]:
    """The kinds of what a compile may find, those of wings too."""
    own = {found.kind} if "kind" in vars(found) and isinstance(found.kind, str) else set()
    return own.union(*(kinds_of(each) for each in found.__subclasses__()))


def test_every_kind_has_a_row_and_a_type() -> None:
    for kind in WAYS:
        way(kind)  # which imports its wing
    assert kinds_of(Answered) == set(WAYS), "a type with that `kind`, in the wing or in compiling/planned.py"


def test_each_kind_of_file_is_checked() -> None:
    assert set(PART_CHECKS) == set(get_args(PlanParts))


@pytest.mark.parametrize(
    ("names", "is_spilled", "kind"),
    [
        (["cpu"], False, "one_model"),
        (["cpu"], True, "paged"),
        (["cpu", "cpu:1threads"], False, "sessions"),
        (["cpu", "cpu:1threads"], True, "paged"),
    ],
)
def test_devices_ask_for_one_kind(names: list[str], is_spilled: bool, kind: Kind) -> None:
    specs = [named_spec(name) for name in names]
    assert kind_of(specs, is_spilled=is_spilled) == kind
    assert sum(named(row.asked)(specs, is_spilled=is_spilled) for row in WAYS.values()) == 1


def test_a_kind_that_no_wing_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="plans of kind 'mirrored' are not known here"):
        way("mirrored")
    monkeypatch.setattr(kinds, "WAYS", {"one_model": WAYS["one_model"]})
    with pytest.raises(ConfigError, match="no kind of plan is known here for cpu with --spill"):
        kind_of([named_spec("cpu")], is_spilled=True)


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("kind", WAYS)
def test_a_way_does_all_that_is_asked_of_one(kind: Kind, name: str) -> None:
    """What it left out would be the Protocol's, which does nothing and gives None."""
    own, asked = getattr(type(way(kind)), name), getattr(Way, name)
    assert own is not asked
    assert [*inspect.signature(own).parameters] == [*inspect.signature(asked).parameters]
