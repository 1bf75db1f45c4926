"""Run a plan on several devices beside the plain model and the best single device."""

from pathlib import Path

from remat_cli.base.progress import Progress
from remat_cli.compiling.placed.verify import PlacedRun, verify_placed
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.values.verification import Checks, SessionsSeen


def verify_on_devices(run: PlacedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress) -> SessionsSeen:
    """What runs of all sessions showed.

    Raises:
        MissingDependency: a device of the plan is not here.
        RuntimeFailure: ONNX Runtime fails to run a part of it.
    """
    return verify_placed(run, whole, work, checks, progress)[0]
