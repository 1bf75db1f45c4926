"""Stages of a pipeline one after another in this process: the reference for what a cluster computes, bit by bit."""

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from remat_cli.pipelines.plan.orders import Turn, TurnSpan
from remat_cli.pipelines.plan.schedule_file import PipelineFile
from remat_cli.pipelines.run.stage_runner import Arrays, StageRunner, stage_options
from remat_cli.runtime.sessions._ort import Array
from remat_cli.runtime.sessions.session import SessionSettings

Feed = Callable[[int], Mapping[str, Array]]
"""Inputs of the model by number of the micro-batch."""


@dataclass(frozen=True)
class BlockRun:
    """One update, or one round of micro-batches: what the model gave for each, and how it went."""

    given: tuple[Arrays, ...]
    spans: tuple[TurnSpan, ...]
    states: tuple[Arrays, ...]


@dataclass(frozen=True)
class PipelineRunRequest:
    """How to run: micro-batches per update, updates, and what is fed; `chosen` are settings such as a learning rate.

    `states` are those that the stages begin with; empty: their first values.
    """

    batches: int
    steps: int
    is_late: bool
    feed: Feed
    chosen: Mapping[str, Array]
    states: tuple[Arrays, ...] = ()


def session_settings(plan: PipelineFile, threads: int) -> SessionSettings:
    """How sessions of stages are opened: as they are in the files, which are optimised already."""
    return SessionSettings(intra_op_threads=threads, custom_ops=plan.custom_ops)


def run_locally(
    plan: PipelineFile, folder: Path, request: PipelineRunRequest, threads: int = 0
) -> Generator[BlockRun, None, None]:
    """Run every micro-batch through all stages before the next one; an update is of use when the plan says.

    Raises:
        RuntimeFailure: ONNX Runtime refuses or fails to run a stage.
    """
    settings = session_settings(plan, threads)
    options = partial(stage_options, settings)
    runners = [StageRunner(stage, folder, options, settings, is_late=request.is_late) for stage in plan.stages]
    for runner, state in zip(runners, request.states, strict=False):
        runner.load(state)
    began = time.monotonic_ns()
    for block in range(request.steps):
        spans: list[TurnSpan] = []
        given = []
        for batch in range(block * request.batches, (block + 1) * request.batches):
            ends = batch == (block + 1) * request.batches - 1
            given.append(_one_batch(plan, runners, (block, batch, ends), request, (spans, began)))
        if plan.is_training:
            for number, runner in enumerate(runners, 1):
                start, turn = time.monotonic_ns(), Turn(runner.stage.device, number, "U", batch, block)
                runner.update(request.batches, request.chosen)
                if runner.stage.update is not None:
                    _note((spans, began), turn, start, runner)
        yield BlockRun(tuple(given), tuple(spans), tuple(runner.state() for runner in runners))


def _one_batch(
    plan: PipelineFile,
    runners: list[StageRunner],
    where: tuple[int, int, bool],
    request: PipelineRunRequest,
    log: tuple[list[TurnSpan], int],
) -> Arrays:
    block, batch, ends = where
    fed = request.feed(batch)
    outputs: Arrays = {}
    passing: Arrays = {}
    stages = list(enumerate(plan.stages, 1))
    for number, stage in stages:
        start = time.monotonic_ns()
        mine = {name: fed[name] for name in stage.fed}
        passing, made = runners[number - 1].forward((block, batch), passing, mine, ends_block=ends)
        outputs |= {name: made[name] for name in plan.outputs if name in made}
        _note(log, Turn(stage.device, number, "F", batch, block), start, runners[number - 1])
    passing = {}
    for number, stage in reversed(stages) if plan.is_training else ():
        start = time.monotonic_ns()
        passing, made = runners[number - 1].backward(batch, passing)
        outputs |= {name: made[name] for name in plan.outputs if name in made}
        _note(log, Turn(stage.device, number, "B", batch, block), start, runners[number - 1])
    return outputs


def _note(log: tuple[list[TurnSpan], int], turn: Turn, start: int, runner: StageRunner) -> None:
    spans, began = log
    now = time.monotonic_ns()
    spans.append(TurnSpan(turn.device, turn.stage, turn.kind, turn.batch, start - began, now - began, runner.alive))
