"""Lines that the text of a compile shares, whether the plan is one model or cut into sessions."""

from __future__ import annotations

from remat_cli.core.verification import Verification
from remat_cli.report.compile import CompileReport
from remat_cli.report.solution import SolutionReport
from remat_cli.report.style import Style, percent, plural, shorten

MOST_NAMES = 3


def solver_line(solution: SolutionReport, against: str, more: str = "") -> str:
    """Who found the plan, what it costs against what, what is proved in which space, and how long it took."""
    if solution.status == "optimal":
        proof = "proved optimal"
    elif solution.lower_bound_percent is None:
        proof = "no bound proved"
    else:
        proof = f"proved least {percent(solution.lower_bound_percent)}, gap {solution.gap_percent or 0:.2f} %"
    found = f"{percent(solution.overhead_percent)} {against}, {proof} (space {solution.space}{more})"
    return f"{solution.solver}: {found}, {solution.seconds:.1f} s, seed {solution.seed}"


def recomputed(report: CompileReport) -> str:
    """How many ops are recomputed, and the first of them."""
    names = ", ".join(shorten(one.op, 32) for one in report.recomputes[:MOST_NAMES])
    left = len(report.recomputes) - MOST_NAMES
    more = f" and {left} more" if left > 0 else ""
    return f"{plural(report.solution.recomputed_ops or 0, 'recomputed op')}{f': {names}{more}' if names else ''}"


def verdict_lines(seen: Verification, style: Style, more: str = "") -> list[str]:
    """Whether all promises hold, else which do not."""
    runtime = f" on ONNX Runtime {seen.runtime_version}"
    if seen.passed:
        return [style.paint("verified", "good") + runtime + more]
    return [style.paint("VERIFICATION FAILED", "bad") + runtime] + [
        style.paint(f"  {failure}", "bad") for failure in seen.failures
    ]


def delivery_lines(report: CompileReport, how: str, style: Style) -> list[str]:
    """Which files were written, and how to run them."""
    lines = []
    if report.output is not None and report.plan is not None:
        lines += ["", f"model {report.output}", f"plan  {report.plan}"]
    if report.failed_output is not None:
        lines += ["", style.paint(f"nothing was delivered; the failed model is kept as {report.failed_output}", "bad")]
    if report.snippet and report.exit_code == 0:
        lines += ["", how, "", *(f"    {line}".rstrip() for line in report.snippet.rstrip().splitlines())]
    return lines
