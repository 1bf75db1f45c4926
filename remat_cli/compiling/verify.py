"""Run a plan file and what it speaks of beside the original, and compare with its promises."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress
from remat_cli.compiling.learn.settle import AnySettled, Settled, Settling
from remat_cli.compiling.planned import PlannedModel, PlannedRun, Refused
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.ways import way
from remat_cli.core.values.verification import Checks, Verification
from remat_cli.onnx_io.read.seeds import seeded_copy
from remat_cli.runtime.verify.verify import THOROUGH_RUNS
from remat_cli.runtime.verify.verify_request import MOST_RUNS

R = TypeVar("R", bound=PlannedRun)


def verify_plan(run: PlannedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress) -> Verification:
    """Run what a plan speaks of beside the original, in fresh processes; broken promises are in the report.

    `whole` is the optimised original, `work` a folder for what must be written.

    Raises:
        MissingDependency: a device of the plan is not here.
        RuntimeFailure: ONNX Runtime fails to run a part of it.
    """
    found: Verification = way(run.plan.kind).verify(run, whole, work, checks, progress)
    return found


def settle(planned: PlannedModel, how: Settling) -> AnySettled:
    """A plan as it is to be written: verified, or mended and verified, in its own way."""
    is_measured = all(profile.provenance.measured for profile in planned.platform.profiles)
    if isinstance(planned, Refused) or not is_measured:
        return Settled(planned, None)
    return way(planned.kind).settle(planned, how)


def begun(run: R, work: Path, checks: Checks, progress: Progress, *, has_seeds: bool) -> R:
    """Say that a plan is verified and how long that takes; its model such that it can be compared.

    It must draw the same random numbers as what it is compared with, if that `has_seeds`.
    """
    progress.stage(stages.VERIFYING)
    runs = {"fast": 5, "thorough": THOROUGH_RUNS}.get(checks.mode, MOST_RUNS)
    how_many = "about" if checks.mode == "thorough" else "at most"
    progress.foretell(f"{how_many} {runs} runs of either model", runs * run.plan.solved.time_ns / 1e9)
    return replace(run, model=seeded_copy(run.model, work / "with_seeds.onnx")) if has_seeds else run
