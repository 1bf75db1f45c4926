"""Measure what every op of a model costs: least time over several runs, workspace, and how noisy the time was."""

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.files import WORK_FOLDER
from remat_cli.core.values.noise import are_sure, multiple_error, multiple_in_turn, ratios_in_turn
from remat_cli.core.values.profile import OpCost
from remat_cli.ort_rules.bodies import KernelWiring, body_requests
from remat_cli.runtime.observe._events import ProfiledRun, ProfileEvent, body_kernel
from remat_cli.runtime.observe.resident import reset_high_water, status_bytes
from remat_cli.runtime.sessions._ort import (
    LONGEST_RUN_SECONDS,
    Advance,
    Array,
    PackedArray,
    ignore_progress,
    pack_all,
    run_fresh,
    run_session,
    running,
    runtime_errors,
    share_arena,
    unpack_all,
    use_shared_arena,
)
from remat_cli.runtime.sessions.guard import guarded
from remat_cli.runtime.sessions.heap import return_free_memory
from remat_cli.runtime.sessions.packing import lean_form
from remat_cli.runtime.sessions.session import (
    Level,
    SessionSettings,
    counted_baseline_bytes,
    default_order_options,
    in_turn_options,
    open_session,
    profiled_session,
    session_options,
)

MOST_ROUNDS = 8
FEWEST_ROUNDS = 2
"""The first touches fresh pages."""
BLOCK_RUNS = 2
"""Short runs of one session before the other one's turn: the first is in its wake."""
PROFILED_ROUNDS = 4
LONG_SECONDS = 2.0
"""From a run of this length on, one look at a model tells what it costs."""
SETTLED_PERCENT = 5.0
LONG_RUN_NS = 50_000_000
"""A run that takes longer is made no more often than it takes for times to agree."""
VERY_LONG_RUN_NS = 500_000_000
LONG_ROUNDS = 3
MOST_CHECKS = 10
"""Runs, before it is believed that a model takes longer or shorter than expected."""
STATS_ENTRY = "session.collect_node_memory_stats_to_file"


class ProfileRequest(msgspec.Struct, frozen=True):
    """How to measure.

    After `warmups` runs, of which the first shows memory, come `runs` rounds of runs with and without profiling; more,
    up to MOST_ROUNDS, of short ones that do not agree, fewer where runs are long, or those of a model alone agree.
    Where those that are profiled do not agree in the end, they take one more turn. `optimization` is the level at which
    the model was optimised, kept for the record. Measuring that shows no progress for `run_seconds` is ended. After
    `most_seconds` two rounds are enough, settled or not. `wiring` is that of the ops in bodies of the model, by name.
    """

    device: str = "cpu"
    runs: int = 4
    warmups: int = 1
    intra_op_threads: int = 0
    optimization: str = "all"
    custom_ops: tuple[str, ...] = ()
    run_seconds: float = LONGEST_RUN_SECONDS
    wiring: dict[str, KernelWiring] = {}
    most_seconds: float = math.inf

    @property
    def settings(self) -> SessionSettings:
        """Sessions that run exactly the file."""
        return SessionSettings(
            intra_op_threads=self.intra_op_threads,
            device=self.device,
            custom_ops=self.custom_ops,
            run_seconds=self.run_seconds,
        )

    @property
    def default_settings(self) -> SessionSettings:
        """Sessions as users open them: those of a model that is to have no fused ops fuse none."""
        level: Level = "basic" if self.optimization == "basic" else "all"
        return msgspec.structs.replace(self.settings, exact=False, level=level)


class WholeTime(msgspec.Struct, frozen=True):
    """The least time of a whole run, and how far the second-least lies above it."""

    time_ns: int
    noise_percent: float


