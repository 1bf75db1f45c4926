"""Run a plan that spans devices beside the plain model and the best single device, and compare with its promises."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress
from remat_cli.compiling.original import Original
from remat_cli.compiling.prepare import Prepared, default_settings
from remat_cli.compiling.process.resident import ResidentRequest, see_processes
from remat_cli.compiling.program import placed_program
from remat_cli.compiling.record import request_of
from remat_cli.compiling.search.family_sizes import rising_and_falling, sizes_to_check
from remat_cli.core.files.plan_file import PlanFile, graph_instances
from remat_cli.core.schedule.plan import Compute, Schedule
from remat_cli.core.schedule.program import Program, SeenMemory
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.conditions import CPU
from remat_cli.core.values.family import FamilySeen
from remat_cli.core.values.profile import HOST_MEMORY, DeviceSpec, Profile
from remat_cli.core.values.promises import fits
from remat_cli.core.values.resident import ProcessSeen
from remat_cli.core.values.verification import Checks, PagingSeen, Verification
from remat_cli.onnx_io.read.seeds import seeded_copy
from remat_cli.ort_rules.forecast import SessionForecast
from remat_cli.ort_rules.lessons import Lesson
from remat_cli.runtime.observe.paged_resident import see_resident
from remat_cli.runtime.segments.segment_memory import see_memory
from remat_cli.runtime.segments.segment_run import TimedRuns, time_runs
from remat_cli.runtime.sessions._ort import LONGEST_RUN_SECONDS
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import runtime_version
from remat_cli.runtime.verify.family import resident_after
from remat_cli.runtime.verify.likeness import Likeness, have_same_bits, likeness
from remat_cli.runtime.verify.verify import THOROUGH_RUNS, verify_closely
from remat_cli.runtime.verify.verify_request import MOST_RUNS, ManySizes, VerifyRequest

FIRST_RUNS = 2  # on the clock, of every plan
ROUNDS, RUNS = 3, 4  # more of them, in turns, where that takes no longer than MORE_SECONDS or is to be thorough
MORE_SECONDS = 1.0
HOST = DeviceSpec("cpu", "cpu")
LONG_NS = 2_000_000_000
LONG_NOTE = "loading and running at the largest sizes was not watched, as runs take long: --verify thorough does that"
SEEDS_NOTE = "random ops without a seed were given equal ones in both models, to compare the outputs"


@dataclass(frozen=True)
class PlannedRun:
    """A plan file and the model that it speaks of; `single` is the best plan on one device, if it is another one.

    `forecast` is what is predicted of every op of that model, where that is known. `original` is what sessions on
    several devices are compared with (None: the optimised model, in one session on one of them).
    """

    plan: PlanFile
    model: Path
    single: Schedule | None = None
    forecast: SessionForecast | None = None
    original: Original | None = None


def verify_plan(run: PlannedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress) -> Verification:
    """Run what a plan speaks of beside the original, in fresh processes; broken promises are in the report.

    `whole` is the optimised original, `work` a folder for what must be written.

    Raises:
        MissingDependency: a device of the plan is not here.
        RuntimeFailure: ONNX Runtime fails to run a part of it.
    """
    return verify_plan_closely(run, whole, work, checks, progress)[0]


def verify_plan_closely(
    run: PlannedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress
) -> tuple[Verification, tuple[Lesson, ...]]:
    """Like `verify_plan`; also where runs of a plan that is one model left what the judge says of it."""
    progress.stage(stages.VERIFYING)
    _tell_how_long(run.plan, checks, progress)
    given = run, whole
    run = _with_seeds(run, whole, work)
    if run.plan.placement is not None:
        feeds = (whole.feeds, *(() if checks.mode == "fast" else whole.more_feeds))
        return verify_sessions(
            replace(run, original=_original_of_sessions(run.plan, whole)),
            feeds,
            work,
            progress,
            is_thorough=checks.mode == "thorough",
            seconds=whole.conditions.run_seconds,
        ), ()
    request = replace(
        request_of(run.plan, whole, run.model), mode=checks.mode, capped=checks.capped_run, forecast=run.forecast
    )
    if run.plan.request.family is not None:
        request = replace(request, sizes=_many_sizes(run.plan, whole), more_feeds=())
    report, lessons = verify_closely(request, progress.advance)
    if report.passed and request.sizes is not None and checks.mode in ("on", "thorough"):
        report = msgspec.structs.replace(report, family=_kept(request, report.family, progress))
    if report.passed and _has_process(run.plan, checks):
        if _is_long(run.plan, checks):
            report = msgspec.structs.replace(report, notes=(*report.notes, LONG_NOTE), process=None)
        else:
            report = msgspec.structs.replace(report, process=_process(*given, checks, progress))
    if whole.notes:
        report = msgspec.structs.replace(report, notes=(*whole.notes, *report.notes))
    if whole.has_seeds:
        report = msgspec.structs.replace(report, notes=(*report.notes, SEEDS_NOTE))
    return report, lessons


def _with_seeds(run: PlannedRun, whole: Prepared, work: Path) -> PlannedRun:
    """The model such that it draws the same random numbers as what it is compared with."""
    if not whole.has_seeds:
        return run
    return replace(run, model=seeded_copy(run.model, work / "with_seeds.onnx"))


def _many_sizes(plan: PlanFile, whole: Prepared) -> ManySizes:
    """The sizes of the plan's family that models are run at, and what they are fed then."""
    all_sizes, seed = sizes_to_check(plan), whole.conditions.seed
    feeds = tuple(make_feeds(whole.source.inputs_at(sizes), seed + at) for at, sizes in enumerate(all_sizes[1:], 1))
    return ManySizes(whole.original.path, tuple(all_sizes), feeds, plan.promise.peak_bytes)


