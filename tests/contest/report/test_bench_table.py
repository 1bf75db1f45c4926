from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from remat_cli.base.errors import ModelError
from remat_cli.contest.report.bench_plot import bench_pictures, median_curve
from remat_cli.contest.report.bench_run import BenchReport, case_key, encode_run, read_runs
from remat_cli.contest.report.bench_table import (
    bench_lines,
    bench_markdown,
    bench_tables,
    duel,
    group_runs,
    moves_per_second,
    seconds_to,
    smallest_fraction,
    speed_up,
)
from remat_cli.report.style import Style
from tests.contest.report.bench_runs import bench_run, without_plan


def slow(**changes):
    """A run of another solver: 3 % after 1 s, 2 % after 50 s."""
    values = {"solver": "moccasin", "label": "moccasin", "trace": ((1.0, 3.0, 0.0), (50.0, 2.0, 0.0))}
    return bench_run(**(values | changes))


def test_medians_count_what_was_not_reached_as_worst():
    (group,) = group_runs([bench_run(seed=0), bench_run(seed=1, overhead_percent=4.0), without_plan(seed=2)])
    assert group.overhead_percent == 4.0
    assert group.median(lambda run: run.seconds_to_first) == 0.1
    (group,) = group_runs([bench_run(seed=0), without_plan(seed=1), without_plan(seed=2)])
    assert group.overhead_percent is None
    (group,) = group_runs([bench_run(seed=0), bench_run(seed=1, lower_bound_percent=None)])
    assert group.bound_percent == 0.5


def test_seconds_to_an_overhead():
    run = bench_run()
    assert seconds_to(run, 5.0) == 0.1
    assert seconds_to(run, 2.0) == 0.5
    assert seconds_to(run, 4.9) == 0.5
    assert seconds_to(run, 1.9) is None


def test_speed_up_is_measured_at_the_target_else_at_the_result_of_the_reference():
    fast, reference = group_runs([bench_run(target_percent=3.0), slow(target_percent=3.0)])
    assert speed_up(fast, reference) == pytest.approx(1.0 / 0.5)
    assert speed_up(reference, reference) is None
    fast, reference = group_runs([bench_run(target_percent=1.0), slow(target_percent=1.0)])  # nobody is there
    assert speed_up(fast, reference) == pytest.approx(50.0 / 0.5)
    fast, reference = group_runs([bench_run(), slow(trace=((1.0, 1.5, None),), overhead_percent=1.5)])
    assert speed_up(fast, reference) is None  # it never gets there


def test_duel_counts_rows():
    runs = [
        *(bench_run(instance="a"), slow(instance="a")),
        *(bench_run(instance="b"), slow(instance="b", overhead_percent=3.0, trace=((1.0, 3.0, None),))),
        *(bench_run(instance="c"), without_plan(instance="c", label="moccasin")),
        *(without_plan(instance="d"), without_plan(instance="d", label="moccasin")),
        bench_run(instance="e"),
    ]
    found = duel(group_runs(runs), "auto", "moccasin")
    counts = (found.rows, found.better, found.equal, found.worse, found.only_first, found.only_second)
    assert counts == (4, 1, 1, 0, 1, 0)
    assert (found.reached, found.speed_up) == (2, pytest.approx((100 + 2) / 2))
    back = duel(group_runs(runs), "moccasin", "auto")
    assert (back.better, back.worse, back.only_second) == (0, 1, 1)


def test_moves_are_found_in_nested_facts():
    assert moves_per_second(bench_run(facts={"local-search": {"moves": 300}})) == 200
    assert moves_per_second(bench_run(facts={"search": {"moves": 1, "moves_per_second_per_core": 7.0}})) == 7
    assert moves_per_second(bench_run()) is None


def test_smallest_budget_with_a_plan():
    probes = [bench_run(probe=True, budget=budget) for budget in ("0.7", "0.5")]
    assert smallest_fraction([*probes, without_plan(probe=True, budget="0.3")]) == 0.5
    assert smallest_fraction([]) is None


def test_tables_have_one_row_per_solver_and_only_columns_that_say_something():
    table, against = bench_tables([bench_run(target_percent=3.0, reference="moccasin"), slow(reference="moccasin")])
    assert table.title == "small (1 seed, 2 s a run, 1 threads)"
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert row["instance"] == "net"
    assert (row["overhead %"], row["bound %"], row["gap %"]) == ("2.00", "1.00", "1.00")
    assert (row["target %"], row["to target s"], row["x sooner"]) == ("3", "0.500", "2")
    assert "moves/s" not in table.head
    assert len(table.align) == len(table.head)
    assert against.rows[0][:2] == ("auto", "moccasin")


def test_tight_table_takes_the_baseline_where_nothing_smaller_was_found():
    runs = [
        *(bench_run(probe=True, budget=budget, seed=0) for budget in ("0.5", "0.75")),
        without_plan(probe=True, budget="0.5", seed=1),
    ]
    (table,) = bench_tables(runs)
    assert table.rows == (("net", "9", "free", "auto", "0.75", "0.5 to 1", "0.400"),)


def test_text_and_markdown():
    failed = without_plan(label="bad", status="crashed", message="killed by signal 9", overhead_percent=None)
    report = BenchReport(results="r.jsonl", runs=(bench_run(), slow(), failed), new_runs=2, skipped=("s: x.json",))
    text = "\n".join(bench_lines(report, Style()))
    assert "3 runs in r.jsonl, 2 of them new" in text
    assert "net 0.9 bad: killed by signal 9" in text
    assert "skipped s: x.json" in text
    assert report.exit_code == 1
    page = bench_markdown(report)
    assert "## small (1 seed" in page
    assert "| net | 9 | 0.9 | free | auto | feasible | 2.00 | 1.00 | 1.00 |" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows[:5]} == {rows[0].count("|")}


def test_curves_are_medians_over_seeds():
    (group,) = group_runs([bench_run(), bench_run(seed=1, trace=((0.2, 4.0, 1.0),), seconds=3.0)])
    times, overheads = median_curve(group, 1)
    assert times == [0.1, 0.2, 0.3, 0.5, 3.0]
    assert math.isnan(overheads[0])  # one of two has no plan yet
    assert overheads[1:] == [4.5, 4.5, 3.0, 3.0]
    assert median_curve(group, 2)[1] == [0.0, 0.5, 1.0, 1.0, 1.0]


def test_pictures_are_svg_with_a_name_per_row():
    pytest.importorskip("matplotlib")
    runs = [bench_run(target_percent=3.0), slow(), without_plan(instance="other")]
    pictures = dict(bench_pictures(runs))
    assert list(pictures) == ["small-net-0.9-free.svg"]
    assert ET.fromstring(pictures["small-net-0.9-free.svg"]).tag.endswith("svg")
    assert dict(bench_pictures(runs)) == pictures


def test_results_file_round_trip(tmp_path):
    runs = (bench_run(), without_plan(seed=1))
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(map(encode_run, runs)) + b'{"suite": "cut o')
    assert read_runs(path) == runs
    path.write_text("{}\n")
    with pytest.raises(ModelError, match=r"r\.jsonl line 1: .*missing required field"):
        read_runs(path)


def test_key_ignores_what_only_tables_use():
    one = case_key(bench_run())
    assert case_key(bench_run(target_percent=1.0, reference="x", time=7)) == one
    assert case_key(bench_run(seed=1)) != one
    assert case_key(bench_run(options={"a": 1})) != one
