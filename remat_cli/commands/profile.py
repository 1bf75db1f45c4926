"""`remat profile`: what each op of a model costs on each device."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.report import render_json
from remat_cli.report.profile import CacheReport, ProfileReport
from remat_cli.runtime.profile_cache import ProfileCache
from remat_cli.settings.config import Config
from remat_cli.settings.devices import device_specs
from remat_cli.stages.prepare import prepare, work_folder
from remat_cli.stages.profile import profile_on_devices


def profile_model(model: Path, config: Config, progress: Progress) -> ProfileReport:
    """Measure every op of a model on each device, and copies between them; what is in the cache is not measured again.

    Raises:
        InputError: the model, the inputs or the settings cannot be used.
        RuntimeFailure: ONNX Runtime refuses the model, or nothing runs on a device.
        MissingDependency: a device cannot be used.
    """
    with work_folder(config) as work:
        prepared = prepare(model, config, work, progress)
        profiles, links = profile_on_devices(prepared, config, device_specs(config), progress)
    return ProfileReport(model=str(model), profiles=profiles, links=links)


def profile_and_keep(model: Path, config: Config, progress: Progress, *, is_afresh: bool) -> ProfileReport:
    """Measure, with `is_afresh` all anew, and write the report as JSON to the file that was asked for.

    Raises:
        InputError: the output exists, or the model or the settings cannot be used.
    """
    if config.output is not None:
        check_target(config.output, sources=(model,), overwrite=config.force)
    if is_afresh:
        clear_profile_cache(config)
    report = profile_model(model, config, progress)
    if config.output is not None:
        report = msgspec.structs.replace(report, output=str(config.output))
        atomic_write(config.output, render_json(report).encode())
    return report


def clear_profile_cache(config: Config) -> CacheReport:
    """Forget all measured costs."""
    return CacheReport(str(config.cache_dir), ProfileCache(config.cache_dir).clear())
