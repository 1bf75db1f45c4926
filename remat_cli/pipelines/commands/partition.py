"""`remat partition`: a model in stages for several devices, planned under a limit of memory."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import refuse_ranges
from remat_cli.compiling.prepare import work_folder
from remat_cli.pipelines.commands.asked import stages_folder
from remat_cli.pipelines.plan.schedule_file import SCHEDULE_FILE, PipelineRequest
from remat_cli.pipelines.planning import (
    PipelineShortage,
    PlannedPipeline,
    differing_output,
    lay,
    plan_pipeline,
    write_pipeline,
)
from remat_cli.pipelines.report.partition import Lack, PartitionReport, PlannedStages, StageRow, partition_picture
from remat_cli.pipelines.solve.integer_program import ProgramEffort
from remat_cli.report.pictures.svg_chart import require_matplotlib
from remat_cli.settings.devices import only_device
from remat_cli.settings.settings import Settings


def partition_model(path: Path, request: PipelineRequest, settings: Settings, progress: Progress) -> PartitionReport:
    """Cut a model or a training step into stages, plan when each runs, write them, and run them once to compare.

    Raises:
        InputError: the model, the request or the output folder cannot be used.
        RuntimeFailure: ONNX Runtime refuses the model or a stage.
        MissingDependency: a picture is asked for and matplotlib is not installed.
    """
    started = time.monotonic()
    only_device(settings.devices)
    refuse_ranges(settings, "stages of a pipeline are")
    folder = stages_folder(path, settings.output, overwrite=settings.force)
    if settings.svg is not None:
        check_target(settings.svg, sources=(path,), overwrite=settings.force)
        require_matplotlib()
    with work_folder(path, settings.work_dir, settings.memory_limit_bytes) as work:
        laid = lay(path, settings.conditions, request.link_bytes_per_second, work, progress)
        effort = ProgramEffort(settings.search_seconds, settings.workers, settings.seed)
        found = plan_pipeline(laid, request, effort, progress)
        report = PartitionReport(
            model=str(path), status="planned", is_training=laid.pieces is not None, request=request
        )
        if isinstance(found, PipelineShortage):
            lack = Lack(found.needed_bytes, found.is_proved, found.first_op, found.last_op, found.alone_bytes)
            status: Literal["impossible", "not_found"] = "impossible" if found.is_impossible else "not_found"
            report = msgspec.structs.replace(report, lack=lack, status=status)
        else:
            differs = _written(found, request, path, folder, progress)
            report = msgspec.structs.replace(
                report,
                plan=planned_stages(found),
                status="planned" if differs is None else "differs",
                differs=differs,
                schedule=None if differs else str(folder / SCHEDULE_FILE),
            )
    if settings.svg is not None and report.plan is not None:
        atomic_write(settings.svg, partition_picture(report))
        report = msgspec.structs.replace(report, svg=str(settings.svg))
    return msgspec.structs.replace(report, seconds=time.monotonic() - started)


def _written(
    found: PlannedPipeline, request: PipelineRequest, model: Path, folder: Path, progress: Progress
) -> str | None:
    """Write the stages, compare, and only then put them in their folder; returns the output that differs, if any."""
    progress.stage(stages.REWRITING)
    target = folder.resolve()
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name:
        fresh = Path(name) / "stages"
        fresh.mkdir()
        written = write_pipeline(found, request, model, fresh)
        progress.stage(stages.VERIFYING)
        differs = differing_output(found, written, fresh)
        if differs is None:
            if target.exists():
                shutil.move(target, Path(name) / "old")
            shutil.move(fresh, target)
    return differs


def planned_stages(found: PlannedPipeline) -> PlannedStages:
    """The plan as a report tells it."""
    chain, laid = found.chain, found.laid
    names = [tensor.name for tensor in laid.prepared.graph.tensors]
    rows = tuple(
        StageRow(
            device=device,
            first_op=laid.op_at(part.first),
            last_op=laid.op_at(part.last - 1),
            ops=len(part.forward) + len(part.backward),
            again=sum(op not in laid.line.backward_ops for op in part.backward),
            forward_ns=chain.forward[at],
            backward_ns=chain.backward[at],
            weight_bytes=chain.weights[at],
            kept_bytes=chain.saved_bytes[at],
            leaves=tuple(names[tensor] for tensor in part.leaves),
            goes_back=tuple(names[tensor] for tensor in part.goes_back),
            cut_bytes=chain.sizes[at + 1],
        )
        for at, (part, device) in enumerate(zip(found.parts, found.schedule.devices, strict=True))
    )
    starts = found.schedule.starts[0]
    return PlannedStages(
        stages=rows,
        period_ns=float(found.run.normalized_period),
        latency_ns=starts[-1] + chain.backward[0] - starts[0],
        sequential_ns=sum(chain.forward) + sum(chain.backward),
        bounds=found.bounds,
        devices=found.loads,
        links=found.links,
        held=tuple(found.run.memory.get(device, ()) for device in range(len(found.loads))),
    )
