"""Run a plan that says where ops run beside the plain model and the best single device, and compare."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.compiling.original import Original
from remat_cli.compiling.placed.program import placed_program
from remat_cli.compiling.planned import PlannedRun
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.verify import begun
from remat_cli.core.files.plan_file import PlanFile, graph_instances
from remat_cli.core.schedule.plan import Compute, Schedule
from remat_cli.core.schedule.program import Program, SeenMemory
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.conditions import CPU
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.core.values.promises import fits
from remat_cli.core.values.verification import Checks, SessionsSeen
from remat_cli.runtime.segments.segment_memory import see_memory
from remat_cli.runtime.segments.segment_run import TimedRuns, time_runs
from remat_cli.runtime.sessions._ort import LONGEST_RUN_SECONDS
from remat_cli.runtime.sessions.session import runtime_version
from remat_cli.runtime.verify.likeness import Likeness, have_same_bits, likeness

FIRST_RUNS = 2  # on the clock, of every plan
ROUNDS, RUNS = 3, 4  # more of them, in turns, where that takes no longer than MORE_SECONDS or is to be thorough
MORE_SECONDS = 1.0
HOST = DeviceSpec("cpu", "cpu")

MakeProgram = Callable[[PlanFile, Path, Path], Program]
"""Makes a program of a plan file and its model, in a folder."""


@dataclass(frozen=True)
class PlacedRun(PlannedRun):
    """A plan that says where ops run; `single` is the best plan on one device, if it is another one.

    `original` is what its sessions are compared with (None: the optimised model, in one session on one of them), and
    `make_program` makes a program of them.
    """

    single: Schedule | None = None
    original: Original | None = None
    make_program: MakeProgram = placed_program


@dataclass(frozen=True)
class RunTimes:
    """The least time of a program, over how many runs, and how many more there were to warm up.

    `stall_ns` is the time of the fastest run in which no session ran.
    """

    least_ns: int
    runs: int
    warmups: int
    stall_ns: int


@dataclass(frozen=True)
class ProgramRuns:
    """A program, how long its runs took, and what they were fed."""

    program: Program
    times: RunTimes
    feeds: Mapping[str, Any]


def verify_placed(
    given: PlacedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress
) -> tuple[SessionsSeen, ProgramRuns]:
    """Run a plan that says where ops run beside the original and the best single device; also its own runs.

    Raises:
        MissingDependency: a device of the plan is not here.
        RuntimeFailure: ONNX Runtime fails to run a part of it.
    """
    run = begun(given, work, checks, progress, has_seeds=whole.has_seeds)
    # The user's file, where the plan's sessions are to give its bits: on the CPU alone, with the threads of a run.
    devices = run.plan.placed().devices
    threads = {whole.conditions.threads_of(spec) for spec in devices}
    is_cpu = {spec.provider for spec in devices} == {CPU}
    original = whole.original if is_cpu and threads == {whole.conditions.intra_op_threads} else None
    return verify_sessions(
        replace(run, original=original),
        (whole.feeds, *(() if checks.mode == "fast" else whole.more_feeds)),
        work,
        progress,
        is_thorough=checks.mode == "thorough",
        seconds=whole.conditions.run_seconds,
    )


def verify_sessions(
    run: PlacedRun,
    feeds: Sequence[Mapping[str, Any]],
    work: Path,
    progress: Progress,
    *,
    is_thorough: bool = False,
    seconds: float = LONGEST_RUN_SECONDS,
) -> tuple[SessionsSeen, ProgramRuns]:
    """Run a plan in sessions and the best single device in turns, beside the original.

    A run may take so many `seconds`.
    """
    timed_runs = partial(time_runs, seconds=seconds)
    folder = Path(tempfile.mkdtemp(prefix="verify_", dir=work))
    program = run.make_program(run.plan, run.model, _new(folder / "planned"))
    planned = timed_runs(program, feeds[0], FIRST_RUNS, {})
    if run.original is None:  # what the optimised model gives in one session on the reference device
        plain = placed_program(_plain(run.plan), run.model, _new(folder / "plain"))
        originals: Sequence[Mapping[str, Any]] = [timed_runs(plain, fed, 0, {}).arrays for fed in feeds]
    else:
        originals = run.original.outputs[: len(feeds)]
    others = [planned, *(timed_runs(program, fed, 0, {}) for fed in feeds[1:])]
    alike = [
        None if have_same_bits(wanted, other.arrays) else likeness(wanted, other.arrays)
        for wanted, other in zip(originals, others, strict=True)
    ]
    progress.advance(1, 3)
    seen = see_memory(program, feeds[0], seconds)
    progress.advance(2, 3)
    programs = {"": program, **_single(run, folder)}
    first = {name: planned if not name else timed_runs(one, feeds[0], FIRST_RUNS, {}) for name, one in programs.items()}
    timed = _in_turns(programs, feeds[0], first, is_thorough, seconds)
    progress.advance(3, 3)
    taken = 2 * len(feeds) + sum(found.runs + found.warmups for found in timed.values())
    report = _verification(run, program, alike, seen, timed, taken)
    if run.original is not None:
        report = msgspec.structs.replace(report, reference=run.original.name)
    return report, ProgramRuns(program, timed[""], feeds[0])


def _single(run: PlacedRun, folder: Path) -> dict[str, Program]:
    """The best plan on one device, by its name; nothing where it is the plan."""
    if run.single is None:
        return {}
    place = run.plan.placed()
    apart = msgspec.structs.replace(run.plan, placement=msgspec.structs.replace(place, way="sessions"))
    program = placed_program(_rescheduled(apart, run.single), run.model, _new(folder / "single"))
    return {place.single[0].device: program}


def _verification(
    run: PlacedRun,
    program: Program,
    alike: Sequence[Likeness | None],
    seen: SeenMemory,
    timed: Mapping[str, RunTimes],
    taken: int,
) -> SessionsSeen:
    """The figures joined; a likeness of None means the same bits."""
    place = run.plan.placed()
    differing = [found for found in alike if found is not None]
    errors = [found.relative_error for found in differing if found.relative_error is not None]
    peaks = dict(zip(program.memories, seen.peak_bytes, strict=True))
    hidden = [name for name, is_hidden in zip(program.memories, seen.is_hidden, strict=True) if is_hidden]
    return SessionsSeen(
        reference=f"the same model on {_reference(place.devices).name} alone",
        outputs_identical=not differing,
        must_be_identical={spec.provider for spec in place.devices} == {_reference(place.devices).provider},
        outputs_close=all(found.are_close for found in differing),
        largest_difference=max(errors, default=None) if differing else 0.0,
        predicted_peak_bytes=place.peak_bytes,
        measured_peak_bytes={**peaks, **dict.fromkeys(hidden)},
        predicted_fixed_bytes=dict(zip(program.memories, program.planned_fixed_bytes, strict=True)),
        measured_fixed_bytes=dict(zip(program.memories, seen.fixed_bytes, strict=True)),
        predicted_time_ns=run.plan.solved.time_ns,
        measured_time_ns=timed[""].least_ns,
        measured_single_time_ns={name: found.least_ns for name, found in timed.items() if name},
        within_budget=all(fits(peak, place.budgets[name]) for name, peak in peaks.items()),
        rejected_time_ns=None,
        runs=timed[""].runs,
        misplaced_op=seen.misplaced_op,
        inferences=taken,
        runtime_version=runtime_version(),
        notes=tuple(f"what providers hold inside their sessions in memory '{name}' does not show" for name in hidden),
    )


def _in_turns(
    programs: Mapping[str, Program],
    feeds: Mapping[str, Any],
    first: Mapping[str, TimedRuns],
    is_thorough: bool,
    seconds: float,
) -> dict[str, RunTimes]:
    """The least time of each program over its first runs and, unless that takes long, more of them in turns."""
    times = {name: [(run.total_ns, run.stall_ns) for run in found.runs] for name, found in first.items()}
    all_seconds = ROUNDS * (RUNS + 1) * sum(min(found)[0] for found in times.values()) / 1e9
    rounds = ROUNDS if is_thorough or all_seconds <= MORE_SECONDS else 0
    for _ in range(rounds):
        for name, program in programs.items():
            more = time_runs(program, feeds, RUNS, {}, seconds=seconds)
            times[name] += [(run.total_ns, run.stall_ns) for run in more.runs]
    return {name: RunTimes(min(found)[0], len(found), 1 + rounds, min(found)[1]) for name, found in times.items()}


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _reference(devices: Sequence[DeviceSpec]) -> DeviceSpec:
    """The plan's first device of the CPU provider, else the CPU as it is."""
    return next((spec for spec in devices if spec.provider == "cpu"), HOST)


