"""The answer of `max-batch` as text."""

from __future__ import annotations

from remat_cli.base.units import format_bytes
from remat_cli.core.budget import describe_bytes
from remat_cli.report.style import Style, columns, duration, percent
from remat_cli.report.training import BatchProbe, MaxBatchReport

HEADINGS = ("batch", "fits", "peak", "peak, keep all", "extra time", "one forward pass", "time, keep all")


def max_batch_lines(report: MaxBatchReport, style: Style) -> list[str]:
    """The two batches, how they compare, and every batch that was tried."""
    lines = [style.paint(report.model, "strong"), f"budget {report.budget} = {describe_bytes(report.budget_bytes)}", ""]
    lines.append(f"largest batch, keep all    {report.keep_all_batch or 'none: not even one sample fits'}")
    lines.append(f"largest batch, recomputing {report.max_batch or 'none was found'}{_ratio(report)}")
    lines += _next_step(report)
    return [*lines, "", *columns([HEADINGS, *(_row(probe) for probe in report.probes)], "><>>>>>")]


def _next_step(report: MaxBatchReport) -> list[str]:
    """What to do where nothing fits."""
    if report.max_batch or not report.probes:
        return []
    needed = format_bytes(report.probes[0].baseline_peak_bytes)
    return [f"one sample needs {needed} when everything is kept: raise --budget, or the solver's --time-limit"]


def _ratio(report: MaxBatchReport) -> str:
    if not report.keep_all_batch or not report.max_batch:
        return ""
    return f"  ({report.max_batch / report.keep_all_batch:.2f} times)"


def _row(probe: BatchProbe) -> tuple[str, ...]:
    fits = "" if probe.fits is None else "yes" if probe.fits else "no"
    return (
        str(probe.batch),
        fits,
        "" if probe.peak_bytes is None else format_bytes(probe.peak_bytes),
        format_bytes(probe.baseline_peak_bytes),
        "" if probe.overhead_percent is None else percent(probe.overhead_percent),
        percent(100 * probe.forward_ns / probe.baseline_ns if probe.baseline_ns else None),
        duration(probe.baseline_ns),
    )