class Measured(msgspec.Struct, frozen=True):
    """What measuring gave.

    `ops` are in the order of the names asked for, under exact options; times are raw minima, whose sum is a few percent
    below `run_ns`, the least time of a whole run without profiling, with default options (of long ones with profiling,
    which costs them next to nothing). `packed_bytes` is what the
    session holds in its arena before the first op: packed weights, and weights of at most 127 bytes (None: this runtime
    does not count).
    `loading_peak_bytes` is how much resident memory loading took at most beyond what it left (None: this system does
    not tell). `run_noise_percent` is how far the second-least whole run lies above the least; `runs` says how often the
    model was run, all kinds of runs together. `relative_time` is how long a run takes, as a multiple of another model's
    in turn with it, `relative_error` how far that may be off (None: there was one turn). `bodies` says, by op that runs
    a body, what that asks for, in the form of `body_requests`.
    """

    ops: tuple[OpCost, ...]
    run_ns: int
    packed_bytes: int | None
    loading_peak_bytes: int | None = None
    run_noise_percent: float = 0.0
    runs: int = 0
    relative_time: float | None = None
    relative_error: float | None = None
    bodies: dict[str, tuple[int, ...]] = {}

    @property
    def ops_ns(self) -> int:
        """The sum of op times."""
        return sum(cost.time_ns for cost in self.ops)

    @property
    def whole(self) -> WholeTime:
        """How long a whole run takes."""
        return WholeTime(self.run_ns, self.run_noise_percent)


class MeasureJob(msgspec.Struct, frozen=True):
    """What the measuring process needs to know; `beside` is another model for the same inputs.

    `timed` is the model in the form in which several sessions of it are open at once (None: as it is).
    """

    model: str
    feeds: tuple[PackedArray, ...]
    op_names: tuple[str, ...]
    request: ProfileRequest
    beside: str | None = None
    timed: str | None = None


def measure(
    path: Path,
    feeds: Mapping[str, Array],
    op_names: Sequence[str],
    request: ProfileRequest,
    advance: Advance = ignore_progress,
    beside: Path | None = None,
) -> Measured:
    """Measure every op of a model in a fresh process. Nothing else should run meanwhile.

    With `beside`, runs of that model are timed in turn with this one's, so that both see the same machine.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model, or did not run an op that was asked for.
        MissingDependency: the device cannot be used.
    """
    timed, other = (
        None if each is None else str(lean_form(each.resolve(), request.settings)) for each in (path, beside)
    )
    job = MeasureJob(str(path.resolve()), pack_all(feeds), tuple(op_names), request, other, timed)
    return run_fresh(measure_here, job, advance, request.run_seconds)


def measure_here(job: MeasureJob, advance: Advance) -> Measured:
    """Measure in this process, which must not have measured before."""
    path, request = Path(job.model), job.request
    feeds = unpack_all(job.feeds)
    total = request.warmups + (2 if job.beside is None else 3) * request.runs + 1
    loading = loading_peak_bytes(path, request.settings)
    advance(0, total)
    seen = observe_in_fitting_arena(path, feeds, request)
    first = seen.run
    bodies = requests_of_bodies(path, feeds, request)
    advance(1, total)
    is_long = seen.run_ns > LONG_RUN_NS
    runs, times, ratios = run_rounds(job, feeds, lambda done: advance(min(1 + done, total - 1), total), seen.run_ns)
    advance(total, total)
    durations: dict[str, list[int]] = {}
    for run in runs:
        for event in run.events:
            durations.setdefault(event.name, []).append(event.duration_us)
    workspace = workspace_bytes(first.events, seen.temporary)
    for name in job.op_names:
        if name not in durations:
            raise RuntimeFailure("", path.name, f": the runtime did not run op '{name}', so it has no measured cost")
    ops = tuple(cost_of(name, durations[name], workspace.get(name, 0)) for name in job.op_names)
    return Measured(
        ops=ops,
        run_ns=min(times),
        packed_bytes=counted_baseline_bytes(first.events),
        loading_peak_bytes=loading,
        run_noise_percent=noise_percent(times),
        runs=1 + bool(request.wiring) + len(runs) + (0 if is_long and job.beside is None else len(times)),
        relative_time=multiple_in_turn(ratios) if ratios else None,
        relative_error=multiple_error(ratios) if ratios else None,
        bodies=bodies,
    )


