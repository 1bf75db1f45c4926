"""What each device of a pipeline does one after another: a periodic schedule as orders, without clocks."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from remat_cli.pipelines.plan.schedule_file import PipelineFile


@dataclass(frozen=True)
class Turn:
    """Forward (F), backward (B) or update (U) of a stage, counted from 1.

    `batch` counts micro-batches from 0; of an update it is the last that counts. `block` counts updates.
    """

    device: int
    stage: int
    kind: Literal["F", "B", "U"]
    batch: int
    block: int
    ends_block: bool = False


class TurnSpan(msgspec.Struct, frozen=True):
    """When a turn was run, in nanoseconds since the first, and what was held then.

    `alive` is how many micro-batches its stage kept, `held_bytes` the most that its process held of its own beyond an
    empty one, `mapped_bytes` what it had mapped of files and of an object store beyond it; 0 where nobody looked.
    """

    device: int
    stage: int
    kind: str
    batch: int
    start_ns: int
    end_ns: int
    alive: int
    held_bytes: int = 0
    mapped_bytes: int = 0


def flushed_turns(plan: PipelineFile, batches: int, steps: int) -> list[Turn]:
    """Orders in which the pipeline runs empty before each update; sorted by when they would be run.

    What a device does in which order follows from the list; what waits for what is in the names of what passes.
    """
    found: list[Turn] = []
    for block in range(steps):
        numbers = range(block * batches, (block + 1) * batches)
        found += _block(plan, range(batches), numbers.start, batches)
        for number, stage in enumerate(plan.stages, 1):
            if stage.update is not None:
                found.append(Turn(stage.device, number, "U", numbers[-1], block))
    return found


def late_turns(plan: PipelineFile, batches: int, steps: int) -> list[Turn]:
    """Orders without a pause: an update comes right after the last backward that is part of it.

    No stage may hold more micro-batches than there are between two updates: there are two versions of the weights.
    """
    found: list[Turn] = []
    for turn in _block(plan, range(batches * steps), 0, batches):
        found.append(turn)
        if turn.kind == "B" and turn.ends_block and plan.stages[turn.stage - 1].update is not None:
            found.append(Turn(turn.device, turn.stage, "U", turn.batch, turn.block))
    return found


def _block(plan: PipelineFile, batches: range, first: int, per_update: int) -> list[Turn]:
    """Forwards and backwards of some micro-batches, by the times at which the schedule has them."""
    n, schedule = plan.chain.layers, plan.schedule
    timed = []
    for batch in batches:
        rounds, slot = divmod(batch, len(schedule.starts))
        number = first + batch
        for task in range(2 * n if plan.is_training else n):
            stage = task + 1 if task < n else 2 * n - task
            at = schedule.starts[slot][task] + rounds * schedule.period
            ends = number % per_update == per_update - 1
            kind: Literal["F", "B"] = "F" if task < n else "B"
            turn = Turn(schedule.devices[stage - 1], stage, kind, number, number // per_update, ends)
            timed.append(((at, batch, task), turn))
    return [turn for _, turn in sorted(timed, key=lambda each: each[0])]
