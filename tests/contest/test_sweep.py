"""`remat sweep`: its cases, who runs them, what stays when somebody is lost or stops, and the curve of rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Progress
from remat_cli.contest.report.sweep_plot import sweep_svg
from remat_cli.contest.report.sweep_report import SweepReport, SweepRow, as_curve, rows_in
from remat_cli.contest.sweep_cases import SweepCase, parse_batches, parse_sweep_budgets
from remat_cli.contest.sweep_run import LostWorker, SweepRun, beginner
from remat_cli.report.style import Style


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("70..100%", ("100%", "90%", "80%", "70%")),
        ("50%..60%:5%", ("60%", "55%", "50%")),
        ("90%, 64MiB,min,90%", ("90%", "64MiB", "min")),
    ],
)
def test_budgets_are_a_range_or_a_list(text, budgets):
    assert parse_sweep_budgets(text) == budgets


@pytest.mark.parametrize("text", ["", "0..50%", "90..20%", "20..120%", "cpu=3MiB", "lots"])
def test_other_budgets_are_refused(text):
    with pytest.raises(ConfigError):
        parse_sweep_budgets(text)


def test_a_range_that_is_written_otherwise_is_told_how_to_write_it():
    with pytest.raises(ConfigError, match=r"'20-100' is not a budget: .*; a range is written 20\.\.100%"):
        parse_sweep_budgets("20-100")


def test_batches_double_or_are_listed():
    assert parse_batches("1..64") == (1, 2, 4, 8, 16, 32, 64)
    assert parse_batches("3..10") == (3, 6, 10)
    assert parse_batches("1, 8,24") == (1, 8, 24)
    assert parse_batches(None) == ()
    for text in ("0", "8..2", "a", "1,,2"):
        with pytest.raises(ConfigError, match="batch"):
            parse_batches(text)


def row(budget: int, peak: int | None = None, overhead: float | None = None, **more) -> SweepRow:
    found = "plan" if peak is not None else "none"
    more = {"found": found, **more}
    return SweepRow(
        key=str(budget), budget=f"{budget}%", budget_bytes=budget, peak_bytes=peak, overhead_percent=overhead, **more
    )


@st.composite
def found_rows(draw: st.DrawFn) -> list[SweepRow]:
    budgets = draw(st.lists(st.integers(2, 20), min_size=1, max_size=8, unique=True))
    rows = []
    for budget in budgets:
        has_plan = draw(st.booleans())
        peak = draw(st.integers(1, budget)) if has_plan else None
        rows.append(row(budget, peak, float(draw(st.integers(-10, 90))) if has_plan else None))
    return rows


@given(found_rows())
@settings(max_examples=200)
def test_no_row_is_slower_than_one_for_less_memory_and_the_curve_is_not_dominated(rows):
    curve = as_curve(rows)
    assert [each.budget_bytes for each in curve] == sorted((each.budget_bytes for each in rows), reverse=True)
    for large, small in itertools.combinations(curve, 2):
        if small.has_plan:
            assert large.has_plan
            assert large.overhead_percent <= small.overhead_percent
    for each in curve:
        if each.has_plan:
            assert each.peak_bytes <= each.budget_bytes
        better = [
            other
            for other in curve
            if other.has_plan
            and each.has_plan
            and other.peak_bytes <= each.peak_bytes
            and other.overhead_percent <= each.overhead_percent
            and (other.peak_bytes, other.overhead_percent) != (each.peak_bytes, each.overhead_percent)
        ]
        assert each.on_curve == (each.has_plan and not better)


def case(number: int) -> SweepCase:
    return SweepCase(Path("model.onnx"), None, f"{number}%", None, str(number))


class Scripted:
    """A case that comes to what a script says, one entry a try."""

    def __init__(self, script: list[object]) -> None:
        self.outcome = script.pop(0)
        self.closed = False

    def poll(self, seconds: float) -> SweepRow | None:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        self.closed = True


def swept(script: list[object], cases: int, stop: Callable[[], bool] = lambda: False) -> tuple[list[SweepRow], int]:
    rows: list[SweepRow] = []
    progress = Progress(lambda event: None, stop)
    missing = SweepRun(lambda case, told: Scripted(script), 1, rows.append, progress).work(
        [case(n) for n in range(1, cases + 1)]
    )
    return rows, missing


def test_a_lost_worker_has_its_case_done_once_more():
    gone = LostWorker("killed by signal 9")
    rows, missing = swept([gone, row(2, 1, 0.0), row(1, 1, 0.0)], 2)
    assert (len(rows), missing) == (2, 0)
    rows, missing = swept([gone, gone], 1)
    assert missing == 0
    assert [each.found for each in rows] == ["lost"]
    assert "signal 9" in rows[0].message


def test_what_there_is_stays_when_the_user_stops():
    seen: list[int] = []

    def stop() -> bool:
        seen.append(1)
        return len(seen) > 2

    rows, missing = swept([row(1, 1, 0.0), row(2, 1, 0.0), row(3, 1, 0.0)], 3, stop)
    assert (len(rows), missing) == (2, 1)
    report = SweepReport(model="m", results="r", curve=tuple(rows), missing=missing)
    assert report.exit_code == 130
    assert any("--resume" in line for line in report.lines(Style()))


@pytest.mark.parametrize("name", ["nowhere:factory", "json:loads_not", "builtins:dict", "plain"])
def test_what_makes_no_executor_is_refused(name):
    with pytest.raises(ConfigError, match="--executor"), beginner(name):
        pass


def test_rows_that_were_cut_short_are_left_out(tmp_path):
    file = tmp_path / "rows.jsonl"
    whole = msgspec.json.encode(row(1, 1, 0.0))
    file.write_bytes(whole + b"\n" + whole[:20])
    assert rows_in(file) == [row(1, 1, 0.0)]
    file.write_bytes(b"nonsense\n" + whole + b"\n")
    with pytest.raises(ConfigError, match="no rows of a sweep"):
        rows_in(file)


def test_a_picture_has_a_line_for_each_batch():
    rows = as_curve([row(9, 8, 0.0, batch=1), row(5, 5, 10.0, batch=1), row(9, 9, 0.0, batch=2), row(3, batch=2)])
    picture = sweep_svg(SweepReport(model="m", results="r", curve=rows)).decode()
    assert picture.startswith("<?xml")
    assert picture == sweep_svg(SweepReport(model="m", results="r", curve=rows)).decode()


def open_chain(path: Path) -> Path:
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("ReduceMean", ["c"], ["y"], axes=[1], keepdims=0),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", ("n", 16)), ("y", ("n",)))
    ]
    weights = [numpy_helper.from_array(random.standard_normal((16, 16), np.float32), "w")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_a_sweep_on_an_executor_and_again_with_what_it_found(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    model, rows = open_chain(tmp_path / "chain.onnx"), tmp_path / "rows.jsonl"
    words = {"budgets": "100%,60%", "batch": "1024,2048", "output": rows, "verify": "off", "time_limit": "4s"}
    words["max_overhead"] = "1000%"
    executor = "concurrent.futures:ThreadPoolExecutor"
    report = remat_cli.sweep(model, executor=executor, **words)
    assert report.exit_code == 0
    assert report.new_rows == 4
    assert {each.batch for each in report.curve} == {1024, 2048}
    assert all(each.has_plan for each in report.curve)
    assert len(rows.read_text().splitlines()) == 4
    kept = rows.read_text().splitlines()[:3]
    rows.write_text("\n".join(kept) + "\n")
    again = remat_cli.sweep(model, executor=executor, resume=True, **words)
    assert again.new_rows == 1
    there = {json.loads(line)["key"]: line for line in rows.read_text().splitlines()}
    assert all(there[json.loads(line)["key"]] == line for line in kept)
    with pytest.raises(ConfigError, match="exists"):
        remat_cli.sweep(model, executor=executor, **words)


@pytest.mark.slow
def test_a_sweep_in_processes_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    model = open_chain(tmp_path / "chain.onnx")
    report = remat_cli.sweep(model, budgets="100%,60%", dim={"n": 2048}, time_limit="2s")
    assert report.exit_code == 0
    assert [each.budget for each in report.curve] == ["100%", "60%"]
    assert (tmp_path / "chain.sweep.jsonl").is_file()
