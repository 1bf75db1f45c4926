"""Run a plan whose values wait in a file while they are not needed: a thread for each lane of transfers, and no clock.

Whoever keeps the rules of the plan holds no more bytes than it, however long things really take. The main thread runs
sessions, each once so many transfers of each lane are over; a lane does its transfers in order, each once the action
that it waits for is over. A value leaves when its write and the use before its gap are both over, and room for it is
taken from the start of its read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from remat_cli.base.errors import RematError, RuntimeFailure
from remat_cli.core.schedule.program import (
    ActionRecord,
    LoadAction,
    PageMove,
    Program,
    RunRecord,
    SessionAction,
    Span,
    Spill,
)
from remat_cli.core.values.spill import DISK
from remat_cli.runtime.paging.page_store import HeldPage, PageStore, open_store
from remat_cli.runtime.segments._segment_sessions import Opened, Opening, check_feeds, mapped_weight, owned
from remat_cli.runtime.segments._session_turns import SessionTurns
from remat_cli.runtime.sessions._ort import Array, host_value
from remat_cli.runtime.sessions.error_text import one_line
from remat_cli.runtime.sessions.heap import give_blocks_back


class PagedRunner:
    """Runs a program that pages, as often as asked; one run at a time: it may not be shared by threads.

    Use it in a `with` block, or call `close`, which frees sessions, weights, buffers and the file. With glibc, blocks
    of 64 KiB and more that this process frees go back to the system from now on: otherwise it would keep what sessions
    free, and the plan would hold in name only. `is_overlapped` False waits for each transfer where it is issued.
    """

    def __init__(self, program: Program, opening: Opening | None = None, *, is_overlapped: bool = True) -> None:
        """Open all sessions, and make the file.

        Raises:
            MissingDependency: a device of the plan is not here.
            RuntimeFailure: the runtime refuses a segment.
            ConfigError: the folder for pages cannot be written to.
            RematError: its disk is too full, or failed.
        """
        if program.spill is None:
            raise RematError("this plan pages nothing: run it as one that does not page")
        self.program, self._is_overlapped = program, is_overlapped
        self._spill: Spill = program.spill
        self._store = open_store(program, self._spill)
        try:
            if self._spill.memory == DISK:
                give_blocks_back()
            self._turns: SessionTurns | None = SessionTurns(program, changed(opening or Opening({}), has_arena=False))
        except BaseException:
            self._store.close()
            raise

    def __enter__(self) -> PagedRunner:
        """The runner itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free everything."""
        self.close()

    def close(self) -> None:
        """Free everything; the runner cannot run any more."""
        self._store.close()
        self._turns = None

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run once; inputs and outputs are numpy arrays by name.

        Raises:
            ModelError: the feeds do not fit.
            RuntimeFailure: the runtime fails, or memory does not suffice.
            RematError: the disk fails.
        """
        return self.run_recorded(feeds)[0]

    def run_recorded(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], RunRecord]:
        """Run once, and say how long each action and each transfer took, and what was held.

        Raises:
            ModelError: the feeds do not fit.
            RuntimeFailure: the runtime fails, or memory does not suffice.
            RematError: the disk fails.
        """
        if self._turns is None:
            raise RuntimeFailure("this plan was closed: load it again")
        arrays = check_feeds(self.program.inputs, feeds)
        run = _PagedRun(self.program, self._spill, self._store, self._turns, self._is_overlapped)
        return run.outputs(arrays), run.record()

    def end_profiling(self) -> tuple[str, ...]:
        """Files with the profiles of sessions that were opened for it, in order."""
        return () if self._turns is None else self._turns.end_profiling()