def requests_of_bodies(path: Path, feeds: Mapping[str, Array], request: ProfileRequest) -> dict[str, tuple[int, ...]]:
    """What the bodies of ops ask for, by op, in the order of a default session; none where the runtime does not count.

    A plan says in which order the model's own ops run, not those in bodies.
    """
    if not request.wiring:
        return {}
    seen, found = _observed(path, feeds, request, default_order_options(request.settings)), {}
    for event in seen.run.events:
        if event.kernels and event.has_counters:
            kernels = [  # of their workspace the run shows only the most that it may be
                msgspec.structs.replace(k, workspace_bytes=min(k.workspace_bytes, seen.temporary.get(k.name, 0)))
                for k in event.kernels
            ]
            found[event.name] = body_requests(body_kernel(event), kernels, request.wiring)
    return found


def workspace_bytes(events: Sequence[ProfileEvent], temporary: Mapping[str, int]) -> dict[str, int]:
    """Workspace of each op: what its kernel allocates besides its outputs, at most at one time.

    `temporary` is the runtime's sum of all such allocations of a kernel. Where kernels allocate several times in a
    row this is too much; the most ever in use while the kernel ended is a second upper limit, and the smaller counts.
    For an op with a subgraph it is the most that was held there, kernels' workspace included. A runtime without
    counters gives the sum alone.
    """
    result = {}
    for event in events:
        if not event.has_counters:
            result[event.name] = temporary.get(event.name, 0)
            continue
        limit = max(0, event.peak_bytes - event.in_use_bytes)
        nested = (min(each.requested_bytes + temporary.get(each.name, 0), each.limit_bytes) for each in event.inside)
        result[event.name] = max(
            min(temporary.get(event.name, 0), limit), max(nested, default=0) - event.requested_bytes
        )
    return result


def read_node_stats(path: Path) -> dict[str, int]:
    """Temporary bytes by op name from the runtime's memory statistics; names there are `NAME_HASH`.

    Raises:
        RuntimeFailure: the file is missing or has another form.
    """
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        column = header.removeprefix("#").split(",").index("total_temp_allocations")
        rows = [line.rsplit(",", 4) for line in lines if line]
        return {row[0].rpartition("_")[0]: int(row[column]) for row in rows}
    except (OSError, ValueError, IndexError) as error:
        raise RuntimeFailure(f"the runtime's memory statistics cannot be read: {error}") from None


def loading_peak_bytes(path: Path, settings: SessionSettings) -> int | None:
    """How far resident memory rose, while a session was loaded, above what the loaded session keeps; Linux only."""
    if not reset_high_water():
        return None
    session = open_session(path, settings)
    status = status_bytes()
    del session
    return_free_memory()  # else the sessions that follow come on top of what this one had
    return max(0, status.get("VmHWM", 0) - status.get("VmRSS", 0))


@dataclass(frozen=True)
class Observed:
    """A run with its memory counters and statistics, what it gave, and how long it took by the clock."""

    run: ProfiledRun
    temporary: dict[str, int]
    outputs: dict[str, Array]
    run_ns: int


def observe_in_fitting_arena(path: Path, feeds: Mapping[str, Array], request: ProfileRequest) -> Observed:
    """The first run of a session in an arena whose chunks fit what is asked for."""
    return _observed(path, feeds, request, session_options(request.settings))


def _observed(path: Path, feeds: Mapping[str, Array], request: ProfileRequest, options: Any) -> Observed:
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER) as folder:
        stats = Path(folder) / "stats.csv"
        options.add_session_config_entry(STATS_ENTRY, str(stats))
        if request.device == "cpu":
            share_arena(options)
        with (
            profiled_session(path, request.settings, options) as (session, runs),
            runtime_errors(running(path)),
        ):
            start = time.perf_counter_ns()
            outputs = run_session(session, feeds)
            run_ns = time.perf_counter_ns() - start
        return Observed(runs[0], read_node_stats(stats), outputs, run_ns)


