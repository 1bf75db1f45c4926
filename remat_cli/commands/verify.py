"""`remat verify`: run both models of a plan again, and compare them with what the plan promises."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import ModelError
from remat_cli.base.progress import Progress
from remat_cli.core.device_verification import DeviceVerification
from remat_cli.core.plan_file import PlanFile, check_belongs, read_plan
from remat_cli.core.verification import Verification
from remat_cli.report.report import VerifyReport
from remat_cli.runtime.verify import verify
from remat_cli.settings.config import Config
from remat_cli.stages.prepare import Prepared, prepare, sha256, work_folder
from remat_cli.stages.record import elsewhere, find_file, request_of, whole_sha256
from remat_cli.stages.verify import PlannedRun, verify_on_devices


def verify_plan(plan: Path, config: Config, progress: Progress) -> VerifyReport:
    """Run the original and the rewritten model of a plan and compare them with what the plan promises.

    Raises:
        ModelError: the plan cannot be read, or the models it speaks of are gone, changed, or optimised differently.
    """
    read = read_plan(plan)
    rewritten = find_file(read.output, plan, "model")
    source = find_file(read.source, plan, "source")
    if sha256(rewritten) != read.output.sha256:
        raise ModelError(f"{rewritten} is not the model that the plan was written with: compile again")
    with work_folder(config) as work:
        prepared = prepare(source, _as_requested(read, config), work, progress)
        check_belongs(read, prepared.source.sha256)
        if prepared.reference_sha256 != whole_sha256(read):
            raise ModelError(
                f"ONNX Runtime optimises {source} differently here than where the plan was made: compile it again here"
            )
        found = _verified_again(read, prepared, rewritten, work, config, progress)
    notes = (*elsewhere(read), *found.notes)
    return VerifyReport(
        plan=str(plan),
        model=str(rewritten),
        source=str(source),
        budget_bytes=read.request.budget_bytes,
        verification=found,
        warnings=notes,
    )


def _verified_again(
    plan: PlanFile, prepared: Prepared, model: Path, work: Path, config: Config, progress: Progress
) -> Verification | DeviceVerification:
    """Verify the model, or the run across devices, of a plan that was read from a file."""
    if plan.placement is not None:
        return verify_on_devices(PlannedRun(plan, model), (prepared.feeds, *prepared.more_feeds), work, progress)
    progress.stage(stages.VERIFYING)
    return verify(request_of(plan, prepared, model, config), progress.advance)


def _as_requested(plan: PlanFile, config: Config) -> Config:
    """The settings under which the plan's model was prepared."""
    request = plan.request
    devices: tuple[str, ...] = (plan.device,)
    if plan.placement is not None:
        devices = tuple(dict.fromkeys(spec.session_device for spec in plan.placement.devices))
    return msgspec.structs.replace(
        config,
        devices=devices,
        portable=request.portable,
        intra_op_threads=plan.profile.provenance.intra_op_threads,
        dims=request.dims,
        input_shapes=request.input_shapes,
    )
