"""`remat run` of a schedule of stages: on a cluster, or one after another in this process."""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.base import progress as stages
from remat_cli.base.errors import ConfigError, ModelError, RuntimeFailure
from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.pipelines.commands.run_words import PipelineOptions, pipeline_options
from remat_cli.pipelines.plan.schedule_file import PipelineFile, read_pipeline
from remat_cli.pipelines.report.pipeline_run import (
    PipelineRunReport,
    measured_period,
    overlap,
    ran_actors,
    ran_stages,
)
from remat_cli.pipelines.run.feeds import chosen_settings, pipeline_feed
from remat_cli.pipelines.run.local import BlockRun, PipelineRunRequest, run_locally
from remat_cli.pipelines.run.on_ray import LostStage, run_on_cluster
from remat_cli.pipelines.run.ray_cluster import ClusterOptions
from remat_cli.pipelines.run.trace import pipeline_trace
from remat_cli.runtime.sessions.array_file import read_arrays, write_arrays
from remat_cli.settings.settings import Settings

RUN_FILE = "run.json"
STATE_FOLDER = "state"


class RunMark(msgspec.Struct, frozen=True):
    """The mark of a folder of states: which stages they belong to, and after how many updates they were saved."""

    model_sha256: str
    stages: int
    updates: int
    is_late: bool


def ready_pipeline(path: Path, words: Mapping[str, Any]) -> Callable[[Settings, Progress], PipelineRunReport]:
    """What runs a schedule as the words of `run` ask; nothing runs yet.

    Raises:
        ConfigError: a word that makes no sense for a schedule, or a value that cannot be used.
    """
    options = pipeline_options(path, words)
    return lambda settings, progress: run_pipeline(path, options, settings, progress)


def run_pipeline(path: Path, options: PipelineOptions, settings: Settings, progress: Progress) -> PipelineRunReport:
    """Run a schedule: micro-batches through all stages, with an update after so many of them.

    Raises:
        InputError: the schedule, the options, inputs or an output path cannot be used.
        MissingDependency: Ray is not installed.
        RuntimeFailure: ONNX Runtime fails, the cluster is not there, or a stage is lost.
    """
    started = time.monotonic()
    progress.stage(stages.READING)
    plan = read_pipeline(path)
    folder = path.resolve().parent
    batches = _check(plan, path, options, settings)
    saved = options.state or folder / STATE_FOLDER
    before, states = _resumed(plan, saved) if options.resume else (0, ())
    feed = pipeline_feed(plan, folder, settings.inputs, settings.seed)
    request = PipelineRunRequest(
        batches=batches,
        steps=options.steps,
        is_late=not options.is_flushed,
        feed=lambda batch: feed(batch + before * batches),
        chosen=chosen_settings(plan, settings.inputs, options.learning_rate),
        states=states,
    )
    progress.stage(stages.RUNNING)
    threads = options.intra_op_threads
    if options.is_local:
        running = run_locally(plan, folder, request, threads)
    else:
        running = run_on_cluster(plan, folder, request, ClusterOptions(options.address, options.resources, threads))
    blocks = list(_blocks(plan, running, request, (saved, before), progress))
    if plan.is_training and options.state is not None:
        _save(plan, saved, blocks[-1].states, before + options.steps, is_late=request.is_late)
    if settings.output is not None:
        write_arrays(settings.output, _results(plan, blocks))
    if options.trace is not None:
        atomic_write(options.trace, pipeline_trace(plan, [span for block in blocks for span in block.spans]))
    return _report(plan, path, blocks, (options, batches, before), settings, time.monotonic() - started)


def _check(plan: PipelineFile, path: Path, options: PipelineOptions, settings: Settings) -> int:
    """Check that all options make sense together; returns the micro-batches per update."""
    batches = plan.request.micro_batches if options.micro_batches is None else options.micro_batches
    if batches < 1 or options.steps < 1:
        raise ConfigError(f"--steps {options.steps} and --micro-batches {batches} must be at least 1")
    if options.is_local and (options.address is not None or options.resources):
        raise ConfigError("--local runs in this process: leave out --address and --resource")
    if not options.is_flushed and not plan.is_training:
        raise ConfigError(f"{path} only infers: there are no updates, so leave out --no-flush")
    if not options.is_flushed and plan.most_alive > batches:
        raise ConfigError(
            f"{batches} micro-batches per update are too few with --no-flush: a stage of this plan holds "
            f"{plan.most_alive} at a time; give at least --micro-batches {plan.most_alive}"
        )
    targets = [target for target in (settings.output, options.trace) if target is not None]
    for number, target in enumerate(targets):
        check_target(target, sources=(path, *targets[:number]), overwrite=settings.force)
    if options.state is not None and not options.resume and not settings.force and (options.state / RUN_FILE).exists():
        raise ConfigError(f"state {options.state} exists: add --resume to go on from it, or --force to begin anew")
    return batches