@dataclass(frozen=True)
class Pace:
    """How many rounds there are: `least`, and up to `most` while times, or ratios of two models', do not agree.

    `profiled` of them at least have profiled runs too.
    """

    request: ProfileRequest
    least: int
    most: int
    profiled: int = 2
    is_long: bool = False
    is_compared: bool = False

    def is_enough(self, rounds: int, seconds: float, times: Sequence[Sequence[int]], ratios: Sequence[float]) -> bool:
        """Whether rounds may end: all were made, or they say the same, or they must end."""
        if rounds >= self.most or (rounds >= FEWEST_ROUNDS and seconds > self.request.most_seconds):
            return True
        if rounds < self.least:
            return False
        if self.is_compared:
            is_first_look = self.is_long and len(ratios) == FEWEST_ROUNDS
            return noise_percent(ratios) <= SETTLED_PERCENT if is_first_look else are_sure(ratios)
        return all(map(_are_settled, times))

    def is_profiled_enough(self, rounds: int, seconds: float, times: Sequence[int]) -> bool:
        """Whether the rounds that are left may go without a profiled run."""
        is_over = rounds >= PROFILED_ROUNDS or seconds > self.request.most_seconds
        return rounds >= self.profiled and (is_over or _are_settled(times))


def _pace(job: MeasureJob, run_ns: int) -> Pace:
    """Of a model alone all runs are warm; of two that are compared the first round touches fresh pages.

    Of short ones of a model alone two rounds are enough where they agree: what is compared is run again in turn. Long
    runs are profiled once more than the sight that was profiled before. Those that are not very long are compared
    as often as short ones, where they do not agree at once.
    """
    request, is_compared = job.request, job.beside is not None
    if run_ns > LONG_RUN_NS:
        is_cheap = is_compared and run_ns <= VERY_LONG_RUN_NS
        most = MOST_ROUNDS if is_cheap else min(LONG_ROUNDS, request.runs)
        return Pace(request, FEWEST_ROUNDS, most, 1 if is_compared else 2, True, is_compared)
    least = min(request.runs, MOST_ROUNDS if is_compared else FEWEST_ROUNDS)
    return Pace(request, least, MOST_ROUNDS, 2, False, is_compared)


def run_rounds(
    job: MeasureJob, feeds: Mapping[str, Array], advance: Callable[[int], None], run_ns: int = 0
) -> tuple[list[ProfiledRun], list[int], list[float]]:
    """Runs of one session in which each kernel is timed, in turn with runs of others that are not profiled.

    One run was seen to take `run_ns`.

    Profiling costs about 10 us per op, so whole runs are timed without, but for long ones of a model alone. Of a model
    beside it is told how many times as long this one takes, turn by turn.
    What a kind of runs shows at its first and its last turn tells whether the machine was busy. Sessions take their
    memory from one arena, which the first sight of the model has filled: fresh pages make the first runs of each slow.
    Two models that are compared have arenas of their own, as users' sessions do: large tensors cost more there.
    """
    path, request, pace = Path(job.timed or job.model), job.request, _pace(job, run_ns)
    is_long = pace.is_long
    with (
        profiled_session(path, request.settings, _warm_options(request, request.settings)) as (session, runs),
        runtime_errors(running(path)),
    ):
        sessions = [session, *_timed_beside(job, path, is_long=is_long)]
        times: list[list[int]] = [[] for _ in sessions]
        turns: list[list[list[int]]] = [[] for _ in sessions]
        ratios: list[float] = []
        begin, rounds = time.monotonic(), 0
        while not pace.is_enough(rounds, seconds := time.monotonic() - begin, times, ratios):
            for number, found in enumerate(times):
                if number or not pace.is_profiled_enough(rounds, seconds, found):
                    turns[number].append(_run_block(sessions[number], feeds, is_long=is_long))
                    found.extend(turns[number][-1])
                advance(len(sessions) * rounds + number + 1)
            rounds += 1
            ratios = [] if job.beside is None else ratios_in_turn(turns[2], turns[1])
        is_over = is_long or time.monotonic() - begin >= request.most_seconds
        if not is_over and not _are_settled(times[0]):
            times[0] += _run_block(session, feeds, is_long=is_long)
    return runs, times[1] if len(times) > 1 else times[0], ratios


