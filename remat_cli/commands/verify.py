"""`remat verify`: run both models of a plan again, and compare them with what the plan promises."""

from pathlib import Path

import msgspec

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.base.files import sha256
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import with_picture
from remat_cli.core.conditions import Conditions
from remat_cli.core.plan_check import check_graph_of
from remat_cli.core.plan_file import PlanFile, check_belongs
from remat_cli.core.plan_reader import read_plan
from remat_cli.core.verification import applies
from remat_cli.devices.provider_table import named_spec
from remat_cli.report.compile import VerifyReport
from remat_cli.report.process_picture import process_svg
from remat_cli.settings.settings import Settings
from remat_cli.stages.asked_for import asked_of
from remat_cli.stages.prepare import prepare, work_folder
from remat_cli.stages.record import elsewhere, find_file, whole_sha256
from remat_cli.stages.verify import PlannedRun
from remat_cli.stages.verify import verify_plan as run_both


def verify_plan(plan: Path, settings: Settings, progress: Progress) -> VerifyReport:
    """Run the original and the rewritten model of a plan and compare them with what the plan promises.

    With `svg` what both processes hold over time becomes a picture.

    Raises:
        ModelError: the plan cannot be read, or the models it speaks of are gone, changed, or optimised differently.
        MissingDependency: matplotlib is not installed.
    """
    return with_picture(settings, plan, lambda: _verified(plan, settings, progress), _picture)


def _picture(report: VerifyReport) -> bytes:
    """Both processes over time.

    Raises:
        ConfigError: they were not measured.
    """
    process = report.verification.process if applies(report.verification.process) else None
    if process is None or not process.traces:
        raise ConfigError("--svg: resident memory is measured of verified plans for the CPU only, with --verify true")
    return process_svg(process)


def _verified(plan: Path, settings: Settings, progress: Progress) -> VerifyReport:
    read = read_plan(plan)
    rewritten = find_file(read.output, plan, "model")
    source = find_file(read.source, plan, "source")
    if sha256(rewritten) != read.output.sha256:
        raise ModelError(f"{rewritten} is not the model that the plan was written with: compile again")
    with work_folder(source, settings.work_dir, settings.memory_limit_bytes) as work:
        whole = prepare(source, _as_requested(read, settings.conditions), work, progress)
        check_belongs(read, whole.source.sha256)
        if whole.reference_sha256 != whole_sha256(read):
            raise ModelError(
                f"ONNX Runtime optimises {source} differently here than where the plan was made: compile it again here"
            )
        if read.splitting is None:
            check_graph_of(read, whole.graph)
        found = run_both(PlannedRun(read, rewritten), whole, work, settings.checks, progress)
    return VerifyReport(
        plan=str(plan),
        model=str(rewritten),
        source=str(source),
        budget_bytes=read.request.budget_bytes,
        verification=found,
        warnings=(*(f"not kept: {line}" for line in found.warned), *elsewhere(read), *found.notes),
        asked=asked_of(read, whole),
    )


def _as_requested(plan: PlanFile, conditions: Conditions) -> Conditions:
    """The conditions under which the plan's model was prepared."""
    request = plan.request
    return msgspec.structs.replace(
        conditions,
        devices=(named_spec(plan.device),) if plan.placement is None else plan.placement.devices,
        portable=request.portable,
        plain=request.plain,
        intra_op_threads=plan.profile.provenance.intra_op_threads,
        dims=request.dims,
        family=request.family,
        input_shapes=request.input_shapes,
        custom_ops=request.custom_ops,
    )