@dataclass
class _PagedRun:
    """One run while it goes on. What `state` guards is shared by all threads."""

    program: Program
    spill: Spill
    store: PageStore
    turns: SessionTurns
    is_overlapped: bool
    began_ns: int = field(default_factory=time.perf_counter_ns)
    state: threading.Condition = field(default_factory=threading.Condition)
    held: dict[str, HeldPage] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    over: int = -1
    done: list[int] = field(default_factory=list)
    failure: BaseException | None = None
    is_ended: bool = False
    spans: list[tuple[Span, int]] = field(default_factory=list)
    moves: list[list[Span]] = field(default_factory=list)
    ended_ns: int = 0

    def outputs(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Do every action, transfers beside them, and hand over the outputs."""
        lanes = self.spill.lanes
        self.done, self.moves = [0] * len(lanes), [[] for _ in lanes]
        self.store.begin_run()
        self.held = {name: HeldPage(host_value(array)) for name, array in arrays.items()}
        threads = [
            threading.Thread(target=self._lane, args=(number,), name=f"remat-pages-{number}", daemon=True)
            for number in range(len(lanes))
        ]
        for thread in threads:
            thread.start()
        try:
            places = iter(range(len(self.program.sessions)))
            for number, action in enumerate(self.program.actions):
                self._wait(self.spill.waits[number])
                if isinstance(action, LoadAction):
                    self._act(number, action.drops, partial(self._open, action))
                elif isinstance(action, SessionAction):
                    self._act(number, action.drops, partial(self._run, next(places)))
            self.store.limit(self.spill.room_bytes[-1])
            self._wait(tuple(map(len, lanes)))
            self.ended_ns = self._now()
            return {name: self._output(name, arrays) for name in self.program.outputs}
        finally:
            with self.state:
                self.is_ended = True
                self.state.notify_all()
            for thread in threads:
                thread.join()
            self.turns.end_turns()
            for name in list(self.held):
                self._release(name)
            self.store.end_run()

    def record(self) -> RunRecord:
        """What the run took."""
        actions = (ActionRecord(*span, (most,), (most,)) for span, most in self.spans)
        return RunRecord(tuple(actions), self.ended_ns, tuple(span for lane in self.moves for span in lane))

    def _now(self) -> int:
        return time.perf_counter_ns() - self.began_ns

    def _wait(self, counts: tuple[int, ...]) -> None:
        """Wait until so many transfers of each lane are over."""

        def is_ready() -> bool:
            return self.failure is not None or all(a >= b for a, b in zip(self.done, counts, strict=True))

        with self.state:
            while not is_ready():
                self.state.wait()
            if self.failure is not None:
                raise self.failure

    def _act(self, number: int, drops: tuple[str, ...], do: Callable[[], None]) -> None:
        """Run or open one session, and let go of what leaves then."""
        self.store.limit(self.spill.room_bytes[number])
        begin = self._now()
        with self.store.turn:
            do()
        self.spans.append(((begin, self._now()), self.store.most_held_bytes))
        with self.state:
            for name in drops:
                self._release(name)
            for move in self.spill.moves:
                if move.direction == "read" and move.away_after == number:
                    # The use before a gap is over: let go of the value now, or when its write is over.
                    if move.value in self.written:
                        self._release(move.value)
                    else:
                        self.leaving.add(move.value)
            self.over = number
            self.state.notify_all()
        if not self.is_overlapped:
            self._wait(tuple(sum(move.after_action <= number for move in lane) for lane in self.spill.lanes))

    def _open(self, action: LoadAction) -> None:
        """Open a session over the weights that were read for it."""
        given: dict[str, Any] = {}
        kept: list[Any] = []
        for name in action.images:
            with self.state:
                held = self.held[name]
            values = self.store.weights(name, held)
            given |= values
            kept += [] if name in action.drops else values.values()
        self.turns.open(action.session, given, tuple(kept))

    def _run(self, place: int) -> None:
        """Run a session, and close it where its weights page."""
        self._call(self.turns.get(place))
        self.turns.end_turn(place)

    def _call(self, opened: Opened) -> None:
        binding, segment = opened.binding, opened.action.segment
        with self.state:
            inputs = [self.held[name] for name in segment.reads]
        for name, each in zip(segment.reads, inputs, strict=True):
            binding.bind_ortvalue_input(name, each.value)
        made = {name: self.store.room(name) for name in segment.makes}
        for (name, room), place in zip(made.items(), opened.places, strict=True):
            if room is None:
                binding.bind_output(name, *place)
            else:
                binding.bind_ortvalue_output(name, room.value)
        try:
            opened.session.run_with_iobinding(binding)
            own = binding.get_outputs() if None in made.values() else ()
            theirs = dict(zip(segment.makes, own, strict=True)) if own else {}
            new = {name: room or self.store.adopt(owned(theirs[name])) for name, room in made.items()}
        except Exception as error:
            for room in made.values():
                if room is not None:
                    self.store.give(room)
            number, count = self.program.sessions.index(opened.action) + 1, len(self.program.sessions)
            raise RuntimeFailure(f"ONNX Runtime fails in session {number} of {count}: {one_line(error)}") from error
        finally:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
        with self.state:
            self.held |= new

    def _release(self, name: str) -> None:
        """Let go of a value."""
        each = self.held.pop(name, None)
        if each is not None:
            self.store.give(each)

    def _output(self, name: str, arrays: Mapping[str, Array]) -> Array:
        if name in arrays:
            return arrays[name].copy()
        each = self.held.get(name)
        if each is None:
            return np.array(mapped_weight(Path(self.program.folder), self.program.weights[name]))
        del self.held[name]
        return self.store.output(each)

    def _lane(self, lane: int) -> None:
        """The transfers of one lane, in order."""
        try:
            for move in self.spill.lanes[lane]:
                if not self._may_begin(lane, move):
                    return
                begin = self._now()
                self._transfer(move)
                self.moves[lane].append((begin, self._now()))
                with self.state:
                    if move.direction == "write":
                        self.written.add(move.value)
                        if move.value in self.leaving:
                            self.leaving.discard(move.value)
                            self._release(move.value)
                    self.done[lane] += 1
                    self.state.notify_all()
        except BaseException as error:
            with self.state:
                self.failure = error
                self.state.notify_all()

    def _may_begin(self, lane: int, move: PageMove) -> bool:
        """Wait for what comes before a transfer; False: the run is over, or failed."""

        def is_ready() -> bool:
            others = sum(count for number, count in enumerate(self.done) if number != lane)
            return self.over >= move.after_action and others >= move.after_others

        with self.state:
            while not (self.is_ended or self.failure is not None or is_ready()):
                self.state.wait()
            return not self.is_ended and self.failure is None

    def _transfer(self, move: PageMove) -> None:
        if move.direction == "read":
            made = self.store.read(move, lambda: self.is_ended)
            with self.state:
                self.held[move.value] = made
            return
        with self.state:
            each = self.held[move.value]
        self.store.write(move, each, lambda: self.is_ended)
