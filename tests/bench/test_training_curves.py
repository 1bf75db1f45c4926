from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import pytest
from click.testing import CliRunner

from bench import training_curves
from bench.curves_plot import compiled_of, curve_svg, floor_of, frontier, solvers_of
from bench.curves_report import share_percent, verdict
from bench.training_curves import BENCH, CURVES, MISSES, PARTS, applicable, budgets, main, prepared
from remat_cli.core.values.profile import OpCost
from remat_cli.runtime.measure.profilers import Measured
from sample_models.papers import paper_names

TINY = {"batch": 2, "resolution": 32, "width": 0.0625, "classes": 4}


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """A tiny training step; every op is said to take as long as any other, so that nothing is timed."""
    folder = tmp_path_factory.mktemp("step")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(folder / "cache"))
        patch.setattr("remat_cli.compiling.profile.measure", _not_measured)
        return prepared("vgg16", TINY, folder)


def _not_measured(model, feeds, names, request, advance, beside):
    return Measured(ops=tuple(OpCost(name=name, time_ns=1000) for name in names), run_ns=1000, packed_bytes=0)


def point(solver, budget, peak, overhead, bound=None):
    return {
        "solver": solver,
        "budget": f"{budget}%",
        "budget_bytes": budget,
        "space": "free",
        "status": "feasible",
        "peak_bytes": peak,
        "overhead_percent": overhead,
        "lower_bound_percent": bound,
    }


def curve_row(points):
    facts = {"ops": 9, "fixed_bytes": 10, "kept_bytes": 5, "floor_bytes": 40, "baseline_bytes": 110, "baseline_ns": 100}
    return {"part": "curve", "network": "vgg16", "sizes": TINY, **facts, "points": points}


def test_every_case_is_a_network_of_the_papers():
    for cases, _ in PARTS.values():
        assert set(cases) <= set(paper_names())


def test_a_prepared_step_says_what_keeping_everything_takes_and_what_no_plan_goes_below(subject):
    facts = subject.facts()
    assert facts["ops"] == facts["baseline_ns"] / 1000
    assert 0 < facts["fixed_bytes"] < facts["floor_bytes"] <= facts["baseline_bytes"]
    assert facts["kept_bytes"] > 0


def test_all_solvers_that_take_the_problem_are_asked_but_not_the_reference(subject, monkeypatch):
    registry = {"auto": "remat_cli.solvers.portfolio:Auto", "keep-all": "remat_cli.solvers.keep_all:KeepAll"}
    monkeypatch.setattr(training_curves, "SOLVERS", registry)
    assert applicable(subject.problem) == ("auto",)


def test_a_solver_that_does_not_take_the_problem_is_left_out(subject, monkeypatch):
    class Choosy:
        def supports(self, problem):
            return "not this one"

    monkeypatch.setattr(training_curves, "make_solver", lambda name: Choosy())
    assert applicable(subject.problem) == ()


def test_budgets_end_at_the_floor_and_none_lies_below():
    assert budgets({"fixed_bytes": 10, "baseline_bytes": 110, "floor_bytes": 70}) == ("90%", "80%", "70%", "60%", "70")


def test_a_solver_that_keeps_finding_nothing_is_not_asked_again(subject):
    wanted = ("10%", "9%", "8%", "7%")
    found = list(training_curves._points(subject, "keep-all", wanted, 1.0))
    statuses = [one["status"] for one in found]
    assert "not_tried" not in statuses[:MISSES]
    assert statuses[MISSES:] == ["not_tried"] * (len(wanted) - MISSES)


def test_what_a_solver_reaches_is_judged_within_its_budget(subject):
    kept = training_curves._point(subject, "keep-all", "100%", 1.0)
    assert (kept["status"], kept["overhead_percent"]) == ("optimal", 0.0)
    assert kept["peak_bytes"] <= kept["budget_bytes"] == subject.facts()["baseline_bytes"]