def _blocks(
    plan: PipelineFile,
    running: Generator[BlockRun, None, None],
    request: PipelineRunRequest,
    kept: tuple[Path, int],
    progress: Progress,
) -> Iterator[BlockRun]:
    """Pass on what each update gave; where a stage is lost, save the state before.

    Raises:
        RuntimeFailure: a stage is lost, with what to do next.
    """
    saved, before = kept
    with contextlib.closing(running):
        try:
            for number, block in enumerate(running, 1):
                progress.advance(number, request.steps)
                states = block.states if number == request.steps else ()  # which only matter of the last one
                yield BlockRun(block.given, block.spans, states)
        except LostStage as lost:
            if not plan.is_training or not lost.states:
                raise RuntimeFailure(f"{lost}: no update had finished, so begin again") from None
            done = before + lost.finished
            _save(plan, saved, lost.states, done, is_late=request.is_late)
            raise RuntimeFailure(
                f"{lost}: the state after {done} updates is in {saved}, go on from it with --resume"
            ) from None


def _save(
    plan: PipelineFile, folder: Path, states: Sequence[Mapping[str, np.ndarray]], updates: int, *, is_late: bool
) -> None:
    """Save the state of each stage, and then the mark that says what it belongs to."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, state in enumerate(states, 1):
        write_arrays(folder / f"stage_{number}.npz", state)
    mark = RunMark(plan.model_sha256, len(plan.stages), updates, is_late)
    atomic_write(folder / RUN_FILE, msgspec.json.encode(mark))


def _resumed(plan: PipelineFile, folder: Path) -> tuple[int, tuple[dict[str, np.ndarray], ...]]:
    """Read a saved state: after how many updates it is, and the arrays of each stage.

    Raises:
        ConfigError: there is none, or it belongs to other stages.
    """
    try:
        mark = msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=RunMark)
    except OSError:
        raise ConfigError(f"no state to go on from in {folder}: leave out --resume, or name it with --state") from None
    except msgspec.MsgspecError as error:
        raise ModelError(f"state {folder / RUN_FILE} is damaged: {error}") from None
    if (mark.model_sha256, mark.stages) != (plan.model_sha256, len(plan.stages)):
        raise ConfigError(f"the state in {folder} belongs to other stages: name another one with --state")
    found = [read_arrays(folder / f"stage_{number}.npz") for number in range(1, mark.stages + 1)]
    return mark.updates, tuple(found)


def _results(plan: PipelineFile, blocks: Sequence[BlockRun]) -> dict[str, np.ndarray]:
    """The results of a run: a training step's new state, else the model's outputs, a row per micro-batch if several."""
    if plan.is_training:
        return {name: array for state in blocks[-1].states for name, array in state.items()}
    given = [outputs for block in blocks for outputs in block.given]
    if len(given) == 1:
        return given[0]
    return {name: np.stack([outputs[name] for outputs in given]) for name in plan.outputs}


def _report(
    plan: PipelineFile,
    path: Path,
    blocks: Sequence[BlockRun],
    asked: tuple[PipelineOptions, int, int],
    settings: Settings,
    seconds: float,
) -> PipelineRunReport:
    options, batches, before = asked
    spans = [span for block in blocks for span in block.spans]
    # The first output that is a single number, such as a loss.
    singles = [
        [[made[name] for name in plan.outputs if name in made and made[name].size == 1] for made in block.given]
        for block in blocks
    ]
    known = [[float(single[0].reshape(())) for single in block if single] for block in singles]
    where = "one stage after another in this process"
    if not options.is_local:
        where = f"{len(plan.devices)} actors on {options.address or 'this machine'}"
    return PipelineRunReport(
        schedule=str(path),
        where=where,
        is_training=plan.is_training,
        is_late=not options.is_flushed,
        updates=options.steps,
        updates_before=before,
        micro_batches=batches,
        losses=tuple(sum(block) / len(block) for block in known if block),
        given=tuple(each for block in known for each in block),
        planned_period_ns=plan.period_ns,
        period_ns=measured_period([block.spans for block in blocks], plan.is_training, len(plan.stages)),
        overlap=None if options.is_local else overlap(spans),
        stages=ran_stages(plan, spans),
        actors=ran_actors(plan.devices, spans),
        output=None if settings.output is None else str(settings.output),
        state=str(options.state) if plan.is_training and options.state is not None else None,
        trace=None if options.trace is None else str(options.trace),
        seconds=seconds,
    )
