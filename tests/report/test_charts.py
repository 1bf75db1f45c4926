from __future__ import annotations

import importlib.util
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.base.errors import MissingDependency
from remat_cli.report.pictures.svg_chart import Curve, Shading, inspect_svg, memory_svg
from remat_cli.report.pictures.terminal_chart import Band, ChartRule, memory_chart, resample
from remat_cli.report.style import Style
from tests.report import samples

MIB = 2**20


def test_chart_shows_peak_budget_and_axis():
    lines = memory_chart([MIB, 4 * MIB, 2 * MIB], rules=[ChartRule("budget", 3 * MIB)], rows=8, style=Style(46))
    assert lines == [
        "  4.00 MiB ┤           ███████████",
        "           │╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌",
        "           │           ███████████",
        "           │           ███████████",
        "  2.00 MiB ┤           █████████████████████",
        "           │           █████████████████████",
        "           │████████████████████████████████",
        "           │████████████████████████████████",
        "  0.00 MiB └────────────────────────────────",
        "                       ▲",
        "            peak 4.00 MiB at step 1",
        "            ╌╌ budget 3.00 MiB",
    ]


def test_mark_stands_under_the_peak():
    for width in (40, 60, 100):
        lines = memory_chart([1, 1, 9, 1], rows=3, style=Style(width))
        assert lines[0].index("█") == lines[4].index("▲")


def test_fixed_part_is_shaded_and_starts_the_axis_when_it_dominates():
    shaded = memory_chart([3 * MIB, 4 * MIB], fixed_bytes=2 * MIB, rows=4, style=Style(40))
    assert "░" in shaded[3]
    above = memory_chart([90 * MIB, 91 * MIB], fixed_bytes=89 * MIB, rows=4, style=Style(40))
    assert above[4].startswith("  89.00 MiB └")


def test_bars_over_the_budget_are_red():
    lines = memory_chart([MIB, 4 * MIB], rules=[ChartRule("budget", 3 * MIB)], rows=4, style=Style(40, has_color=True))
    assert "\x1b[31m█" in lines[1]
    assert "\x1b[36m█" in lines[3]


def test_far_away_budget_is_left_out():
    assert not any(
        "budget" in line for line in memory_chart([MIB], rules=[ChartRule("budget", 99 * MIB)], style=Style(40))
    )


def test_bands_are_marked_under_their_steps():
    bands = [Band("1", 0, 1, "in tiles"), Band("2", 2, 2, "in tiles")]
    lines = memory_chart([MIB, 4 * MIB, MIB, MIB], bands=bands, rows=4, style=Style(46))
    axis, marks = lines[4], lines[5]
    width = axis.count("─")
    assert marks[axis.index("─") :] == "1" + "━" * (width // 2 - 1) + "2" + "━" * (width // 4 - 1)
    assert lines[-1].strip() == "━━ in tiles"
    assert lines[0].index("█") == axis.index("─") + width // 4  # step 1 begins half way into band 1
    ascii_marks = memory_chart([1, 2], bands=bands[:1], rows=2, style=Style(40, has_unicode=False))[3]
    assert ascii_marks.strip() == "1" + "=" * (len(ascii_marks.strip()) - 1)


@given(st.integers(1, 300), st.integers(40, 120), st.data())
def test_marks_never_leave_the_chart(count, width, data):
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first, count - 1))
    lines = memory_chart([1] * count, bands=[Band("12", first, last)], rows=2, style=Style(width))
    assert len(lines[3]) <= len(lines[2])
    assert lines[3].strip()[0] == "1"


def test_no_steps():
    assert memory_chart([]) == ["  (no steps)"]


@given(st.lists(st.integers(0, 2**45), min_size=1, max_size=400), st.integers(0, 2**45), st.integers(40, 160))
def test_chart_is_as_wide_as_the_screen_and_never_fails(values, budget, width):
    lines = memory_chart(values, rules=[ChartRule("budget", budget)], style=Style(width))
    assert max(len(line) for line in lines[:11]) <= width
    assert any("▲" in line for line in lines)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=300), st.integers(1, 200))
def test_resampling_keeps_the_peak(values, width):
    shown = resample(values, width)
    assert len(shown) == width
    assert max(shown) == max(values)


def test_svg_is_deterministic_and_well_formed():
    pytest.importorskip("matplotlib")
    one, two = (memory_svg([Curve("before", [1, 5 * MIB]), Curve("after", [3, 2])], 2 * MIB, "net") for _ in range(2))
    assert one == two
    assert ElementTree.fromstring(one).tag == "{http://www.w3.org/2000/svg}svg"
    assert b"<dc:date>" not in one


def test_svg_of_a_plan_has_both_curves():
    pytest.importorskip("matplotlib")
    both = inspect_svg(samples.inspect_report())
    assert both != memory_svg([Curve("memory", samples.inspect_report().memory_bytes)])


def test_svg_shades_regions():
    pytest.importorskip("matplotlib")
    curves = [Curve("after", [3, 2, 1])]
    plain, shaded = memory_svg(curves), memory_svg(curves, shading=Shading("in tiles", [("1", 0, 1), ("2", 2, 2)]))
    assert b"#d29922" not in plain
    assert shaded.count(b"#d29922") >= 5  # two bands, their marks, an entry in the legend
    assert b"#d29922" in inspect_svg(samples.split_inspect_report())
    assert b"#d29922" in inspect_svg(samples.proposal_report())
    assert b"#d29922" not in inspect_svg(samples.inspect_report())


def test_steps_of_unlike_graphs_are_drawn_over_time():
    assert Curve("a", [5, 6]).edges == [0.0, 1.0, 2.0]
    assert Curve("a", [5, 6], [2_000_000, 500_000]).edges == [0.0, 2.0, 2.5]


def test_svg_without_matplotlib_names_the_pip_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'remat_cli\[svg\]'"):
        memory_svg([Curve("memory", [1])])
