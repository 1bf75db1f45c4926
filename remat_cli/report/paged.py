"""What pages, how much and when, as values that become JSON."""

from collections.abc import Iterator

import msgspec

from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.paging.paging import PageTransfer
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem, device_tensor_ids
from remat_cli.core.values.verification import PagedSeen
from remat_cli.report.sessions import SessionsReport, SessionsVerifyReport
from remat_cli.report.style import Style, lines_of


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


class PagedReport(SessionsReport, frozen=True, kw_only=True):
    """One compilation to sessions on one device that page to another memory, and what they page."""

    verification: PagedSeen | None = None
    paging: PagingReport

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.report.paged_text:paged_compile_lines", self, style)


class PagedVerifyReport(SessionsVerifyReport, frozen=True, kw_only=True):
    """One verification of a plan that pages."""

    verification: PagedSeen

    def lines(self, style: Style) -> list[str]:
        """The report for people."""
        return lines_of("remat_cli.report.paged_text:paged_verify_lines", self, style)


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