def _kept(request: VerifyRequest, seen: FamilySeen, progress: Progress) -> FamilySeen:
    """The same with what a process keeps that ran small and large sizes in turn."""
    many = request.sizes
    assert many is not None
    progress.stage(stages.OTHER_SIZES)
    feeds = [(request.feeds, *many.other_feeds)[at] for at in rising_and_falling(many.all_sizes)]
    resident_bytes = resident_after(request.rewritten, feeds, request.settings(exact=False), progress.advance)
    return msgspec.structs.replace(seen, resident_bytes=resident_bytes)


def _has_process(plan: PlanFile, checks: Checks) -> bool:
    """Whether resident memory of the plan's model is measured: what was predicted of it is about a default session."""
    return checks.mode in ("on", "thorough") and plan.promise.process is not None and not plan.request.portable


def _is_long(plan: PlanFile, checks: Checks) -> bool:
    """Whether more runs at the largest of many sizes would take long, and nobody asked for what they show.

    What such runs leave resident is measured beside the other sizes.
    """
    is_asked = checks.mode == "thorough" or checks.traced or plan.request.process_budget_bytes is not None
    return plan.request.family is not None and not is_asked and plan.solved.time_ns > LONG_NS


def _process(run: PlannedRun, whole: Prepared, checks: Checks, progress: Progress) -> ProcessSeen | None:
    """What processes hold that load and run the user's model and the new one."""
    plan, predicted = run.plan, run.plan.promise.process
    assert predicted is not None
    progress.stage(stages.WATCHING)
    request = ResidentRequest(
        reference=whole.original_path,
        rewritten=run.model,
        feeds=whole.feeds,
        settings=default_settings(whole.conditions),
        predicted=predicted,
        budget_bytes=plan.request.process_budget_bytes,
        with_mapped=plan.request.count_mapped,
        is_thorough=checks.mode == "thorough",
        is_traced=checks.traced,
        is_mapped=bool(whole.source.data_files),
        is_limited=checks.capped_run and (checks.mode == "thorough" or plan.request.process_budget_bytes is not None),
    )
    return see_processes(request, progress.advance)


