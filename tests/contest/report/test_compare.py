from __future__ import annotations

import importlib.util
import json
from xml.etree import ElementTree

import pytest

from remat_cli.base.errors import MissingDependency
from remat_cli.contest.report.compare_plot import COLORS, bound_line, compare_svg, lines_of, spread
from remat_cli.contest.report.compare_report import NotApplicable
from remat_cli.report import render_json, render_text
from remat_cli.report.style import Style
from tests.contest.report.compare_samples import RUNS, compare_report, run

MIB = 2**20


def text(**changes) -> str:
    return render_text(compare_report(**changes), Style())


def names_at(report, budget: str) -> list[str]:
    return [run.solver for run in report.runs_at(budget)]


def test_best_first_and_auto_first_among_equals():
    assert names_at(compare_report(), "90%") == ["auto", "moccasin", "checkmate", "rotor", "keep-all"]
    assert names_at(compare_report(), "0.5") == ["auto", "rotor", "keep-all", "moccasin", "checkmate"]


def test_every_plan_of_the_least_time_is_marked():
    table = text().split("budget 90%")[1].split("budget 0.5")[0].splitlines()[2:7]
    assert [line.split()[:2] for line in table[:2]] == [["*", "auto"], ["*", "moccasin"]]
    assert not any("*" in line for line in table[2:])


def test_a_budget_below_the_floor_is_one_line():
    below = text().split("budget 10MiB")[1]
    assert "infeasible: no schedule of whole ops needs less than 20,971,520 bytes (20.00 MiB)" in below
    assert "rotor" not in below


def test_reasons_of_those_that_do_not_apply():
    assert "does not apply:\n  multi-chain: op conv_7 has two readers in the forward part\n" in text()
    both = (NotApplicable("revolve", "no marks"), NotApplicable("rotor", "no marks"))
    assert "does not apply:\n  revolve, rotor: no marks\n" in text(not_applicable=both)
    assert "does not apply" not in text(not_applicable=())


def test_solvers_without_a_plan_say_why_where_they_know():
    late = {"status": "not_found", "facts": {"unfinished": "time was up"}}
    large = {"status": "not_found", "facts": {"least_peak_bytes": 99 * MIB}}
    runs = (
        *(run(name, 0, None, **large) for name in ("revolve", "rotor")),
        run("checkmate", 0, None, **late),
        run("keep-all", 0, None, status="not_found"),
        run("chen-sqrt", 0, 1100, facts={"least_peak_bytes": 80 * MIB}),
    )
    block = text(runs=runs).split("budget 90%")[1].split("\n\n")[0]
    assert block.endswith(
        "    no plan:\n"
        "      revolve, rotor: the schedules it tried need 99.00 MiB or more\n"
        "      checkmate: time was up"
    )
    assert "no plan:" not in text(runs=runs[-1:])


def test_the_legend_explains_the_spaces_that_are_there():
    runs = (run("auto", 0, 1010), run("moccasin", 0, 1010, space="staged_c3"))
    legend = text(runs=runs).split("* least time; ")[1]
    assert "bound: no schedule of that space has less\n" in legend
    assert "space free: all schedules\n" in legend
    assert "no op twice between two of them; no op more than 3 times" in " ".join(legend.split())
    assert max(map(len, legend.splitlines())) <= Style().width
    assert "first_in_order" not in legend
    assert "least time" not in text(runs=(), floor_bytes=99 * MIB)


def test_figures_are_told_though_the_picture_could_not_be_written():
    report = compare_report(picture_error="a.svg cannot be written: No space left on device")
    assert report.exit_code == 1
    assert render_text(report, Style()).endswith("no picture: a.svg cannot be written: No space left on device\n")


def test_an_interrupted_comparison_says_so_with_its_exit_code():
    report = compare_report(runs=RUNS[:5], missing_runs=10)
    assert report.exit_code == 130
    shown = render_text(report, Style())
    assert "interrupted: 10 runs had not ended" in shown
    assert "no run had ended" in shown.split("budget 0.5")[1]
    assert compare_report().exit_code == 0


