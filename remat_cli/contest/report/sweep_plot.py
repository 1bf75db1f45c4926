"""The trade-off curve as an SVG picture: time against memory, a line for each batch."""

from typing import Any

from remat_cli.contest.report.sweep_report import SweepReport
from remat_cli.report.pictures.svg_chart import COLORS, INK, draw_svg, undress

MIB = 2**20


def sweep_svg(report: SweepReport) -> bytes:
    """Draw a sweep; plans on the curve are joined, others are light.

    Raises:
        MissingDependency: matplotlib is not installed.
    """

    def draw(axes: Any) -> None:
        batches = list(dict.fromkeys(row.batch for row in report.curve))
        for place, batch in enumerate(batches):
            rows = [row for row in report.curve if row.batch == batch and row.has_plan and row.peak_bytes is not None]
            color = COLORS[place % len(COLORS)]
            points = sorted(((row.peak_bytes or 0) / MIB, row.overhead_percent or 0.0, row.on_curve) for row in rows)
            best = [(size, time) for size, time, on_curve in points if on_curve]
            label = "promised" if batch is None else f"batch {batch}"
            axes.plot(*zip(*best, strict=True) if best else ([], []), "o-", color=color, label=label, linewidth=1.6)
            rest = [(size, time) for size, time, on_curve in points if not on_curve]
            axes.plot(*zip(*rest, strict=True) if rest else ([], []), "o", color=color, alpha=0.35)
        axes.axhline(0, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
        axes.set_xlabel("live memory, MiB")
        axes.set_ylabel("time on top, % (predicted)")
        axes.set_title(f"Trade-off: {report.model}", loc="left", fontsize=12, fontweight="bold")
        axes.legend(frameon=False, fontsize=10)
        undress(axes)

    return draw_svg((8.4, 3.9), draw)