def _plain(plan: PlanFile) -> PlanFile:
    """Every op once in baseline order on the reference device, without a budget."""
    place = plan.placed()
    spec = msgspec.structs.replace(_reference(place.devices), memory="cpu")
    profile = msgspec.structs.replace(
        place.profiles[0], device=spec.name, memory="cpu", unsupported=(), is_opaque=False
    )
    # A cost for every op, whichever device it is from: a plain run is not planned, so none of them matters.
    costs = {cost.name: cost for each in place.profiles for cost in each.ops}
    profile = msgspec.structs.replace(profile, ops=tuple(costs[op.name] for op in plan.graph.ops))
    one = {"devices": (spec,), "profiles": (profile,), "links": (), "budgets": {"cpu": 2**62}, "way": "sessions"}
    alone = msgspec.structs.replace(place, **one)
    schedule = Schedule(tuple(Compute(op) for op in range(len(plan.graph.ops))))
    return _rescheduled(msgspec.structs.replace(plan, placement=alone), schedule)


def _rescheduled(plan: PlanFile, schedule: Schedule) -> PlanFile:
    """The plan file with another schedule of the same problem."""
    bare = msgspec.structs.replace(plan, schedule=schedule, paging=None)
    problem = bare.problem()
    return msgspec.structs.replace(bare, instances=graph_instances(plan.graph, problem, simulate(problem, schedule)))
