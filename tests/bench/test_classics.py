from __future__ import annotations

import json
import math
import os

import msgspec
import pytest
from click.testing import CliRunner

from bench import classics
from bench.classics import RESULTS, in_order, is_wanted, main, missing, rotor_rows, rows_of, slot
from bench.classics_notes import NOTES
from bench.classics_plot import line_of, ratio_svg
from bench.classics_report import TABLE_2, duel_finding, markdown
from bench.classics_stats import duels, failures, is_refusal, optimum, ratio
from remat_cli.contest.bench_file import Bench, Target
from tests.contest.report.bench_runs import bench_run, without_plan

NETWORK = "vgg19_bs256_224_train"
REFUSAL = "solver rotor cannot take this problem: op 3 is read by two stages"


def row(label="auto", time=110, **changes):
    """A run with the order kept; the baseline takes 100."""
    known = {"suite": "ratio", "instance": NETWORK, "order": "keep", "label": label, "solver": label.split()[0]}
    known |= {"baseline_time": 100, "space": "first_in_order", "time": time, "lower_bound_percent": 0.0}
    return bench_run(**{**known, "overhead_percent": time - 100.0, **changes})


def no_plan(label, **changes):
    return without_plan(suite="ratio", instance=NETWORK, order="keep", label=label, solver=label, **changes)


def refused(label="rotor", **changes):
    return no_plan(label, status="error", message=REFUSAL, **changes)


def proved(time=105, **changes):
    return row("auto", time, status="optimal", lower_bound_percent=time - 100.0, **changes)


def test_the_committed_tables_are_what_the_committed_rows_say():
    rows = rows_of(RESULTS)
    assert rows
    text = markdown(rows, rotor_rows(RESULTS.with_name("rotor.jsonl")))
    assert RESULTS.with_suffix(".md").read_text() == text


def test_committed_rows_are_no_failures_and_need_no_file_of_one_machine():
    rows = rows_of(RESULTS)
    assert failures(rows) == []
    assert {row.instance_path.rpartition("/")[0] for row in rows} == {"../../../shared/instances"}


def test_every_published_ratio_has_a_reason_why_ours_differs():
    for network, methods in TABLE_2.items():
        for method, published in methods.items():
            assert published is None or (network, method) in NOTES or ("", method) in NOTES


def test_the_ratio_is_a_geometric_mean_over_budgets_with_a_plan():
    first, second = proved(budget="0.9", time=100), proved(budget="0.8", time=110)
    rows = [first, second, row("chen-sqrt AP", 120, budget="0.9"), row("chen-sqrt AP", 143, budget="0.8")]
    found = ratio(rows, NETWORK, "chen-sqrt AP")
    assert found.mean == pytest.approx(math.sqrt(1.2 * 1.3))
    assert (found.feasible, found.places, found.is_proved) == (2, 2, True)
    found = ratio([*rows[:3], no_plan("chen-sqrt AP", budget="0.8")], NETWORK, "chen-sqrt AP")
    assert found.mean == pytest.approx(1.2)
    assert (found.feasible, found.places) == (1, 2)
    assert ratio([first, no_plan("revolve")], NETWORK, "revolve").mean is None
    assert ratio([first, refused()], NETWORK, "rotor") is None
    assert ratio([first], NETWORK, "rotor") is None


def test_a_ratio_to_what_is_not_proved_says_so():
    rows = [row("auto", 105, lower_bound_percent=3.0), row("checkmate", 110)]
    best = optimum(rows, (NETWORK, "0.9"))
    assert (best.time, best.is_proved, best.solvers, best.gap_percent) == (105, False, ("auto",), 2.0)
    assert not ratio(rows, NETWORK, "checkmate").is_proved
    assert "1.048* (1/1)" in markdown(rows, [])
    assert "| 5.000? | within 2.000 % |" in markdown(rows, [])


