"""Run a plan that spans devices, session by session, and see what that really takes.

Orders and lifetimes are those of the plan: sessions run exactly their file, and what they give is held by this module
alone, from the action that makes it to the action after which nobody needs it. Figures come from fresh processes.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.program import ActionRecord, CopyAction, Program, RunRecord, SeenMemory, SessionAction, WeightUse
from remat_cli.runtime._events import ProfiledRun, read_runs
from remat_cli.runtime._ort import (
    Advance,
    Array,
    PackedArray,
    ignore_progress,
    one_line,
    pack_all,
    run_fresh,
    runtime_errors,
    unpack,
)
from remat_cli.runtime._segment_sessions import (
    Holdings,
    Opened,
    Opening,
    as_array,
    bound_outputs,
    check_devices,
    check_feeds,
    copied,
    has_counters,
    mapped_weight,
    open_all,
    owned,
    place_of_device,
)
from remat_cli.runtime.caps import OUT_OF_MEMORY
from remat_cli.runtime.providers import placed_value
from remat_cli.runtime.session import baseline_bytes
from remat_cli.runtime.weights import kept_weight_bytes

__all__ = ["PlanRunner", "check_devices"]


class PlanRunner:
    """Runs a program as often as asked; one run at a time: it may not be shared by threads.

    Use it in a `with` block, or call `close`, which frees sessions, weights and threads.
    """

    def __init__(self, program: Program, opening: Opening | None = None) -> None:
        """Open all sessions.

        Raises:
            MissingDependency: a device of the plan is not here.
            RuntimeFailure: the runtime refuses a segment.
        """
        self.program = program
        self._opened: tuple[Opened, ...] = open_all(program, opening or Opening({}))
        self._caps = dict((opening or Opening({})).caps)
        self._links: dict[tuple[int, int], ThreadPoolExecutor] = {}

    def __enter__(self) -> PlanRunner:
        """The runner itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free everything."""
        self.close()

    def close(self) -> None:
        """Free sessions, weights and threads; the runner cannot run any more."""
        for pool in self._links.values():
            pool.shutdown()
        self._links, self._opened = {}, ()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run once; inputs and outputs are numpy arrays by name.

        Raises:
            ModelError: the feeds do not fit.
            RuntimeFailure: the runtime fails, or memory does not suffice.
        """
        return self.run_recorded(feeds)[0]

    def run_recorded(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], RunRecord]:
        """Run once, and say how long each action took and what was held.

        Raises:
            ModelError: the feeds do not fit.
            RuntimeFailure: the runtime fails, or memory does not suffice.
        """
        if self.program.sessions and not self._opened:
            raise RuntimeFailure("this plan was closed: load it again")
        arrays = check_feeds(self.program.inputs, feeds)
        fed = {name: placed_value(array, ("cpu", 0)) for name, array in arrays.items()}
        run = _Run(self.program, self._opened, self._caps, Holdings(self.program, fed), self._link)
        return run.outputs(arrays), run.record()

    def end_profiling(self) -> tuple[str, ...]:
        """Files with the profiles of sessions that were opened for it, in order."""
        return tuple(opened.session.end_profiling() for opened in self._opened)

    def _link(self, action: CopyAction) -> ThreadPoolExecutor:
        """The thread of a link."""
        memory_of = self.program.memory_of
        key = (memory_of[action.source_device], memory_of[action.target_device])
        if key not in self._links:
            self._links[key] = ThreadPoolExecutor(1, f"remat-link-{key[0]}-{key[1]}")
        return self._links[key]