def _tell_how_long(plan: PlanFile, checks: Checks, progress: Progress) -> None:
    """How many runs there will be, and about how long they take."""
    runs = {"fast": 5, "thorough": THOROUGH_RUNS}.get(checks.mode, MOST_RUNS)
    how_many = "about" if checks.mode == "thorough" else "at most"
    progress.foretell(f"{how_many} {runs} runs of either model", runs * plan.solved.time_ns / 1e9)


def verify_sessions(
    run: PlannedRun,
    feeds: Sequence[Mapping[str, Any]],
    work: Path,
    progress: Progress,
    *,
    is_thorough: bool = False,
    seconds: float = LONGEST_RUN_SECONDS,
) -> Verification:
    """Run a plan on several devices and the best single one in turns, beside the original.

    A run may take so many `seconds`.
    """
    timed_runs = partial(time_runs, seconds=seconds)
    folder = Path(tempfile.mkdtemp(prefix="verify_", dir=work))
    program = _program(run.plan, run.model, folder / "planned")
    planned = timed_runs(program, feeds[0], FIRST_RUNS, {})
    originals = run.original.outputs[: len(feeds)] if run.original else _plain_outputs(run, folder, feeds, timed_runs)
    others = [planned, *(timed_runs(program, fed, 0, {}) for fed in feeds[1:])]
    alike = [_compared(wanted, other.arrays) for wanted, other in zip(originals, others, strict=True)]
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
    if program.spill is None:
        return report
    return msgspec.structs.replace(report, paging=_paging(run.plan, program, timed[""], feeds[0]))


def _single(run: PlannedRun, folder: Path) -> dict[str, Program]:
    """The best plan on one device, by its name; nothing where it is the plan."""
    if run.single is None:
        return {}
    place = run.plan.placement
    assert place is not None
    apart = msgspec.structs.replace(run.plan, placement=msgspec.structs.replace(place, way="sessions"))
    return {_device_of(run): _program(_rescheduled(apart, run.single), run.model, folder / "single")}


@dataclass(frozen=True)
class _Times:
    """The least time of a program, over how many runs, and how many more there were to warm up.

    `stall_ns` is the time of the fastest run in which no session ran.
    """

    least_ns: int
    runs: int
    warmups: int
    stall_ns: int


def _paging(plan: PlanFile, program: Program, timed: _Times, feeds: Mapping[str, Any]) -> PagingSeen:
    paging = plan.paging
    assert paging is not None
    assert plan.placement is not None
    return PagingSeen(
        planned_stall_ns=paging.stall_ns,
        measured_stall_ns=timed.stall_ns,
        written_bytes=paging.written_bytes,
        read_bytes=paging.read_bytes,
        planned_run_bytes=paging.peak_bytes,
        resident=see_resident(program, feeds) if program.memories[0] == HOST_MEMORY else None,
        input_bytes=sum(array.nbytes for array in feeds.values()),
        budget_bytes=plan.placement.budgets[program.memories[0]],
    )


def _verification(
    run: PlannedRun,
    program: Program,
    alike: Sequence[Likeness | None],
    seen: SeenMemory,
    timed: Mapping[str, _Times],
    taken: int,
) -> Verification:
    """The figures joined; a likeness of None means the same bits."""
    place = run.plan.placement
    assert place is not None
    differing = [found for found in alike if found is not None]
    errors = [found.relative_error for found in differing if found.relative_error is not None]
    peaks = dict(zip(program.memories, seen.peak_bytes, strict=True))
    hidden = [name for name, is_hidden in zip(program.memories, seen.is_hidden, strict=True) if is_hidden]
    return Verification(
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
        notes=_notes(hidden),
    )


def _notes(hidden: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"what providers hold inside their sessions in memory '{name}' does not show" for name in hidden)


def _compared(original: Mapping[str, Any], other: Mapping[str, Any]) -> Likeness | None:
    """How alike the outputs are; None: the same bits."""
    return None if have_same_bits(original, other) else likeness(original, other)


