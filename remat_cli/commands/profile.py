"""`remat profile`: what each op of a model costs on each device."""

from pathlib import Path

import msgspec

from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.compiling.prepare import prepare, work_folder
from remat_cli.compiling.profile import profile_model
from remat_cli.report import render_json
from remat_cli.report.profile import CacheReport, ProfileReport
from remat_cli.runtime.measure.profile_cache import ProfileCache
from remat_cli.settings.settings import Settings


def profile_ops(model: Path, settings: Settings, progress: Progress) -> ProfileReport:
    """Measure every op of a model on each device, and copies between them; what is in the cache is not measured again.

    The report is written as JSON to the file that was asked for, if any.

    Raises:
        InputError: the output exists, or the model, the inputs or the settings cannot be used.
        RuntimeFailure: ONNX Runtime refuses the model, or nothing runs on a device.
        MissingDependency: a device cannot be used.
    """
    if settings.output is not None:
        check_target(settings.output, sources=(model,), overwrite=settings.force)
    report = measure_ops(model, settings, progress)
    if settings.output is None:
        return report
    report = msgspec.structs.replace(report, output=str(settings.output))
    atomic_write(settings.output, render_json(report).encode())
    return report


def measure_ops(model: Path, settings: Settings, progress: Progress) -> ProfileReport:
    """Measure every op of a model on each device, and copies between them, without writing the report anywhere.

    Raises:
        InputError: the model, the inputs or the settings cannot be used.
        RuntimeFailure: ONNX Runtime refuses the model, or nothing runs on a device.
        MissingDependency: a device cannot be used.
    """
    with work_folder(model, settings.work_dir, settings.memory_limit_bytes) as work:
        prepared = prepare(model, settings.conditions, work, progress)
        platform = profile_model(prepared, settings.conditions, progress)
    return ProfileReport(model=str(model), profiles=platform.profiles, links=platform.links)


def profile_afresh(model: Path, settings: Settings, progress: Progress) -> ProfileReport:
    """Measure every op again: all measured costs are forgotten first."""
    clear_profile_cache(settings)
    return profile_ops(model, settings, progress)


def clear_profile_cache(settings: Settings) -> CacheReport:
    """Forget all measured costs."""
    return CacheReport(str(settings.cache_dir), ProfileCache(settings.cache_dir).clear())