def test_json_has_the_fields_of_solve_in_each_run():
    report = json.loads(render_json(compare_report()))
    assert report["model"] == "nets/unet.train.onnx"
    assert report["budgets"][0] == {"text": "90%", "bytes": 90 * MIB}
    assert (report["baseline_peak_bytes"], report["baseline_time"], report["fixed_bytes"], report["floor_bytes"]) == (
        100 * MIB,
        1000,
        2 * MIB,
        20 * MIB,
    )
    assert report["not_applicable"] == [
        {"solver": "multi-chain", "reason": "op conv_7 has two readers in the forward part"}
    ]
    first = report["runs"][1]
    assert (first["solver"], first["budget"], first["status"], first["overhead_percent"]) == (
        "moccasin",
        "90%",
        "feasible",
        1.0,
    )
    assert {
        *("options", "space", "budget_bytes", "peak_bytes", "time", "lower_bound_percent", "gap_percent"),
        *("recomputed_ops", "seconds", "seconds_to_best", "seed", "facts"),
    } <= set(first)


def test_bounds_of_smaller_spaces_do_not_count():
    report = compare_report()
    assert report.bound_percent("90%") == 0.4
    assert report.bound_percent("0.5") == 0.2
    assert report.bound_percent("10MiB") is None
    staged = compare_report(runs=(run("rotor", 0, 1300, space="first_in_order", lower_bound_percent=3.0),))
    assert staged.bound_percent("90%") is None
    kept = compare_report(runs=staged.runs, order="keep")
    assert kept.bound_percent("90%") == 3.0


def test_a_proof_of_a_smaller_space_makes_nothing_impossible():
    report = compare_report()
    assert not report.is_impossible("0.5")
    assert report.is_impossible("10MiB")


def test_lines_leave_out_budgets_without_a_plan():
    lines = {line.solver: line for line in lines_of(compare_report())}
    assert list(lines) == ["moccasin", "auto", "rotor", "checkmate"]
    assert (lines["auto"].budgets, lines["auto"].overheads) == ((50.0, 90.0), (8.0, 1.0))
    assert (lines["checkmate"].budgets, lines["checkmate"].overheads) == ((90.0,), (2.0,))
    assert len({(line.color, line.mark) for line in lines.values()}) == 4


def test_every_solver_of_the_registry_has_looks_of_its_own():
    from remat_cli.solvers import SOLVERS

    lines = lines_of(compare_report(runs=tuple(run(name, 0, 1100) for name in SOLVERS)))
    assert len({(line.color, line.mark) for line in lines}) == len(SOLVERS)


def test_the_bound_of_a_budget_holds_for_smaller_ones():
    assert bound_line(compare_report()) == ([50.0, 90.0], [0.4, 0.4])


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", COLORS)
def test_colours_read_on_white_and_on_a_dark_page(color):
    dark = luminance("#0d1117")
    assert 1.05 / (luminance(color) + 0.05) >= 3
    assert (luminance(color) + 0.05) / (dark + 0.05) >= 3


def test_labels_keep_apart():
    assert spread([0.1, 0.1, 0.5, 0.12], 0.05) == pytest.approx([0.1, 0.15, 0.5, 0.2])
    assert spread([], 0.05) == []
    assert spread([0.97, 0.2, 0.99, 0.98], 0.05) == pytest.approx([0.9, 0.2, 1.0, 0.95])


def test_one_bad_solver_does_not_flatten_the_others():
    figure = pytest.importorskip("matplotlib.figure")
    from remat_cli.contest.report.compare_plot import draw_overheads

    def height(worst: int) -> float:
        """Where 8 % is beside that worst of all, as a share of the picture's height."""
        axes = figure.Figure().add_subplot()
        draw_overheads(axes, compare_report(runs=(run("rotor", 0, 1080), run("checkpoint-last", 0, worst))))
        return float((axes.transData + axes.transAxes.inverted()).transform((90, 8))[1])

    assert 0.3 < height(21_000) < height(1200) < 1
    assert height(1081) > 0.9


def test_svg_is_deterministic_and_has_a_line_per_solver():
    pytest.importorskip("matplotlib")
    one, two = compare_svg(compare_report()), compare_svg(compare_report())
    assert one == two
    assert ElementTree.fromstring(one).tag == "{http://www.w3.org/2000/svg}svg"
    for line in lines_of(compare_report()):
        assert line.color.encode() in one


def test_svg_without_a_spread_of_overheads():
    pytest.importorskip("matplotlib")
    assert compare_svg(compare_report(runs=(run("auto", 0, 1000),))).startswith(b"<?xml")


def test_svg_without_matplotlib_names_the_pip_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'remat_cli\[svg\]'"):
        compare_svg(compare_report())
