from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from bench import devices, devices_measure
from bench.devices import BENCH, ENOUGH, FLOOR, NETWORKS, QUARTER, SETS, Case, main, next_budget
from bench.devices_measure import REPEATS, ROUNDS, RUNS, in_turns
from bench.devices_report import against_single, against_whole, floor_share_percent, gain_percent, markdown, verdict
from bench.devices_report import is_mixed as mixes
from remat_cli.core.values.verification import SessionsSeen
from sample_models.papers import paper_names

TINY = {"batch": 1, "resolution": 16, "width": 0.0625, "classes": 4}


def row(plan_ns=(90, 95), single_ns=(100, 101), ops=(3, 2), budget=ENOUGH, network="unet", **changed):
    """A measured row of two devices on one memory; the floor is 40 % of what keeping everything takes."""
    solution = {"fixed_bytes": 100, "floor_bytes": 140, "baseline_peak_bytes": 200, "peak_bytes": 200, "time": 80}
    solution |= {"gap_percent": 0.5, "overhead_percent": -11.1, "lower_bound_percent": -12.0}
    found = [
        {"name": name, "memory": "cpu", "budget_bytes": 200, "ops": count}
        for name, count in zip(SETS["cpu1+cpu2"], ops, strict=True)
    ]
    verification = {"outputs_identical": True, "outputs_close": True, "largest_difference": 0.0, "within_budget": True}
    verification |= {"predicted_peak_bytes": {"cpu": 200}, "measured_peak_bytes": {"cpu": 190}}
    measured = {"plan_ns": list(plan_ns), "single_ns": single_ns and list(single_ns), "verification": verification}
    measured["whole_ns"] = {"cpu:1threads": [150, 151], "cpu:2threads": [94, 96]}
    made = {"cpu": "some processor", "os": "Linux", "runtime": "onnxruntime 1", "python": "3.11"}
    report = {"solution": solution, "devices": found, "links": []}
    report["single"] = [{"device": "cpu:2threads", "time_ns": 88}, {"device": "cpu:1threads", "time_ns": None}]
    known = {"set": "cpu1+cpu2", "segments": 4, "outcome": "measured", "limit": "1s", "sizes": TINY, "machine": made}
    return {"network": network, "budget": budget, "report": report, "measured": measured, **known, **changed}


def without_plan(budget, outcome="impossible"):
    one = row(budget=budget, segments=0, outcome=outcome)
    del one["measured"]
    one["report"]["solution"] |= {
        "budget_bytes": 125,
        "time": None,
        "gap_percent": None,
        "overhead_percent": None,
        "peak_bytes": None,
    }
    return one


def test_every_network_is_one_of_the_papers():
    assert {name.split()[0] for name in NETWORKS} <= set(paper_names())


def test_the_committed_tables_are_what_the_committed_rows_say():
    rows = BENCH.rows()
    assert rows
    assert BENCH.page_path.read_text() == markdown(rows, ROUNDS * RUNS)


def test_committed_rows_claim_no_gain_that_was_not_measured_twice():
    for one in BENCH.rows():
        if one.get("measured") and against_single(one) == "faster":
            assert len(one["measured"]["plan_ns"]) == REPEATS
            assert max(one["measured"]["plan_ns"]) < min(one["measured"]["single_ns"])


def test_a_verdict_is_what_all_measurements_say():
    assert verdict([90, 95], [100, 101]) == "faster"
    assert verdict([90, 100], [100, 101]) == "within noise"
    assert verdict([102, 110], [100, 101]) == "slower"


def test_a_plan_on_one_device_is_not_compared_with_itself():
    assert mixes(row())
    assert not mixes(row(ops=(0, 5)))
    assert against_single(row(single_ns=None)) == ""
    assert against_single(row(ops=(0, 5))) == ""
    assert against_single(row()) == "faster"


def test_whole_sessions_are_represented_by_the_fastest():
    assert against_whole(row()) == "within noise"
    assert against_whole(row(plan_ns=(80, 93))) == "faster"


def test_a_gain_is_relative_to_the_rival():
    assert gain_percent(90, 100) == pytest.approx(10)
    assert gain_percent(110, 100) == pytest.approx(-10)


def test_findings_count_rows_and_name_them():
    rows = [row(), row(plan_ns=(103, 104), network="vgg16"), without_plan(QUARTER)]
    told = markdown(rows, 12)
    assert "3 budgets tried: 2 measured, 1 proved impossible. A quarter was reached in 0 of 1 cases." in told
    assert "measured faster in 1 (unet on cpu1+cpu2 at 100%), slower in 1 (vgg16 on cpu1+cpu2 at 100%)" in told
    assert "The largest measured gain is 5.0 % (unet on cpu1+cpu2 at 100%), planned 9.1 %" in told
    assert "unet on cpu1+cpu2 at 25%: impossible, one op alone takes 0.00 MiB, which is 40.0 %" in told


