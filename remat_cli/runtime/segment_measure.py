"""What running a program really takes: memory by the runtime's own counters, and times, each in a fresh process."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.interface import WeightUse
from remat_cli.core.program import Program, RunRecord, SeenMemory, SessionAction
from remat_cli.runtime._events import ProfiledRun, read_runs
from remat_cli.runtime._ort import Array, PackedArray, pack_all, unpack
from remat_cli.runtime._process import Advance, ignore_progress, run_fresh
from remat_cli.runtime._segment_sessions import Opening, has_counters
from remat_cli.runtime.segment_run import PlanRunner
from remat_cli.runtime.session import baseline_bytes
from remat_cli.runtime.weights import kept_weight_bytes


class ProgramJob(msgspec.Struct, frozen=True):
    """A program to be run with these feeds; `caps` are bytes by name of memory."""

    program: Program
    feeds: tuple[PackedArray, ...]
    repeat: int = 1
    caps: dict[str, int] = {}


class TimedRuns(msgspec.Struct, frozen=True):
    """A record per run, the first left out, and the outputs; `is_repeatable`: all runs gave the same bits."""

    runs: tuple[RunRecord, ...]
    outputs: tuple[PackedArray, ...]
    is_repeatable: bool

    @property
    def arrays(self) -> dict[str, Array]:
        """The outputs by name."""
        return {packed.name: unpack(packed) for packed in self.outputs}

    @property
    def fastest(self) -> RunRecord:
        """The run that took least time."""
        return min(self.runs, key=lambda run: run.total_ns)

    @property
    def storable(self) -> dict[str, Array]:
        """The outputs as .npz files hold them."""
        return {name: _storable(array) for name, array in self.arrays.items()}


def _storable(array: Array) -> Array:
    """Text as numpy's own, and types that numpy lacks as unsigned integers of their size."""
    if array.dtype == np.dtype(object):
        return array.astype(str)
    return array if array.dtype.isbuiltin else array.view(f"u{array.itemsize}")


def see_memory(program: Program, feeds: Mapping[str, Any]) -> SeenMemory:
    """Run a program once in a fresh process and say what each memory held.

    Raises:
        MissingDependency: a device is not here.
        RuntimeFailure: the runtime fails.
    """
    return run_fresh(see_memory_here, ProgramJob(program, pack_all(feeds)))


def time_runs(
    program: Program,
    feeds: Mapping[str, Any],
    repeat: int,
    caps: Mapping[str, int],
    advance: Advance = ignore_progress,
) -> TimedRuns:
    """Run a program so many times, after once to warm up, in a fresh process that holds memories to their caps.

    Raises:
        MissingDependency: a device is not here.
        RuntimeFailure: the runtime fails, or a cap does not suffice.
    """
    return run_fresh(time_runs_here, ProgramJob(program, pack_all(feeds), repeat, dict(caps)), advance)


def time_runs_here(job: ProgramJob, advance: Advance) -> TimedRuns:
    """Run in this process, which must not have a capped arena yet."""
    feeds = {packed.name: unpack(packed) for packed in job.feeds}
    records: list[RunRecord] = []
    with PlanRunner(job.program, Opening(job.caps)) as runner:
        first = pack_all(runner.run(feeds))
        is_repeatable = True
        for number in range(job.repeat):
            outputs, record = runner.run_recorded(feeds)
            records.append(record)
            is_repeatable = is_repeatable and pack_all(outputs) == first
            advance(number + 1, job.repeat)
    return TimedRuns(tuple(records), first, is_repeatable)


def see_memory_here(job: ProgramJob, advance: Advance) -> SeenMemory:
    """Look in this process."""
    feeds = {packed.name: unpack(packed) for packed in job.feeds}
    program = job.program
    with tempfile.TemporaryDirectory(prefix="remat_") as folder:
        with PlanRunner(program, Opening({}, Path(folder))) as runner:
            _, record = runner.run_recorded(feeds)
            files = runner.end_profiling()
        profiles = {n: read_runs(Path(f))[0] for n, f in enumerate(files) if f and Path(f).exists()}
    fed = sum(array.nbytes for array in feeds.values())
    packed = _packed(program, profiles)
    silent = _silent(program, profiles)
    kept = _kept(program, packed, silent)
    return SeenMemory(
        fixed_bytes=tuple(bytes_ + (fed if m == program.host else 0) for m, bytes_ in enumerate(kept)),
        packed_bytes=packed,
        action_bytes=_action_bytes(program, record, profiles),
        is_hidden=_hidden(program, silent),
    )


def _silent(program: Program, profiles: Mapping[int, ProfiledRun]) -> frozenset[int]:
    """Devices whose sessions do not tell what they hold: all of them where the runtime has no counters (1.24)."""
    is_counted = any(event.requested_bytes for run in profiles.values() for event in run.events)
    used = {action.device for action in program.sessions}
    return frozenset(device for device in used if not is_counted or not has_counters(program.devices[device]))


def _hidden(program: Program, silent: Collection[int]) -> tuple[bool, ...]:
    """Which memories some session uses without telling how much."""
    memories = {program.memory_of[device] for device in silent}
    return tuple(memory in memories for memory in range(len(program.memories)))


def _packed(program: Program, profiles: Mapping[int, ProfiledRun]) -> tuple[int, ...]:
    """What sessions hold before their first op, by memory."""
    total = [0] * len(program.memories)
    for number, run in profiles.items():
        total[program.memory_of[program.sessions[number].device]] += baseline_bytes(run.events)
    return tuple(total)


def _kept(program: Program, packed: tuple[int, ...], silent: Collection[int]) -> list[int]:
    """Bytes of weights by memory: packed ones, and once each those whose original some session reads."""
    outside: list[dict[str, WeightUse]] = [{} for _ in program.memories]
    for action in program.sessions:
        memory = program.memory_of[action.device]
        for name, use in action.segment.weights.items():
            is_original = action.device in silent or kept_weight_bytes([use], 0) > 0
            if is_original:
                outside[memory][name] = use
    return [bytes_ + sum(use.size_bytes for use in uses.values()) for bytes_, uses in zip(packed, outside, strict=True)]


def _action_bytes(
    program: Program, record: RunRecord, profiles: Mapping[int, ProfiledRun]
) -> tuple[tuple[int, ...], ...]:
    sessions = 0
    found = []
    for action, seen in zip(program.actions, record.actions, strict=True):
        held = list(seen.after_bytes)
        if isinstance(action, SessionAction):
            memory = program.memory_of[action.device]
            if sessions in profiles:
                held[memory] = seen.before_bytes[memory] + _inside(action, profiles[sessions])
            sessions += 1
        found.append(tuple(held))
    return tuple(found)


def _inside(action: SessionAction, run: ProfiledRun) -> int:
    """The most that a session held beyond what it was given: live tensors and workspace.

    Raises:
        RuntimeFailure: it did not run the ops of its segment in their order.
    """
    ran = tuple(event.name for event in run.events)
    if ran != action.segment.ops:
        raise RuntimeFailure(f"segment {action.segment.file} did not run in the plan's order: report this")
    base = baseline_bytes(run.events)
    return max(e.requested_bytes - base + action.workspace_bytes.get(e.name, 0) for e in run.events)
