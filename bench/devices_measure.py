"""Run a plan that spans devices, its rival on one device and whole sessions in turn, each in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.compiling import Row
from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.progress import silent
from remat_cli.compiling.placed.verify import PlacedRun, verify_sessions
from remat_cli.compiling.program import make_program
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.schedule.program import Program
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.runtime.segments.segment_run import time_runs
from remat_cli.runtime.sessions._ort import (
    Advance,
    PackedArray,
    pack_all,
    run_fresh,
    run_session,
    runtime_errors,
    unpack,
)
from remat_cli.runtime.sessions.session import SessionSettings, device_settings, open_session

REPEATS, ROUNDS, RUNS = 2, 2, 6  # a measurement is the least of ROUNDS x RUNS runs, in turns; it is made REPEATS times
PLAN, SINGLE, MODEL = "plan.json", "single.json", "noted.onnx"

Timer = Callable[[], int | None]


class WholeJob(msgspec.Struct, frozen=True):
    """A model in one session with the runtime's default options on a device; the CPU runs what the device cannot."""

    model: str
    feeds: tuple[PackedArray, ...]
    device: DeviceSpec
    runs: int


def time_whole(job: WholeJob, advance: Advance) -> int:
    """The least time of a run in nanoseconds, after one to warm up."""
    feeds = {packed.name: unpack(packed) for packed in job.feeds}
    settings = device_settings(job.device, SessionSettings(exact=False))
    session = open_session(Path(job.model), msgspec.structs.replace(settings, is_alone=False))
    times = []
    with runtime_errors("ONNX Runtime fails while being timed"):
        for done in range(job.runs + 1):
            start = time.perf_counter_ns()
            run_session(session, feeds)
            times.append(time.perf_counter_ns() - start)
            advance(done, job.runs)
    return min(times[1:])


@dataclass(frozen=True)
class Planned:
    """A folder with a plan, the plan of the best single device if it is another one, and the user's model."""

    folder: Path
    source: Path
    feeds: Mapping[str, Any]
    devices: Sequence[DeviceSpec]

    @property
    def has_rival(self) -> bool:
        """Whether the plan differs from that of the best single device."""
        return (self.folder / SINGLE).exists()


def measure(planned: Planned, work: Path) -> Row:
    """Times, REPEATS figures each, and what the product's own verification says.

    `whole_ns` has no entry for a device that refuses the whole model.

    Raises:
        RematError: a device is not here, or ONNX Runtime fails.
    """
    plan = read_plan(planned.folder / PLAN)
    rival = read_plan(planned.folder / SINGLE).schedule if planned.has_rival else None
    run = PlacedRun(plan, planned.folder / MODEL, rival)
    (work / "verify").mkdir()
    seen, _ = verify_sessions(run, (planned.feeds,), work / "verify", silent())
    times = in_turns(_timers(planned, work))
    wholes = {spec.name: times[f"whole {spec.name}"] for spec in planned.devices}
    return {
        "plan_ns": times["plan"],
        "single_ns": times.get("single"),
        "whole_ns": {name: found for name, found in wholes.items() if None not in found},
        "verification": msgspec.to_builtins(seen),
    }


def in_turns(timers: Mapping[str, Timer]) -> dict[str, list[int | None]]:
    """REPEATS measurements of each; every one is the least of ROUNDS, and all take turns within a round.

    A timer gives None for what cannot be run.
    """
    found: dict[str, list[int | None]] = {name: [] for name in timers}
    for _ in range(REPEATS):
        rounds = [{name: timer() for name, timer in timers.items()} for _ in range(ROUNDS)]
        for name, least in found.items():
            times = [each[name] for each in rounds]
            least.append(None if None in times else min(time for time in times if time is not None))
    return found


def _timers(planned: Planned, work: Path) -> dict[str, Timer]:
    timers = {"plan": _program_timer(planned, PLAN, work)}
    if planned.has_rival:
        timers["single"] = _program_timer(planned, SINGLE, work)
    return timers | {f"whole {spec.name}": _whole_timer(planned, spec) for spec in planned.devices}


def _program_timer(planned: Planned, name: str, work: Path) -> Timer:
    folder = work / Path(name).stem
    folder.mkdir()
    path = planned.folder / name
    program = make_program(read_plan(path), path, folder)
    return lambda: _least(program, planned.feeds)


def _least(program: Program, feeds: Mapping[str, Any]) -> int:
    return min(run.total_ns for run in time_runs(program, feeds, RUNS, {}).runs)


def _whole_timer(planned: Planned, spec: DeviceSpec) -> Timer:
    job = WholeJob(str(planned.source), pack_all(planned.feeds), spec, RUNS)
    return lambda: _whole_least(job)


def _whole_least(job: WholeJob) -> int | None:
    """None where the device refuses the model, even with the CPU for what it cannot run."""
    try:
        return run_fresh(time_whole, job)
    except RuntimeFailure:
        return None
