"""From a forward model to a training step, and within a budget if one is given."""

import time
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import refuse_ranges, request_of
from remat_cli.commands.compile import compile_model
from remat_cli.compiling.step import make_step, step_snippet, write_step
from remat_cli.report.training import TrainReport
from remat_cli.settings.settings import Settings, output_paths
from remat_cli.settings.train import check_train, step_paths


def train_model(model: Path, settings: Settings, progress: Progress) -> TrainReport:
    """Write the training step of a model and its first state; with a budget, also a step that stays within it.

    Raises:
        InputError: the model or the settings cannot be used, or an op has no gradient rule.
        RuntimeFailure: ONNX Runtime refuses the step (only with a budget).
    """
    started = time.monotonic()
    check_train(settings.train)
    refuse_ranges(settings, "a training step is")
    paths = step_paths(model, settings.output, settings.force)
    if settings.budget is not None:
        request_of(settings)
        output_paths(paths.step, compile_settings(settings))
    progress.stage(stages.READING)
    step = make_step(model, settings.train, settings.conditions, progress)
    write_step(step, paths)
    compiled = None
    if settings.budget is not None:
        compiled = compile_model(paths.step, compile_settings(settings), progress)
    return TrainReport(
        model=str(model),
        step=str(paths.step),
        state=str(paths.state),
        facts=step.facts,
        snippet=step_snippet(step, paths, compiled.output if compiled else None),
        compiled=compiled,
        seconds=time.monotonic() - started,
    )


def compile_settings(settings: Settings) -> Settings:
    """The settings under which the step is compiled: its dimensions are bound already."""
    return msgspec.structs.replace(settings, dims={}, input_shapes={}, output=None)
