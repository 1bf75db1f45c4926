"""What pages, how much and when, as values that become JSON, and as lines for people."""

from collections.abc import Iterator

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.paging.paging import PageTransfer
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem, device_tensor_ids
from remat_cli.core.values.verification import PagingSeen
from remat_cli.report.style import columns, duration, plural, shorten

MOST_TENSORS = 5


class PagedTensorReport(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is away meanwhile. Times are planned, in nanoseconds since a run begins.

    It leaves when session `last_session` and its write (`written_ns`: start and end) are over, and is read
    (`read_ns`) for session `next_session`. To make it again instead would take `recompute_ns` at least (None: its op
    cannot be repeated), and more where `missing_input`, which its op reads, is not there then either.
    """

    tensor: str
    size_bytes: int
    last_session: int
    next_session: int
    written_ns: tuple[int, int]
    read_ns: tuple[int, int]
    recompute_ns: int | None
    missing_input: str | None = None


class PagedWeightsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that are there only in the turn of a session: read from their files (`read_ns`), and never written.

    `size_bytes` is what is read of them, in whole pages, and `packed_bytes` the most that copies of the session's own
    take, after which what was read goes (0: they are read where they are, and go when the session is over).
    """

    session: int
    weights: tuple[str, ...]
    size_bytes: int
    packed_bytes: int
    read_ns: tuple[int, int]


class PagingReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan pages, largest tensors first; `without_paging_ns` is the best plan that pages nothing, if one fits.

    `weights` are those that page, in the order of sessions, `released_bytes` what they would take all through, and
    `opening_ns` what it takes in a run to open sessions over them. `overhead_percent` is what all of it costs.
    """

    memory: str
    write_bytes_per_second: float
    read_bytes_per_second: float
    file_bytes: int
    written_bytes: int
    read_bytes: int
    stall_ns: int
    without_paging_ns: int | None
    tensors: tuple[PagedTensorReport, ...]
    overhead_percent: float = 0.0
    weights: tuple[PagedWeightsReport, ...] = ()
    released_bytes: int = 0
    opening_ns: int = 0

    @property
    def weight_bytes(self) -> int:
        """What is read of weights in a run."""
        return sum(each.size_bytes for each in self.weights)


def paging_report(
    graph: Graph, problem: Problem, plan: Plan, paged: PagedPlan, without_paging_ns: int | None = None
) -> PagingReport:
    """All that pages in a plan."""
    paging = paged.paging
    found = sorted(_tensors(graph, problem, plan, paged), key=lambda each: (-each.size_bytes, each.written_ns))
    return PagingReport(
        memory=paging.memory.name,
        write_bytes_per_second=paging.memory.write_bytes_per_second,
        read_bytes_per_second=paging.memory.read_bytes_per_second,
        file_bytes=paging.file_bytes,
        written_bytes=paging.written_bytes,
        read_bytes=paging.read_bytes,
        stall_ns=paging.stall_ns,
        without_paging_ns=without_paging_ns,
        tensors=tuple(found),
        overhead_percent=100 * (paging.time_ns / problem.baseline_time_ns - 1) if problem.baseline_time_ns else 0.0,
        weights=tuple(_weights(graph, paged)),
        released_bytes=paged.sessions.released_bytes,
        opening_ns=_opening_ns(paged),
    )


def _opening_ns(paged: PagedPlan) -> int:
    durations = zip(paged.sessions.steps, paged.sessions.problem.durations_ns, strict=True)
    return sum(duration for step, duration in durations if step.kind == "load")


def _weights(graph: Graph, paged: PagedPlan) -> Iterator[PagedWeightsReport]:
    """What is read of weights, in the order of sessions."""
    sessions, ticks = paged.sessions, paged.paging.memory.link.ticks
    starts = {m.tensor: m.start for m in paged.schedule.transfers if m.direction == "read"}
    packed = {tensor.uses[-1]: tensor.size_bytes for tensor in sessions.packed}
    for number, image in enumerate(sessions.images, len(sessions.instances)):
        tensor = sessions.problem.tensors[number]
        end = starts[number] + sessions.problem.transfer_ticks(number, "read")
        yield PagedWeightsReport(
            session=image.session,
            weights=tuple(graph.weights[weight].name for weight in image.weights),
            size_bytes=tensor.size_bytes,
            packed_bytes=packed[tensor.uses[-1] + 1] if image.is_packed else 0,
            read_ns=(starts[number] // ticks, end // ticks),
        )


def _tensors(graph: Graph, problem: Problem, plan: Plan, paged: PagedPlan) -> list[PagedTensorReport]:
    sessions, ticks = paged.sessions, paged.paging.memory.link.ticks
    ids = device_tensor_ids(graph, problem)

    def span(tensor: int, start: int, is_write: bool) -> tuple[int, int]:
        end = start + sessions.problem.transfer_ticks(tensor, "write" if is_write else "read")
        return start // ticks, end // ticks

    writes = {m.tensor: span(m.tensor, m.start, True) for m in paged.schedule.transfers if m.direction == "write"}
    found = []
    for move in paged.schedule.transfers:
        if move.direction == "read" and move.tensor < len(sessions.instances):
            spec = sessions.problem.tensors[move.tensor]
            made = plan.instances[sessions.instances[move.tensor]]
            op = problem.ops[problem.tensors[made.tensor].producer]
            found.append(
                PagedTensorReport(
                    tensor=graph.tensors[ids[made.tensor]].name,
                    size_bytes=spec.size_bytes,
                    last_session=sessions.steps[spec.uses[move.gap]].session,
                    next_session=sessions.session_at(spec.uses[move.gap + 1]),
                    written_ns=writes[move.tensor],
                    read_ns=span(move.tensor, move.start, False),
                    recompute_ns=op.time_ns[0] if op.repeatable else None,
                    missing_input=_missing(graph, problem, plan, paged, move),
                )
            )
    return found


def _missing(graph: Graph, problem: Problem, plan: Plan, paged: PagedPlan, move: PageTransfer) -> str | None:
    """What the op of a value that is read reads and is gone, or away, by then; None where all of it is there."""
    sessions = paged.sessions
    session = sessions.session_at(sessions.problem.tensors[move.tensor].uses[move.gap + 1])
    last = len(paged.paging.firsts)
    first_step = paged.paging.firsts[session] if session < last else len(plan.schedule.steps)
    away = paged.away_in(session - 1) if session else frozenset()
    ids = device_tensor_ids(graph, problem)
    for read in plan.reads[plan.instances[sessions.instances[move.tensor]].birth]:
        instance = plan.instances[read]
        is_kept = problem.tensors[instance.tensor].kept
        if read in away or (instance.death < first_step and not is_kept):
            return graph.tensors[ids[instance.tensor]].name
    return None


def paging_lines(report: PagingReport) -> list[str]:
    """How much goes where, what that stalls, and the largest tensors and weights."""
    tensors = tensor_lines(report.tensors[:MOST_TENSORS], len(report.tensors))
    most = sorted(report.weights, key=lambda each: (-each.size_bytes, each.session))[:MOST_TENSORS]
    return [*_heading(report), *tensors, *weight_lines(report, tuple(sorted(most, key=lambda each: each.session)))]


def all_paging_lines(report: PagingReport) -> list[str]:
    """The same with every tensor and all weights."""
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