def test_the_optimum_is_the_least_time_and_names_who_proved_it():
    staged = row("checkmate", 105, status="optimal", space="staged")
    assert optimum([staged, proved(), row("rotor", 105)], (NETWORK, "0.9")).solvers == ("checkmate", "auto")
    best = optimum([staged, row("auto", 104)], (NETWORK, "0.9"))  # the best staged one is not the best of all
    assert (best.time, best.is_proved) == (104, False)
    assert optimum([proved(order="free", time=101), staged], (NETWORK, "0.9")).time == 105
    assert optimum([no_plan("auto")], (NETWORK, "0.9")) is None


def test_auto_meets_the_best_classic_under_each_budget_and_order():
    rows = [row("rotor", 108), row("chen-sqrt AP", 120), proved(), row("auto", 103, order="free", suite="free order")]
    (fight,) = duels(rows, "keep")
    assert (fight.rival.label, fight.is_lost, fight.is_won) == ("rotor", False, True)
    assert not duels([row("rotor", 105), proved()], "keep")[0].is_won
    assert duels(rows, "free")[0].auto.time == 103
    assert "never worse than the best classic: better in 1, equal in 0, worse in 0 of 1" in markdown(rows, [])


def test_in_free_order_all_plans_of_classics_count_and_in_order_only_those_that_keep_it():
    free = {"order": "free", "suite": "free order"}
    rows = [row("rotor", 108), row("rotor", 102, **free), proved(), row("auto", 103, **free)]
    assert duels(rows, "keep")[0].rival.time == 108
    assert duels(rows, "free")[0].is_lost
    assert duels([row("rotor", 101), row("auto", 103, **free)], "free")[0].is_lost


def test_a_lost_row_is_said_out_loud():
    rows = [row("rotor", 104), proved(), row("rotor", 104, budget="0.8"), no_plan("auto", budget="0.8")]
    assert [fight.is_lost for fight in duels(rows, "keep")] == [True, True]
    told = duel_finding(duels(rows, "keep"), "keep")
    assert f"**worse than the best classic on {NETWORK} at 0.9: rotor; {NETWORK} at 0.8: rotor**" in told
    assert "worse in 2 of 2 rows" in told
    assert "| **WORSE** |" in markdown(rows, [])


def test_the_worst_run_of_auto_counts_and_every_run_of_a_classic():
    rows = [proved(), row("auto", 109, suite="ten minutes"), row("checkmate", 108, suite="ten minutes")]
    (fight,) = duels(rows, "keep")
    assert (fight.auto.time, fight.rival.time, fight.is_lost) == (109, 108, True)


def test_a_graph_that_a_method_does_not_take_is_no_failure_but_a_broken_promise_is():
    broken = no_plan("rotor", status="error", message="rotor: peak 9 bytes above the budget of 8 on cpu")
    assert is_refusal(refused())
    assert failures([refused(), broken, proved()]) == [broken]
    told = markdown([proved(), broken], [])
    assert f"Runs that failed: **rotor on {NETWORK} at 0.9: rotor: peak 9 bytes above" in told
    assert "Runs that failed: none: every plan was legal" in markdown([refused(), proved()], [])
    assert "| FAILED |" in told


def test_published_figures_stand_beside_what_was_reached():
    facts = {"variables": 12345, "constraints": 67}
    one = row("checkmate highs", 105, suite="published", instance="rl_g1", status="optimal", facts=facts)
    none = row("checkmate", 105, suite="ten minutes", instance="rl_g2", budget="0.8")
    told = markdown([one, none, proved()], [])
    assert "| rl_g1 | 0.9 | 0.8 | 18.5 | checkmate highs | optimal | 5.000 | 0.000 |" in told
    assert "| 12,345 | 67 |" in told
    assert "| rl_g2 | 0.8 | - | - | checkmate | feasible |" in told


def test_rows_of_another_bench_become_a_table():
    told = markdown([proved()], [{"stages": 100, "seconds": 0.51234}, {"stages": 340, "note": None}])
    assert "| stages | seconds | note |" in told
    assert "| 100 | 0.512 | - |" in told
    assert "The table of `rotor`" not in markdown([proved()], [])


def test_an_empty_bench_says_so():
    assert "Nothing was run yet" in markdown([], [])


