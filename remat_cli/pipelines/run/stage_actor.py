"""A device of a pipeline as an actor: its stages, run turn by turn, and what its process holds meanwhile."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from remat_cli.pipelines.plan.orders import Turn, TurnSpan
from remat_cli.pipelines.plan.schedule_file import PipelineFile
from remat_cli.pipelines.run.local import session_settings
from remat_cli.pipelines.run.stage_runner import Arrays, StageRunner, stage_options
from remat_cli.runtime.observe.resident import (
    ResidentBytes,
    can_measure_resident,
    ready,
    resident_bytes,
    watch_here,
    watched,
)
from remat_cli.runtime.sessions._ort import share_arena, use_shared_arena
from remat_cli.runtime.sessions.heap import give_blocks_back
from remat_cli.runtime.sessions.session import session_options

Done = TypeVar("Done")
NOT_SEEN = ResidentBytes(0, 0)


class DeviceActor:
    """One device: its stages, run turn by turn.

    What is measured is resident memory above a process that has the runtime and a tiny session open.
    """

    def __init__(self, plan: PipelineFile, numbers: Sequence[int], request: tuple[str, bool, int]) -> None:
        """Open the sessions of some stages, counted from 1; folder, whether updates come late, threads."""
        folder, is_late, threads = request
        settings = session_settings(plan, threads)
        give_blocks_back()
        share_arena(session_options(settings))
        self._outputs = frozenset(plan.outputs)
        _, self._tiny = ready((), settings)
        self._watch = watch_here()[1] if can_measure_resident() else None
        self._empty = resident_bytes() if self._watch else NOT_SEEN

        def options() -> Any:
            shared = stage_options(settings)
            use_shared_arena(shared)  # what one session frees the next can take
            return shared

        self._runners, self._opening = self._watched(
            lambda: {
                number: StageRunner(plan.stages[number - 1], Path(folder), options, settings, is_late=is_late)
                for number in numbers
            }
        )

    def load(self, stage: int, state: Arrays) -> None:
        """Begin with another state than the first."""
        self._runners[stage].load(state)

    def forward(self, turn: Turn, arrived: Arrays, fed: Arrays) -> tuple[Arrays, Any]:
        """What goes on to the next stage; and what the model gives, with when it was made."""
        runner = self._runners[turn.stage]
        place = (turn.block, turn.batch)
        (leaves, made), span = self._timed(
            turn, lambda: runner.forward(place, arrived, fed, ends_block=turn.ends_block)
        )
        return leaves, (self._given(made), span)

    def backward(self, turn: Turn, returned: Arrays) -> tuple[Arrays, Any]:
        """What goes back to the stage before; and what the model gives, with when it was made."""
        runner = self._runners[turn.stage]
        (goes_back, made), span = self._timed(turn, lambda: runner.backward(turn.batch, returned))
        return goes_back, (self._given(made), span)

    def update(self, turn: Turn, batches: int, chosen: Arrays) -> tuple[Arrays, Any]:
        """Update, and give the state that the next block begins with; nothing else comes out."""
        runner = self._runners[turn.stage]
        _, span = self._timed(turn, lambda: runner.update(batches, chosen))
        return runner.state(), ({}, span)

    def state(self, stage: int) -> Arrays:
        """All that stays from step to step."""
        return self._runners[stage].state()

    def where(self) -> int:
        """The number of this process, so that somebody can look at it."""
        return os.getpid()

    def _given(self, made: Mapping[str, Any]) -> Arrays:
        return {name: array for name, array in made.items() if name in self._outputs}

    def _timed(self, turn: Turn, do: Callable[[], Done]) -> tuple[Done, TurnSpan]:
        """What a turn gives, and how it went; what opening the sessions took is the first turn's."""
        began = time.monotonic_ns()
        done, held = self._watched(do)
        ended = time.monotonic_ns()
        held, self._opening = max(held, self._opening, key=lambda each: each.anonymous_bytes), NOT_SEEN
        alive = self._runners[turn.stage].alive
        rows = (turn.device, turn.stage, turn.kind, turn.batch, began, ended, alive)
        return done, TurnSpan(*rows, held.anonymous_bytes, held.mapped_bytes)

    def _watched(self, do: Callable[[], Done]) -> tuple[Done, ResidentBytes]:
        """What a function returns, and the most that the process held meanwhile."""
        if self._watch is None:
            return do(), NOT_SEEN
        done, peak, _ = watched(do, self._watch)
        return done, peak.above(self._empty)
