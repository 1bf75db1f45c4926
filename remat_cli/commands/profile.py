"""`remat profile`: what each op of a model costs on each device."""

from __future__ import annotations

from pathlib import Path

from remat_cli.base.progress import Progress
from remat_cli.report.report import ProfileReport
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


def clear_profile_cache(config: Config) -> int:
    """Forget all measured costs; returns how many entries there were."""
    return ProfileCache(config.cache_dir).clear()
