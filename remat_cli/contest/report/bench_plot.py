"""Overhead and bound against time, one picture per instance and budget, one colour per solver."""

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from remat_cli.contest.report.bench_run import BenchRun
from remat_cli.contest.report.bench_table import LEAST_SECONDS, Group, group_runs
from remat_cli.report.pictures.svg_chart import draw_svg, require_matplotlib, undress

# Saturated colours that read on white and on a dark page, and stay apart for most colour-blind readers.
COLORS = ("#2f81f7", "#e5534b", "#3fb950", "#d29922", "#a371f7", "#39c5cf")
TARGET = "#8b949e"

Curve: TypeAlias = tuple[list[float], list[float]]
"""Times and values of a step line; a value that is not known is not a number."""


def bench_pictures(runs: Sequence[BenchRun]) -> Iterator[tuple[str, bytes]]:
    """File name and SVG of every row that has a plan: the median over seeds of each solver.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    require_matplotlib()
    for suite in dict.fromkeys(run.suite for run in runs):
        groups = group_runs(run for run in runs if run.suite == suite and not run.probe)
        labels = list(dict.fromkeys(group.label for group in groups))
        for row in dict.fromkeys(group.row for group in groups):
            mine = [group for group in groups if group.row == row]
            if any(run.has_plan for group in mine for run in group.runs):
                name = re.sub(r"[^A-Za-z0-9._]+", "-", " ".join((suite, *row))).strip("-")
                yield f"{name}.svg", row_svg(mine, labels)


def row_svg(groups: Sequence[Group], labels: Sequence[str]) -> bytes:
    """Draw the solvers of one row; `labels` are all of the suite, so that a solver has one colour everywhere."""

    def draw(axes: Any) -> None:
        for group in groups:
            # A solid line for the best plan, a dashed one for the proved bound.
            color = COLORS[labels.index(group.label) % len(COLORS)]
            overhead = group.overhead_percent
            name = f"{group.label}: {'no plan' if overhead is None else f'{overhead:+.2f} %'}"
            axes.step(*median_curve(group, 1), where="post", color=color, linewidth=1.8, label=name)
            times, bounds = median_curve(group, 2)
            if max(bounds) > 0:
                axes.step(times, bounds, where="post", color=color, linewidth=1.2, linestyle=(0, (4, 2)))
        if (target := groups[0].target_percent) is not None:
            axes.axhline(target, color=TARGET, linewidth=1.2, linestyle=(0, (1, 2)), label=f"published: {target:g} %")
        instance, budget, order = groups[0].row
        axes.set_xscale("log")
        axes.set_xlabel("seconds")
        axes.set_ylabel("overhead, %")
        axes.set_ylim(bottom=0)
        undress(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(0, 1.14), ncols=3, frameon=False, fontsize=9, borderaxespad=0)
        order_text = "order kept" if order == "keep" else "free order"
        title = f"{instance}, budget {budget}, {order_text} (dashed: proved bound)"
        axes.set_title(title, loc="left", pad=34, fontsize=12, fontweight="bold")

    return draw_svg((8.4, 4.0), draw)


def median_curve(group: Group, place: int) -> Curve:
    """Median over seeds, at every time at which one of them changed, of the plan (place 1) or the bound (place 2).

    A plan that is not there yet counts as worse than any, a bound as 0 %. The curve lasts to the end of the longest
    run; a run that ended keeps what it had.
    """
    missing = math.inf if place == 1 else 0.0
    ends = [run.seconds or 0.0 for run in group.runs]
    times = sorted({point[0] for run in group.runs for point in run.trace} | {max(ends)})
    shown = []
    for time in times:
        known = []  # what each run knew by then
        for run in group.runs:
            points = [point[place] for point in run.trace if point[0] <= time]
            known.append(next((float(each) for each in reversed(points) if each is not None), missing))
        middle = statistics.median(known)
        shown.append(middle if math.isfinite(middle) else math.nan)
    return [max(LEAST_SECONDS, time) for time in times], shown