def test_the_picture_has_a_line_for_every_method_with_a_plan():
    rows = [proved(), proved(budget="0.8", time=109), row("rotor", 120, budget="0.8"), no_plan("rotor")]
    assert line_of(rows, NETWORK, "rotor") == ([80.0], [20.0])
    assert line_of(rows, NETWORK, "auto") == ([80.0, 90.0], [9.0, 5.0])
    picture = ratio_svg(rows, NETWORK)
    assert picture.startswith(b"<?xml")
    assert picture == ratio_svg(rows, NETWORK)
    assert len(ratio_svg(rows[:2], NETWORK)) < len(picture)


def target(one, folder="."):
    return Target(msgspec.convert(msgspec.to_builtins(one), type=classics.BenchCase), folder)


def test_what_is_there_is_not_run_again_whatever_its_limit():
    known = row("rotor", time_limit_seconds=5.0)
    crashed = no_plan("revolve", status="crashed")
    targets = [target(row("rotor")), target(no_plan("revolve")), target(row("rotor", options={"slots": 9}))]
    assert slot(known) == slot(targets[0].case)
    assert missing(targets, [known, crashed]) == targets[1:]
    assert missing(targets, [known, crashed, refused("revolve")]) == targets[2:]


def test_the_latest_row_counts_in_the_order_of_the_bench_file():
    old, new, gone = row("rotor"), row("rotor", 107), row("gone")
    other = row("chen-sqrt AP")
    assert in_order([target(other), target(old)], [old, gone, other, new]) == [other, new]


def test_a_part_is_named_by_suite_instance_and_solver():
    one = row("rotor")
    assert is_wanted(one, ())
    assert is_wanted(one, ("ratio,vgg19,rotor",))
    assert is_wanted(one, ("no", "vgg19"))
    assert not is_wanted(one, ("ratio,vgg16",))
    assert not is_wanted(one, ("roto",))


def test_a_run_of_the_bench_keeps_rows_and_goes_on(tmp_path, monkeypatch):
    asked = []

    def run_case(case, path, watch):
        asked.append(case.label)
        return row(case.label, 105, time_limit_seconds=case.time_limit_seconds)

    targets = tuple(target(row(label)) for label in ("rotor", "auto", "chen-sqrt AP"))
    monkeypatch.setattr(classics, "run_case", run_case)
    monkeypatch.setattr(classics, "load_bench", lambda config, overrides: Bench(targets, ()))
    results = tmp_path / "out" / "classics.jsonl"
    command = ["--results", str(results), "--jobs", "2"]
    done = CliRunner().invoke(main, [*command, "--only", "rotor"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "1/1  ratio: vgg19_bs256_224_train 0.9 keep rotor: feasible, 5.000 %, 2.0 s" in done.stderr
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert sorted(asked) == ["auto", "chen-sqrt AP", "rotor"]
    assert [one.label for one in rows_of(results)] == ["rotor", "auto", "chen-sqrt AP"]
    assert results.with_suffix(".md").read_text() == markdown(rows_of(results), [])
    assert (tmp_path / "out" / "classics" / f"{NETWORK}.svg").is_file()


def test_without_the_graphs_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(classics, "load_bench", lambda config, overrides: Bench((), ("ratio: x.json: not there",)))
    done = CliRunner().invoke(main, ["--results", str(tmp_path / "classics.jsonl")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "skipped ratio: x.json: not there" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_at_once_and_says_what_is_there(tmp_path, monkeypatch, capsys):
    def interrupted(case, path, watch):
        raise KeyboardInterrupt

    left = []
    monkeypatch.setattr(classics, "run_case", interrupted)
    monkeypatch.setattr(os, "_exit", left.append)
    classics.run_all([target(row())], tmp_path / "classics.jsonl", 1)
    assert left == [130]
    assert "0 new rows are in" in capsys.readouterr().err


def test_rows_of_the_bench_of_rotor_are_read(tmp_path):
    path = tmp_path / "rotor.jsonl"
    assert rotor_rows(path) == []
    path.write_text("\n".join(json.dumps(one) for one in ({"stages": 1}, {"stages": 2})))
    assert rotor_rows(path) == [{"stages": 1}, {"stages": 2}]