def test_only_plans_that_no_other_beats_are_on_the_line():
    points = [point("auto", 80, 3 << 20, 1.0), point("auto", 60, 2 << 20, 2.0), point("auto", 50, 2 << 20, 4.0)]
    worse = point("auto", 90, 4 << 20, 1.5)
    none = {"solver": "auto", "status": "not_tried", "budget": "40%"}
    assert frontier([worse, *points, none, point("other", 10, 1, 0.0)], "auto") == [(2.0, 2.0), (3.0, 1.0)]


def test_the_picture_shows_all_solvers_the_bound_and_what_was_measured():
    row = curve_row([point("moccasin", 60, 60, 3.0), point("auto", 60, 60, 2.0, 1.0)])
    bare = curve_svg(row, [])
    assert solvers_of(row) == ["auto", "moccasin"]
    assert bare.startswith(b"<?xml")
    assert len(curve_svg(row, [{"measured_peak_bytes": 60, "measured_overhead_percent": 2.5}])) > len(bare)
    assert len(curve_svg(curve_row(row["points"][:1]), [])) < len(bare)


def test_the_floor_is_the_highest_that_was_proved():
    proved = {**point("auto", 40, None, None), "status": "infeasible", "floor_bytes": 50}
    assert floor_of(curve_row([point("auto", 60, 60, 2.0), proved])) == 50
    assert floor_of(curve_row([])) == 40


def test_measured_plans_are_those_of_the_same_network():
    rows = [{"part": "measured", "network": name, "compiled": [name]} for name in ("vgg16", "unet")]
    assert compiled_of([*rows, {"part": "quarter", "network": "unet", "compiled": ["no"]}], "unet") == ["unet"]


def test_fresh_rows_replace_those_of_the_same_part_and_network():
    old = [{"part": "batch", "network": "vgg16", "age": 1}, {"part": "curve", "network": "vgg16", "age": 1}]
    fresh = [{"part": "curve", "network": "vgg16", "age": 0}]
    assert BENCH.merged(old, fresh) == [fresh[0], old[0]]


def test_the_verdict_compares_with_what_was_published_or_says_why_not():
    row = {**curve_row([]), "network": "resnet18"}
    assert share_percent(row, 60) == 50
    assert verdict(row, point("auto", 25, 35, 3.6)) == "beaten"
    assert verdict(row, point("auto", 25, 35, 3.7, 3.0)) == "not beaten"
    assert "no schedule" in verdict(row, point("auto", 25, 35, 4.0, 3.8))
    assert verdict(row, point("auto", 25, None, None)) == "no plan found"
    infeasible = {**point("auto", 25, None, None), "status": "infeasible", "floor_bytes": 60}
    assert "50.0 %" in verdict(row, infeasible)


def test_a_run_of_part_of_the_bench_updates_its_rows_and_tables(tmp_path, monkeypatch):
    def quick(name, sizes, folder, limits):
        facts = {key: value for key, value in curve_row([]).items() if key not in ("part", "network", "sizes")}
        return {**facts, "limit_seconds": limits.curve_seconds, "points": [point("auto", 60, 60, 2.0, 1.0)]}

    monkeypatch.setattr(training_curves, "PARTS", {"curve": (CURVES, quick)})
    monkeypatch.setattr(training_curves, "BENCH", dataclasses.replace(BENCH, folder=tmp_path))
    done = CliRunner().invoke(main, ["--parts", "curve", "--networks", "vgg16", "--write"], catch_exceptions=False)
    assert done.exit_code == 0
    (row,) = [json.loads(line) for line in (tmp_path / "training_curves.jsonl").read_text().splitlines()]
    assert (row["network"], row["sizes"]) == ("vgg16", CURVES["vgg16"])
    table = (tmp_path / "training_curves.md").read_text()
    assert "### vgg16 (10 s for each plan)" in table
    assert f"{float(Fraction(30, 100) * 100):.1f}" in table  # the floor's share: (40 - 10) of (110 - 10)
    assert (tmp_path / "training_curves" / "vgg16.svg").exists()
