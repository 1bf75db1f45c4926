"""Small seeded samples of every kind of case: nothing unexpected, false or left. `make fuzz` does them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import KINDS, shuffled, told
from tests.fuzz.materials import make_materials
from tests.fuzz.outcomes import NOT_LOADED, Case
from tests.fuzz.plan_mutants import MUTATIONS

FEW_NODES = ("test_concat_2d_axis_1",)
FEW_MUTANTS = ("proto 631", "bytes 966")
MORE_MUTANTS = ("proto 31", "proto 277", "proto 49", "proto 955", "proto 553", "proto 607", "proto 223", "proto 901")
FEW_KILLS = ("KILL",)  # cli/test_interrupted.py sends the other one
MANY = {"node": 60, "model": 60, "plan": 48, "kill": 12}


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    return make_materials(tmp_path_factory.mktemp("materials"))


def check(kind: str, cases: list[Case], materials: Path) -> None:
    rows = list(KINDS[kind].do(cases, materials))
    assert [row.key for row in rows] == [case.key for case in cases]
    assert any(row.outcome != NOT_LOADED for row in rows)
    broken = [told(row) for row in rows if row.is_broken]
    assert not broken, "\n".join(broken)


@pytest.mark.slow
def test_a_few_node_models(materials):
    check("node", [case for case in KINDS["node"].cases() if case.name in FEW_NODES], materials)


@pytest.mark.parametrize(
    "names", [pytest.param(FEW_MUTANTS, marks=pytest.mark.slow), pytest.param(MORE_MUTANTS, marks=pytest.mark.slow)]
)
def test_a_few_broken_models(materials, names):
    check("model", [case for case in KINDS["model"].cases() if case.name in names], materials)


@pytest.mark.slow  # core/test_plan_check.py changes plans too
def test_a_few_broken_plans(materials):
    cases = shuffled(KINDS["plan"].cases())
    check("plan", [next(case for case in cases if case.name.startswith(way)) for way in MUTATIONS], materials)


def test_a_few_kills(materials):
    cases = KINDS["kill"].cases()
    check("kill", [next(case for case in cases if case.action == name) for name in FEW_KILLS], materials)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_sample_of_all(kind, materials):
    check(kind, shuffled(KINDS[kind].cases())[: MANY[kind]], materials)