@dataclass
class _Run:
    """One run while it goes on."""

    program: Program
    opened: tuple[Opened, ...]
    caps: Mapping[str, int]
    held: Holdings
    link: Callable[[CopyAction], ThreadPoolExecutor]
    began_ns: int = field(default_factory=time.perf_counter_ns)
    copying: dict[str, list[Future[Any]]] = field(default_factory=dict)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    bytes_: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    ended_ns: int = 0

    def outputs(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Do every action and fetch the outputs."""
        sessions = iter(self.opened)
        for number, action in enumerate(self.program.actions):
            before = tuple(self.held.held_bytes)
            start = self._now()
            if isinstance(action, CopyAction):
                self._copy(number, action)
            else:
                self._call(next(sessions))
            if number not in self.spans:
                self.spans[number] = (start, self._now())
            self.bytes_.append((before, tuple(self.held.held_bytes)))
            for name in action.drops:
                self._drop(name)
        found = {name: self._output(name, arrays) for name in self.program.outputs}
        for name in list(self.held.values):
            self.held.get(name)  # a copy that nobody read must be over before the run is
        self.ended_ns = self._now()
        return found

    def record(self) -> RunRecord:
        """What the run took."""
        records = (
            ActionRecord(*self.spans[number], before, after) for number, (before, after) in enumerate(self.bytes_)
        )
        return RunRecord(tuple(records), self.ended_ns)

    def _now(self) -> int:
        return time.perf_counter_ns() - self.began_ns

    def _output(self, name: str, arrays: Mapping[str, Array]) -> Array:
        if name in arrays:
            return arrays[name].copy()
        if name in self.held.values:
            return as_array(self.held.get(name))
        return np.array(mapped_weight(Path(self.program.folder), self.program.weights[name]))

    def _call(self, opened: Opened) -> None:
        """Run one session."""
        binding, segment = opened.binding, opened.action.segment
        inputs = [self.held.get(name) for name in segment.reads]
        for name, value in zip(segment.reads, inputs, strict=True):
            binding.bind_ortvalue_input(name, value)
        buffers = bound_outputs(opened, self.program)
        try:
            opened.session.run_with_iobinding(binding)
            values = buffers or [owned(value) for value in binding.get_outputs()]
        except Exception as error:
            raise self._failure(opened, error) from error
        finally:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
        for name, value in zip(segment.makes, values, strict=True):
            self.held.put(name, value)

    def _copy(self, number: int, action: CopyAction) -> None:
        """Copy now, or beside what follows."""
        place = place_of_device(self.program.devices[action.target_device])
        source = self.held.values[action.source]

        def work() -> Any:
            start = self._now()
            with runtime_errors(f"copying '{action.source}' to {place[0]} failed"):
                made = copied(source.result() if isinstance(source, Future) else source, place)
            self.spans[number] = (start, self._now())
            return made

        if self.program.overlap:
            under_way = self.link(action).submit(work)
            self.copying.setdefault(action.source, []).append(under_way)
            self.held.put(action.target, under_way)
        else:
            self.held.put(action.target, work())

    def _drop(self, name: str) -> None:
        """Let go of a value once the copies of it are over, so that its memory is really free."""
        for under_way in self.copying.pop(name, ()):
            under_way.result()
        self.held.drop(name)

    def _failure(self, opened: Opened, error: Exception) -> RuntimeFailure:
        """One line that names the device, and what memory lacked if that is why."""
        action = opened.action
        device = self.program.devices[action.device].name
        memory = self.program.memories[self.program.memory_of[action.device]]
        where = f"device '{device}' (action {self.program.actions.index(action) + 1} of {len(self.program.actions)})"
        text = str(error)
        if not any(sign in text for sign in (*OUT_OF_MEMORY, "out of memory")):
            return RuntimeFailure(f"ONNX Runtime fails on {where}: {one_line(error)}")
        cap = self.caps.get(memory)
        limit = f" under the cap of {cap:,} bytes of memory '{memory}'" if cap is not None else f" in '{memory}'"
        return RuntimeFailure(f"out of memory on {where}{_asked(text)}{limit}")


def _asked(text: str) -> str:
    """Which op asked for how many bytes more, as far as the runtime says it."""
    op = re.search(r"Name:'([^']*)'", text)
    asked = re.search(r"requested bytes of (\d+)", text)
    return (f" in op '{op[1]}'" if op else "") + (f": {int(asked[1]):,} bytes more were needed" if asked else "")


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
    program: Program, feeds: Mapping[str, Any], repeat: int, caps: Mapping[str, int], advance: Advance = ignore_progress
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
            if action.device in silent or kept_weight_bytes([use], 0) > 0:
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
    held = (e.requested_bytes - base + action.workspace_bytes.get(e.name, 0) for e in run.events)
    return max(held, default=0)