def test_no_gain_is_claimed_without_one():
    assert "no gain is claimed" in markdown([row(plan_ns=(100, 102))], 12)


def test_an_empty_bench_says_so():
    assert "Nothing was measured yet" in markdown([], 12)


def test_the_floor_is_a_share_of_what_planning_can_change():
    assert floor_share_percent(row()) == 40


def test_budgets_go_down_to_a_quarter_or_the_next_that_has_a_plan(tmp_path):
    case = Case("unet", "cpu1+cpu2", tmp_path)
    made = {}
    assert next_budget(case, made) == (ENOUGH, ENOUGH)
    made[case.key(ENOUGH)] = row()
    assert next_budget(case, made) == (QUARTER, QUARTER)
    made[case.key(QUARTER)] = without_plan(QUARTER)
    assert next_budget(case, made) == (FLOOR, "140B")
    made[case.key(FLOOR)] = row(budget=FLOOR)
    assert next_budget(case, made) is None
    made[case.key(FLOOR)] = without_plan(FLOOR, "no plan found")
    assert next_budget(case, made) == ("60%", "60%")


def test_nothing_smaller_is_tried_where_everything_is_needed(tmp_path):
    case = Case("unet", "cpu1+cpu2", tmp_path)
    refused = without_plan(QUARTER)
    refused["report"]["solution"]["floor_bytes"] = 200
    assert next_budget(case, {case.key(ENOUGH): row(), case.key(QUARTER): refused}) is None


def test_fresh_rows_replace_those_of_the_same_key_in_a_fixed_order():
    old = [row(budget=QUARTER), row(network="vgg16")]
    fresh = row(budget=QUARTER, limit="2s")
    assert [one["network"] for one in BENCH.merged(old, [fresh])] == ["vgg16", "unet"]
    assert BENCH.merged(old, [fresh])[1]["limit"] == "2s"


def test_all_rivals_take_turns_and_each_measurement_is_the_least_of_its_rounds():
    calls = []

    def timer(name, times):
        rest = iter(times)

        def run():
            calls.append(name)
            return next(rest)

        return run

    count = REPEATS * ROUNDS
    found = in_turns({"a": timer("a", range(count, 0, -1)), "b": timer("b", range(count))})
    assert calls == ["a", "b"] * count
    assert in_turns({"none": lambda: None}) == {"none": [None] * REPEATS}
    assert found["b"] == [ROUNDS * repeat for repeat in range(REPEATS)]
    assert found["a"] == [count - ROUNDS * (repeat + 1) + 1 for repeat in range(REPEATS)]


def test_a_part_of_the_bench_plans_measures_and_keeps_its_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(devices, "NETWORKS", {"unet": {**TINY, "resolution": (16, 16), "classes": 2}})
    monkeypatch.setattr(devices, "BENCH", dataclasses.replace(BENCH, folder=tmp_path))
    for name in ("REPEATS", "ROUNDS", "RUNS"):
        monkeypatch.setattr(devices_measure, name, 1)
    monkeypatch.setattr(devices, "LADDER", (QUARTER,))
    monkeypatch.setattr(devices_measure, "verify_sessions", lambda *_: (_seen(), None))
    monkeypatch.setattr(devices_measure, "run_fresh", lambda function, job: function(job, lambda *_: None))
    command = ["--only", "unet,cpu1+cpu2", "--write", "--time-limit", "1s", "--work", str(tmp_path / "work")]
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "devices.jsonl").read_text().splitlines()]
    assert [one["budget"] for one in rows] == [ENOUGH, QUARTER]
    assert rows[0]["outcome"] == "measured"
    assert set(rows[0]["measured"]["whole_ns"]) == set(SETS["cpu1+cpu2"])
    assert (tmp_path / "devices.md").read_text() == markdown(rows, ROUNDS * RUNS)
    monkeypatch.setattr(devices, "prepare", None)  # what was made is not made again
    again = CliRunner().invoke(main, command, catch_exceptions=False)
    assert again.exit_code == 0
    assert again.stdout == (tmp_path / "devices.md").read_text() + "\n"


def _seen():
    return SessionsSeen(
        reference="",
        outputs_identical=True,
        must_be_identical=True,
        outputs_close=True,
        largest_difference=0.0,
        predicted_peak_bytes={"cpu": 1},
        measured_peak_bytes={"cpu": 1},
        predicted_time_ns=1,
        measured_time_ns=1,
        measured_single_time_ns={},
        predicted_fixed_bytes={},
        measured_fixed_bytes={},
        runs=1,
        within_budget=True,
    )


def test_a_set_with_an_absent_device_is_skipped_with_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "SETS", {"gpu": ("cpu:2threads", "cuda:0")})
    monkeypatch.setattr(devices, "BENCH", dataclasses.replace(BENCH, folder=tmp_path))
    done = CliRunner().invoke(main, ["--only", "gpu"], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stderr.startswith("gpu: skipped, device 'cuda'")
    assert len(done.stderr.splitlines()) == 1
