"""Run a plan that spans devices, session by session, and see what that really takes.

Orders and lifetimes are those of the plan: sessions run exactly their file, and what they give is held by this module
alone, from the action that makes it to the action after which nobody needs it. Figures come from fresh processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.schedule.program import ActionRecord, CopyAction, Program, RunRecord
from remat_cli.runtime.paging.paged_run import PagedRunner
from remat_cli.runtime.segments._segment_sessions import (
    Holdings,
    Opened,
    Opening,
    as_array,
    bound_outputs,
    check_devices,
    check_feeds,
    copied,
    mapped_weight,
    misplaced_op,
    open_all,
    owned,
    place_of_device,
)
from remat_cli.runtime.sessions._ort import (
    LONGEST_RUN_SECONDS,
    Advance,
    Array,
    PackedArray,
    failure,
    ignore_progress,
    pack_all,
    run_fresh,
    runtime_errors,
    storable,
    unpack_all,
)
from remat_cli.runtime.sessions.error_text import asked, is_out_of_memory
from remat_cli.runtime.sessions.providers import placed_value

__all__ = ["PlanRunner", "check_devices", "open_runner"]


class PlanRunner:
    """Runs a program as often as asked; one run at a time: it may not be shared by threads.

    Use it in a `with` block, or call `close`, which frees sessions, weights and threads.
    """

    def __init__(self, program: Program, opening: Opening | None = None) -> None:
        """Open all sessions.

        Raises:
            MissingDependency: a device of the plan is not here.
            RuntimeFailure: the runtime refuses a segment, or puts an op elsewhere than the plan does.
        """
        self.program = program
        opening = opening or Opening({})
        self._opened: tuple[Opened, ...] = open_all(program, opening)
        self._caps = dict(opening.caps)
        if not opening.may_misplace and self.misplaced_op is not None:
            raise RuntimeFailure(f"{self.misplaced_op}, as the plan wants it: compile again")
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

    @property
    def misplaced_op(self) -> str | None:
        """An op that the runtime did not put where the plan has it, and where that is."""
        found = (misplaced_op(opened, self.program) for opened in self._opened)
        return next((line for line in found if line is not None), None)

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


def open_runner(
    program: Program, opening: Opening | None = None, *, is_overlapped: bool = True
) -> PlanRunner | PagedRunner:
    """What runs a program: one that pages has a runner of its own."""
    if program.spill is None:
        return PlanRunner(program, opening)
    return PagedRunner(program, opening, is_overlapped=is_overlapped)


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
        """An output as an array of the caller's: what was fed, or made, or a weight."""
        if name in arrays:
            return arrays[name].copy()
        if name in self.held.values:
            with runtime_errors(f"fetching '{name}' from memory '{self._memory(name)}' failed"):
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
        way = f"from memory '{self._memory(action.source)}' to '{self._memory(action.target)}'"
        source = self.held.values[action.source]

        def work() -> Any:
            start = self._now()
            with runtime_errors(f"copying '{action.source}' {way} failed"):
                made = copied(source.result() if isinstance(source, Future) else source, place)
            self.spans[number] = (start, self._now())
            return made

        if self.program.overlap:
            under_way = self.link(action).submit(work)
            self.copying.setdefault(action.source, []).append(under_way)
            self.held.put(action.target, under_way)
        else:
            self.held.put(action.target, work())

    def _memory(self, name: str) -> str:
        """The name of the memory that a value is in."""
        return self.program.memories[self.program.values[name].memory]

    def _drop(self, name: str) -> None:
        """Let go of a value once the copies of it are over, so that its memory is really free.

        By itself, since a name for a copy's future in the loop of actions would keep that copy's memory too.
        """
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
        if not is_out_of_memory(text):
            return failure(f"ONNX Runtime fails on {where}", error)
        cap = self.caps.get(memory)
        limit = f" under the cap of {cap:,} bytes of memory '{memory}'" if cap is not None else f" in '{memory}'"
        return RuntimeFailure(f"out of memory on {where}{asked(text)}{limit}")


class ProgramJob(msgspec.Struct, frozen=True):
    """A program to be run with these feeds; `caps` are bytes by name of memory.

    One that pages waits for each transfer where it is issued if not `is_overlapped`.
    """

    program: Program
    feeds: tuple[PackedArray, ...]
    repeat: int = 1
    caps: dict[str, int] = {}
    is_overlapped: bool = True


class TimedRuns(msgspec.Struct, frozen=True):
    """A record per run, the first left out, and the outputs; `is_repeatable`: all runs gave the same bits."""

    runs: tuple[RunRecord, ...]
    outputs: tuple[PackedArray, ...]
    is_repeatable: bool

    @property
    def arrays(self) -> dict[str, Array]:
        """The outputs by name."""
        return unpack_all(self.outputs)

    @property
    def fastest(self) -> RunRecord:
        """The run that took least time."""
        return min(self.runs, key=lambda run: run.total_ns)

    @property
    def storable(self) -> dict[str, Array]:
        """The outputs as .npz files hold them."""
        return {name: storable(array) for name, array in self.arrays.items()}


def time_runs(
    program: Program,
    feeds: Mapping[str, Any],
    repeat: int,
    caps: Mapping[str, int],
    advance: Advance = ignore_progress,
    seconds: float = LONGEST_RUN_SECONDS,
) -> TimedRuns:
    """Run a program so many times, after once to warm up, in a fresh process that holds memories to their caps.

    Whether each op is where the plan has it is what `see_memory` says.

    Raises:
        MissingDependency: a device is not here.
        RuntimeFailure: the runtime fails, a cap does not suffice, or no run ends for `seconds`.
    """
    return run_fresh(time_runs_here, ProgramJob(program, pack_all(feeds), repeat, dict(caps)), advance, seconds)


def time_runs_here(job: ProgramJob, advance: Advance) -> TimedRuns:
    """Run in this process, which must not have a capped arena yet."""
    feeds = unpack_all(job.feeds)
    records: list[RunRecord] = []
    opening = Opening(job.caps, may_misplace=True)
    with open_runner(job.program, opening, is_overlapped=job.is_overlapped) as runner:
        first = pack_all(runner.run(feeds))
        is_repeatable = True
        for number in range(job.repeat):
            outputs, record = runner.run_recorded(feeds)
            records.append(record)
            is_repeatable = is_repeatable and pack_all(outputs) == first
            advance(number + 1, job.repeat)
    return TimedRuns(tuple(records), first, is_repeatable)