def _plain_outputs(
    run: PlannedRun,
    folder: Path,
    feeds: Sequence[Mapping[str, Any]],
    timed_runs: Callable[[Program, Mapping[str, Any], int, Mapping[str, Any]], TimedRuns],
) -> list[Mapping[str, Any]]:
    """What the optimised model gives in one session on the reference device."""
    plain = _program(_plain(run.plan), run.model, folder / "plain")
    return [timed_runs(plain, fed, 0, {}).arrays for fed in feeds]


def _original_of_sessions(plan: PlanFile, whole: Prepared) -> Original | None:
    """The user's file, where the plan's sessions are to give its bits: on the CPU alone, with the threads of a run."""
    assert plan.placement is not None
    threads = {whole.conditions.threads_of(spec) for spec in plan.placement.devices}
    is_cpu = {spec.provider for spec in plan.placement.devices} == {CPU}
    return whole.original if is_cpu and threads == {whole.conditions.intra_op_threads} else None


def _in_turns(
    programs: Mapping[str, Program],
    feeds: Mapping[str, Any],
    first: Mapping[str, TimedRuns],
    is_thorough: bool,
    seconds: float,
) -> dict[str, _Times]:
    """The least time of each program over its first runs and, unless that takes long, more of them in turns."""
    times = {name: [(run.total_ns, run.stall_ns) for run in found.runs] for name, found in first.items()}
    all_seconds = ROUNDS * (RUNS + 1) * sum(min(found)[0] for found in times.values()) / 1e9
    rounds = ROUNDS if is_thorough or all_seconds <= MORE_SECONDS else 0
    for _ in range(rounds):
        for name, program in programs.items():
            more = time_runs(program, feeds, RUNS, {}, seconds=seconds)
            times[name] += [(run.total_ns, run.stall_ns) for run in more.runs]
    return {name: _Times(min(found)[0], len(found), 1 + rounds, min(found)[1]) for name, found in times.items()}


def _program(plan: PlanFile, model: Path, folder: Path) -> Program:
    folder.mkdir()
    return placed_program(plan, model, folder)


def _reference(devices: Sequence[DeviceSpec]) -> DeviceSpec:
    """The plan's first device of the CPU provider, else the CPU as it is."""
    return next((spec for spec in devices if spec.provider == "cpu"), HOST)


def _plain(plan: PlanFile) -> PlanFile:
    """Every op once in baseline order on the reference device, without a budget."""
    place = plan.placement
    assert place is not None
    spec = msgspec.structs.replace(_reference(place.devices), memory="cpu")
    profile = msgspec.structs.replace(
        place.profiles[0], device=spec.name, memory="cpu", unsupported=(), is_opaque=False
    )
    profile = msgspec.structs.replace(profile, ops=_any_costs(plan, place.profiles))
    one = {"devices": (spec,), "profiles": (profile,), "links": (), "budgets": {"cpu": 2**62}, "way": "sessions"}
    alone = msgspec.structs.replace(place, **one)
    schedule = Schedule(tuple(Compute(op) for op in range(len(plan.graph.ops))))
    return _rescheduled(msgspec.structs.replace(plan, placement=alone), schedule)


def _any_costs(plan: PlanFile, profiles: Sequence[Profile]) -> tuple[Any, ...]:
    """A cost for every op, whichever device it is from: a plain run is not planned, so none of them matters."""
    costs = {cost.name: cost for profile in profiles for cost in profile.ops}
    return tuple(costs[op.name] for op in plan.graph.ops)


def _rescheduled(plan: PlanFile, schedule: Schedule) -> PlanFile:
    """The same problem under another schedule."""
    bare = msgspec.structs.replace(plan, schedule=schedule, paging=None)
    problem = bare.problem()
    return msgspec.structs.replace(bare, instances=graph_instances(plan.graph, problem, simulate(problem, schedule)))


def _device_of(run: PlannedRun) -> str:
    """The device of the single plan."""
    place = run.plan.placement
    assert place is not None
    return place.single[0].device
