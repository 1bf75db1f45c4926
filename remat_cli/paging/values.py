"""Reports of plans that page: what compiling, verifying and inspecting one found."""

from collections.abc import Iterator

from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.paging.paging import PageTransfer
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem, device_tensor_ids
from remat_cli.core.values.verification import PagedSeen
from remat_cli.report.devices.placed_inspection import PlacedInspectReport
from remat_cli.report.devices.sessions import SessionsReport, SessionsVerifyReport
from remat_cli.report.paging import PagedTensorReport, PagedWeightsReport, PagingReport
from remat_cli.report.style import Style, lines_of


class PagedReport(SessionsReport, frozen=True, kw_only=True):
    """One compilation to sessions on one device that page to another memory, and what they page."""

    verification: PagedSeen | None = None
    paging: PagingReport

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.paging.text:paged_compile_lines", self, style)


class PagedVerifyReport(SessionsVerifyReport, frozen=True, kw_only=True):
    """One verification of a plan that pages."""

    verification: PagedSeen

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.paging.text:paged_verify_lines", self, style)


class PagedInspectReport(PlacedInspectReport, frozen=True, kw_only=True):
    """Where the memory of a plan goes that pages, and what pages."""

    paging: PagingReport

    def lines(self, style: Style) -> list[str]:
        """Everything about one plan."""
        return lines_of("remat_cli.paging.text:paged_inspect_lines", self, style)


def paging_report(
    graph: Graph, problem: Problem, plan: Plan, paged: PagedPlan, without_paging_ns: int | None = None
) -> PagingReport:
    """All that pages in a plan."""
    paging = paged.paging
    found = sorted(_tensors(graph, problem, plan, paged), key=lambda each: (-each.size_bytes, each.written_ns))
    durations = zip(paged.sessions.steps, paged.sessions.problem.durations_ns, strict=True)
    opening_ns = sum(duration for step, duration in durations if step.kind == "load")
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
        opening_ns=opening_ns,
    )


def _weights(graph: Graph, paged: PagedPlan) -> Iterator[PagedWeightsReport]:
    """Report the weights that each session reads, in the order of sessions."""
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
