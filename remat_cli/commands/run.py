"""Run plans: open them for Python, or run them in fresh processes and report what was planned and what was measured."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from remat_cli.base import progress as stages
from remat_cli.base.errors import ConfigError, RuntimeFailure
from remat_cli.base.files import WORK_FOLDER, atomic_path, atomic_write, check_target
from remat_cli.base.named import named
from remat_cli.base.progress import Progress
from remat_cli.compiling.program import input_specs, make_program
from remat_cli.compiling.record import elsewhere, find_file
from remat_cli.compiling.ways import way
from remat_cli.core.files.plan_file import PlanFile, format_of
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.schedule.program import Program
from remat_cli.onnx_io.read.load import prepare_optimized, state_beside
from remat_cli.onnx_io.read.told_inputs import told_inputs
from remat_cli.report.run_report import RunReport, run_report
from remat_cli.runtime.observe.trace import chrome_trace
from remat_cli.runtime.paging.paged_run import PagedRunner
from remat_cli.runtime.segments.segment_memory import see_memory
from remat_cli.runtime.segments.segment_run import PlanRunner, check_devices, open_runner, time_runs
from remat_cli.runtime.sessions.feeds import feeds_of
from remat_cli.settings.run import RunOptions, run_options
from remat_cli.settings.settings import Settings

Running: TypeAlias = Callable[[Settings, Progress], Any]
"""Runs what was asked for, and gives its report."""
RUNNERS: Mapping[str, str] = {
    "remat-pipeline": "remat_cli.pipelines.commands.run_pipeline:ready_pipeline",
}
"""Formats of files that are no plans -> their own `ready_run`."""


class LoadedPlan:
    """A plan that is ready to run in this process, as often as asked; not for several threads at once.

    Use it in a `with` block or call `close`, which frees sessions, weights and the files they lie in.
    """

    def __init__(self, path: Path) -> None:
        """Open every session of a plan."""
        with contextlib.ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix=WORK_FOLDER, ignore_cleanup_errors=True))
            )
            plan = read_plan(path)
            self._runner: PlanRunner | PagedRunner = open_runner(make_program(plan, path, folder))
            stack.callback(self._runner.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> LoadedPlan:
        """The plan itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free everything."""
        self.close()

    @property
    def program(self) -> Program:
        """What is run, in which order, and where."""
        return self._runner.program

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once; inputs and outputs are numpy arrays by name.

        Raises:
            ModelError: a name, type or shape of the feeds does not fit.
            RuntimeFailure: ONNX Runtime fails, or memory does not suffice.
        """
        return self._runner.run(feeds)

    def close(self) -> None:
        """Free everything; the plan cannot run any more."""
        self._stack.close()


def ready_run(path: Path, words: Mapping[str, Any]) -> Running:
    """What runs a file as the words ask, which depends on what the file is; nothing runs yet.

    Raises:
        ConfigError: a word that makes no sense for this file, or a value that cannot be used.
    """
    if (row := RUNNERS.get(format_of(path))) is not None:
        running: Running = named(row)(path, words)
        return running
    options = run_options(path, words)
    return lambda settings, progress: run_plan(path, options, settings, progress)


def run_plan(path: Path, options: RunOptions, settings: Settings, progress: Progress) -> RunReport:
    """Run a plan in fresh processes, once to see its memory and then as often as asked to see its time.

    Raises:
        InputError: the plan, its model, the inputs or an output path cannot be used.
        MissingDependency: a device of the plan is not here; it is not run on another one instead.
        RuntimeFailure: ONNX Runtime fails, or memory does not suffice.
    """
    progress.stage(stages.READING)
    read = read_plan(path)
    _check_targets(read, path, options, settings)
    if options.is_capped:
        way(read.kind).refuse_cap(path)
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER, dir=settings.work_dir) as folder:
        program = make_program(read, path, Path(folder))
        check_devices(program)
        model = find_file(read.output, path, "model")
        written = prepare_optimized(model)
        state = state_beside(written, model)
        feeds = feeds_of(input_specs(read), state, settings.inputs, settings.seed, told_inputs(written))
        progress.stage(stages.RUNNING)
        caps = dict(zip(program.memories, program.budgets, strict=True)) if options.is_capped else {}
        seen = see_memory(program, feeds, settings.run_limit_seconds)
        if seen.misplaced_op is not None:
            raise RuntimeFailure(f"{seen.misplaced_op}, as the plan wants it: compile again")
        timed = time_runs(program, feeds, options.repeat, caps, progress.advance, settings.run_limit_seconds)
    if settings.output is not None:
        outputs: Mapping[str, Any] = timed.storable  # by name, as they can be fed again with --input
        with atomic_path(settings.output) as temporary, temporary.open("wb") as file:
            np.savez(file, **outputs)
    if options.trace is not None:
        atomic_write(options.trace, chrome_trace(program, timed.fastest, seen))
    return msgspec.structs.replace(
        run_report(str(path), str(model), program, seen, timed.runs, is_repeatable=timed.is_repeatable),
        output=None if settings.output is None else str(settings.output),
        trace=None if options.trace is None else str(options.trace),
        warnings=elsewhere(read),
        is_capped=options.is_capped,
    )


def _check_targets(read: PlanFile, path: Path, options: RunOptions, settings: Settings) -> None:
    """Check that results can be written, and take the place of no file that the run reads.

    Raises:
        ConfigError: they cannot, or the plan is to be run less than once.
    """
    inputs = () if settings.inputs is None else (settings.inputs,)
    sources = (path, find_file(read.output, path, "model"), *inputs)
    if options.repeat < 1:
        raise ConfigError(f"repeat {options.repeat} must be at least 1")
    targets = [target for target in (settings.output, options.trace) if target is not None]
    for number, target in enumerate(targets):
        check_target(target, sources=(*sources, *targets[:number]), overwrite=settings.force)
