"""Shards, resuming and classes of the campaign itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.batch import answer_in, left_in, rows_of
from tests.fuzz.campaign import KINDS, Kind, run_kind, sharded, shuffled
from tests.fuzz.mutants import mutant
from tests.fuzz.node_models import as_is
from tests.fuzz.outcomes import (
    BASELINE_REFUSED,
    CRASH,
    FAILED,
    FALSE_FIVE,
    HANG,
    NO_PLAN,
    OK,
    REFUSED,
    UNEXPECTED,
    Case,
    outcome_of,
    read_rows,
    reason_of,
    row_of,
)
from tests.fuzz.plan_mutants import ACCEPTED, DISPROVED, judge_plan

CASES = [Case("model", f"bytes {number}", "inspect") for number in range(10)]


def missing(case: Case, work: Path, materials: Path) -> list[str]:
    return ["inspect", str(work / "nothing.onnx")]


def dying(case: Case, work: Path, materials: Path) -> list[str]:
    import os

    if case.name == "bytes 1":
        os._exit(7)
    return missing(case, work, materials)


def sleeping(case: Case, work: Path, materials: Path) -> list[str]:
    import time

    if case.name == "bytes 1":
        time.sleep(1000)
    return missing(case, work, materials)


@pytest.mark.parametrize(
    ("code", "action", "outcome"),
    [
        *((0, "min", OK), (1, "min", FAILED), (2, "min", REFUSED), (4, "min", NO_PLAN), (5, "min", FALSE_FIVE)),
        *((4, "100%", BASELINE_REFUSED), (3, "100%", BASELINE_REFUSED), (-11, "min", CRASH)),
    ],
)
def test_exit_codes_have_classes(code, action, outcome):
    assert outcome_of(Case("node", "test_abs", action), code) == outcome


def test_an_exception_is_unexpected_whether_it_is_told_or_comes_through():
    case = CASES[0]
    assert outcome_of(case, 1, "error: unexpected ValueError: 3") == outcome_of(case, None) == UNEXPECTED
    assert outcome_of(case, 1, "error: ONNX Runtime cannot optimise x.onnx") == FAILED


def test_a_false_plan_is_refused_or_disproved_never_accepted():
    case = Case("plan", "instance removed 3", "verify")
    assert [judge_plan(case, outcome) for outcome in (OK, FALSE_FIVE, REFUSED)] == [ACCEPTED, DISPROVED, REFUSED]
    assert judge_plan(Case("plan", "field missing 3", "verify"), OK) == OK


def test_reasons_are_lines_without_what_is_particular():
    one = reason_of("error: model /tmp/fuzz_1/model.onnx: op 'Conv_3' has 12 inputs")
    assert one == reason_of("error: model /else/where.onnx: op 'Add' has 3.5 inputs")


def test_shards_are_all_cases_once():
    parts = [sharded(CASES, f"{index}/3") for index in (1, 2, 3)]
    assert sorted(case.key for part in parts for case in part) == sorted(case.key for case in CASES)
    with pytest.raises(ValueError, match="shard '4/3'"):
        sharded(CASES, "4/3")


@pytest.mark.slow
def test_every_case_of_the_campaign_is_one():
    for kind in KINDS.values():
        cases = kind.cases()
        assert len({case.key for case in cases}) == len(cases)
        assert shuffled(cases) == shuffled(cases[::-1])


def test_what_has_a_row_is_not_done_again(tmp_path, monkeypatch):
    asked = []

    def do(cases, materials):
        for case in cases:
            asked.append(case.key)
            yield row_of(case, OK)

    monkeypatch.setitem(KINDS, "model", Kind(lambda: CASES, do, 2))
    monkeypatch.setattr("tests.fuzz.campaign.make_materials", lambda folder: folder)
    run_kind("model", tmp_path, "1/1", None, most=4)
    path = tmp_path / "model-1-of-1.jsonl"
    path.write_bytes(path.read_bytes()[:-5])  # killed while it wrote the fourth
    assert len(read_rows(tmp_path)) == 3
    run_kind("model", tmp_path, "1/1", None)
    assert len(read_rows(tmp_path)) == len(CASES)
    assert len(asked) == len(CASES) + 1


def test_a_mutant_is_decided_by_its_seed():
    for name in ("bytes 12", "proto 13"):
        assert mutant(name) == mutant(name)
        assert mutant(name) != mutant(name[:-1] + "8")


@pytest.mark.parametrize(("prepare", "outcome"), [(dying, CRASH), (sleeping, HANG)])
def test_a_case_that_ends_or_stops_its_process_has_a_row_and_the_rest_goes_on(prepare, outcome, tmp_path):
    rows = list(rows_of(CASES[:3], prepare, as_is, tmp_path, limit=5))
    assert [row.outcome for row in rows] == [REFUSED, outcome, REFUSED]


def test_what_lies_about_is_found(tmp_path):
    folders = {name: tmp_path / name for name in ("home", "temporary", "work")}
    for name, path in (("temporary", "remat_0a1b2c3d/load_d79kxbqa"), ("home", ".config"), ("work", "")):
        (folders[name] / path).mkdir(parents=True)
    for name in ("model.onnx", "out.onnx", ".out.onnx.0123abcd.tmp"):
        (folders["work"] / name).touch()
    some = ("home/.config", "temporary/remat_*/load_*", "work/.out.onnx.*.tmp")
    assert left_in(folders, {"model.onnx"}, code=0) == some
    assert left_in(folders, {"model.onnx"}, code=2) == (*some, "work/out.onnx")


def test_a_report_that_says_no_says_why():
    lines = ["net.onnx  (1 op on cpu)", "", "VERIFICATION FAILED on ONNX Runtime 1.31.1", "  a session needs 3 bytes"]
    assert answer_in(lines) == "VERIFICATION FAILED on ONNX Runtime 1.31.1 a session needs 3 bytes"
    assert answer_in(lines[:2]) == ""
