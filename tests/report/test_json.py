from __future__ import annotations

import json

import msgspec
import pytest

from remat_cli.report import render_json
from tests.report import samples
from tests.report.test_text import REPORTS

SOLUTION_KEYS = [
    "solver",
    "status",
    "space",
    "budget_bytes",
    "fixed_bytes",
    "floor_bytes",
    "floor_with_splitting_bytes",
    "baseline_peak_bytes",
    "peak_bytes",
    "baseline_time",
    "time",
    "overhead_percent",
    "lower_bound_percent",
    "gap_percent",
    "recomputed_ops",
    "seconds",
    "seconds_to_best",
    "seed",
]

VERIFICATION_KEYS = [
    "outputs_identical",
    "order_honoured",
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "measured_peak_default_session_bytes",
    "original_default_session_peak_bytes",
    "smallest_cap_bytes",
    "original_smallest_cap_bytes",
    "capped_run_ok",
    "runtime_version",
    "predicted_overhead_percent",
    "measured_overhead_percent",
]


def as_json(report):
    return json.loads(render_json(report))


@pytest.mark.parametrize("name", REPORTS)
def test_json_is_one_ascii_object(name):
    text = render_json(REPORTS[name]())
    assert text.isascii()
    assert text.endswith("}\n")
    assert isinstance(json.loads(text), dict)


def test_solve_has_the_documented_keys_at_the_top():
    values = as_json(samples.solve_report())
    assert set(SOLUTION_KEYS) <= set(values)
    assert values["solver"] == "local-search"
    assert values["overhead_percent"] == pytest.approx(10.0)
    assert values["lower_bound_percent"] == pytest.approx(5.0)
    assert values["gap_percent"] == pytest.approx(5.0)
    assert values["recomputed_ops"] == 1


def test_compile_has_solution_and_verification():
    values = as_json(samples.compile_report())
    assert set(SOLUTION_KEYS) <= set(values["solution"])
    assert set(VERIFICATION_KEYS) <= set(values["verification"])


REGION_KEYS = [
    "ops",
    "exits",
    "axis",
    "tiles",
    "extent",
    "halo_percent",
    "kept",
    "peak_before_bytes",
    "peak_after_bytes",
    "time_before_ns",
    "time_after_ns",
    "overhead_percent",
    "steps",
    "is_estimate",
]


@pytest.mark.parametrize("name", ["compile_split", "inspect_split_plan", "inspect_proposal"])
def test_regions_have_the_documented_keys(name):
    (region,) = as_json(REPORTS[name]())["regions"]
    assert list(region) == REGION_KEYS
    assert region["is_estimate"] is (name == "inspect_proposal")


def test_floors_of_whole_ops_and_with_splitting_stand_side_by_side():
    solution = as_json(samples.split_report())["solution"]
    assert solution["floor_with_splitting_bytes"] < solution["floor_bytes"]
    assert as_json(samples.compile_report())["solution"]["floor_with_splitting_bytes"] is None
    report = as_json(samples.split_inspect_report())
    assert report["floor_with_splitting_bytes"] < report["floor_bytes"] < report["baseline_peak_bytes"]


def test_without_splits_there_are_no_regions_and_no_obstacle():
    values = as_json(samples.compile_report())
    assert (values["regions"], values["split_obstacle"]) == ([], None)
    assert "must exist whole" in as_json(samples.obstacle_report())["split_obstacle"]


def test_unknown_is_null():
    values = as_json(samples.solve_report("not_found"))
    assert [values[key] for key in ("peak_bytes", "time", "overhead_percent", "gap_percent", "recomputed_ops")] == [
        None
    ] * 5


def test_not_a_number_is_null():
    odd = msgspec.structs.replace(samples.solution(), facts={"ratio": float("nan")})
    assert as_json(msgspec.structs.replace(samples.solve_report(), solution=odd))["facts"] == {"ratio": None}


def test_names_beyond_ascii_survive():
    report = msgspec.structs.replace(samples.solve_report(), instance="größe.json")
    assert as_json(report)["instance"] == "größe.json"
