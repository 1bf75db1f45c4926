"""What pages, planned and measured, as lines for people."""

from remat_cli.base.units import format_bytes
from remat_cli.core.values.verification import PagingSeen
from remat_cli.paging.values import PagedInspectReport, PagedReport, PagedVerifyReport
from remat_cli.report.devices.devices_text import placed_lines, placed_verify_lines
from remat_cli.report.devices.inspection_devices import placed_inspect_lines
from remat_cli.report.paging import PagedTensorReport, PagedWeightsReport, PagingReport
from remat_cli.report.style import Style, columns, duration, plural, shorten

MOST_TENSORS = 5


def paged_compile_lines(report: PagedReport, style: Style) -> list[str]:
    """A plan that pages: what of it, and how to run it."""
    seen = report.verification
    return placed_lines(
        report, paging_lines(report.paging), () if seen is None else paging_seen_lines(seen.paging), style
    )


def paged_verify_lines(report: PagedVerifyReport, style: Style) -> list[str]:
    """The verdict of a verification of a plan that pages, and the figures behind it."""
    return placed_verify_lines(report, paging_seen_lines(report.verification.paging), style)


def paged_inspect_lines(report: PagedInspectReport, style: Style) -> list[str]:
    """A plan that pages, with every tensor and all weights."""
    return placed_inspect_lines(report, all_paging_lines(report.paging), style)


def paging_lines(report: PagingReport) -> list[str]:
    """How much goes where, what that stalls, and the largest tensors and weights."""
    tensors = tensor_lines(report.tensors[:MOST_TENSORS], len(report.tensors))
    most = sorted(report.weights, key=lambda each: (-each.size_bytes, each.session))[:MOST_TENSORS]
    return [*_heading(report), *tensors, *weight_lines(report, tuple(sorted(most, key=lambda each: each.session)))]


def all_paging_lines(report: PagingReport) -> list[str]:
    """Lines on what pages, with every tensor and all weights."""
    tensors = tensor_lines(report.tensors, len(report.tensors))
    return [*_heading(report), *tensors, *weight_lines(report, report.weights)]


def _heading(report: PagingReport) -> list[str]:
    rates = f"{report.write_bytes_per_second / 1e9:.2f} GB/s out, {report.read_bytes_per_second / 1e9:.2f} GB/s back"
    moved = f"{format_bytes(report.written_bytes)} out, {format_bytes(report.read_bytes)} back"
    count = plural(len(report.tensors), "tensor")
    lines = [f"pages {count} to {report.memory} ({rates}): {moved}, stalls of {duration(report.stall_ns)} planned"]
    if report.without_paging_ns is not None:
        lines.append(f"recomputing alone takes {duration(report.without_paging_ns)} within this budget")
    return lines


def tensor_lines(tensors: tuple[PagedTensorReport, ...], count: int) -> list[str]:
    """A table of tensors, and how many more there are."""
    if not tensors:
        return []
    rows = [("tensor", "bytes", "out", "back", "away in sessions", "making it again takes", "after that of")]
    for each in tensors:
        again = "not repeatable" if each.recompute_ns is None else f"from {duration(each.recompute_ns)}"
        needed = "" if each.missing_input is None else shorten(each.missing_input, 30)
        away = f"{each.last_session + 2} to {each.next_session}"
        name, size = shorten(each.tensor, 40), format_bytes(each.size_bytes)
        rows.append((name, size, _at(each.written_ns), _at(each.read_ns), away, again, needed))
    more = [f"  and {count - len(tensors)} more"] if count > len(tensors) else []
    return [*columns(rows, "<>>>>><"), *more]


def weight_lines(report: PagingReport, weights: tuple[PagedWeightsReport, ...]) -> list[str]:
    """What weights that page cost, and a table of them."""
    if not report.weights:
        return []
    read, released = format_bytes(report.weight_bytes), format_bytes(report.released_bytes)
    cost = f"+{report.overhead_percent:.1f} % planned in all"
    lines = [
        f"weights page: {read} are read in each run, none written, so that {released} need not stay ({cost})",
        f"sessions are opened over them for their turn, which takes {duration(report.opening_ns)} of a run",
    ]
    rows = [("weights", "bytes", "back", "for session", "its packed copy")]
    for each in weights:
        more = f" and {len(each.weights) - 1} more" if len(each.weights) > 1 else ""
        packed = format_bytes(each.packed_bytes) if each.packed_bytes else "none"
        name = shorten(each.weights[0], 40) + more
        rows.append((name, format_bytes(each.size_bytes), _at(each.read_ns), str(each.session + 1), packed))
    left = len(report.weights) - len(weights)
    return [*lines, *columns(rows, "<>>>>"), *([f"  and {left} more"] if left else [])]


def _at(span: tuple[int, int]) -> str:
    return f"{span[0] / 1e6:.1f} to {span[1] / 1e6:.1f} ms"


def paging_seen_lines(seen: PagingSeen) -> list[str]:
    """Stalls and resident memory, planned beside measured."""
    rows = [("", "planned", "measured")]
    rows.append(("stalls", duration(seen.planned_stall_ns), duration(seen.measured_stall_ns)))
    if seen.resident is not None:
        run = seen.resident.peak_bytes - seen.resident.opened_bytes
        rows.append(("held in a run", format_bytes(seen.planned_run_bytes), f"{format_bytes(run)} resident"))
        rows.append(("open sessions", "", f"{format_bytes(seen.resident.opened_bytes)} resident"))
    if seen.process_bytes is not None:
        held = f"{format_bytes(seen.process_bytes)} resident"
        rows.append(("process, inputs included", f"at most {format_bytes(seen.budget_bytes)}", held))
    return columns(rows, "<>>")