def _timed_beside(job: MeasureJob, path: Path, *, is_long: bool) -> list[Any]:
    """Sessions that are timed in turn with the profiled one: none where runs are long, or one of each model.

    Long runs of two models are compared without the block of the memory pattern.
    """
    settings = job.request.default_settings
    if job.beside is None:
        return [] if is_long else [open_session(path, settings, _warm_options(job.request, settings))]
    settings = msgspec.structs.replace(settings, has_pattern=not is_long)
    return [open_session(model, settings, in_turn_options(settings)) for model in (path, Path(job.beside))]


def _warm_options(request: ProfileRequest, settings: SessionSettings) -> Any:
    """Options of a session that is timed in turn with others, in the arena of this process where there is one."""
    options = in_turn_options(settings)
    if request.device == "cpu":
        use_shared_arena(options)
    return options


def _are_settled(times: Sequence[int]) -> bool:
    """Whether the two least times are nearly the same."""
    return noise_percent(times) <= SETTLED_PERCENT


def noise_percent(times: Sequence[float]) -> float:
    """How far the second-least of several times lies above the least."""
    least, second = sorted(times)[:2] if len(times) > 1 else (times[0], times[0])
    return round(100.0 * (second / least - 1.0), 2) if least else 0.0


def _run_block(session: Any, feeds: Mapping[str, Array], *, is_long: bool) -> list[int]:
    """Wall times of one run, or of as many short ones as are made in one turn."""
    found = []
    for _ in range(1 if is_long else BLOCK_RUNS):
        start = time.perf_counter_ns()
        run_session(session, feeds)
        found.append(time.perf_counter_ns() - start)
    return found


def cost_of(name: str, durations_us: Sequence[int], workspace: int) -> OpCost:
    """The cost of an op that took so long in some runs."""
    return OpCost(name, 1000 * min(durations_us), workspace, noise_percent(durations_us))


def time_whole(
    path: Path,
    feeds: Mapping[str, Array],
    settings: SessionSettings,
    least_seconds: float,
    is_enough: Callable[[WholeTime], bool] = lambda seen: False,
) -> WholeTime:
    """Run a model in this process, twice, and more often if it is short, until what they show is enough.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    session = open_session(path, settings)
    doing = running(path)

    def run(options: Any) -> list[int]:
        times: list[int] = []
        begin = time.monotonic()
        while len(times) < 2 or (len(times) < MOST_CHECKS and time.monotonic() - begin < least_seconds):
            start = time.perf_counter_ns()
            run_session(session, feeds, options)
            times.append(time.perf_counter_ns() - start)
            if is_enough(WholeTime(min(times), 0.0)):
                break
        return times

    with runtime_errors(doing):
        times = guarded(run, 2 * settings.run_seconds, doing)
    return WholeTime(min(times), noise_percent(times))


class WholeTimeJob(msgspec.Struct, frozen=True):
    """Time whole runs of a model."""

    model: str
    feeds: tuple[PackedArray, ...]
    settings: SessionSettings
    least_seconds: float


def time_apart(path: Path, feeds: Mapping[str, Array], settings: SessionSettings, least_seconds: float) -> WholeTime:
    """`time_whole` in a fresh process, where a run may take all the memory that there is.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    job = WholeTimeJob(str(path.resolve()), pack_all(feeds), settings, least_seconds)
    return run_fresh(time_here, job, seconds=2 * settings.run_seconds)


def time_here(job: WholeTimeJob, advance: Advance) -> WholeTime:
    """Time runs in this process."""
    feeds = unpack_all(job.feeds)
    return time_whole(Path(job.model), feeds, job.settings, job.least_seconds)
