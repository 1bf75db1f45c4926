"""`remat doctor`: whether remat can work here, and what to do where it cannot."""

import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil

from remat_cli import __version__
from remat_cli.base.errors import MissingDependency
from remat_cli.base.named import GET_PLANNERS, PLANNERS
from remat_cli.base.processes import spare_memory_bytes, total_memory_bytes
from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.ort_rules.versions import MADE_FROM, TRIED_UP_TO, numbers_of
from remat_cli.report.doctor import DoctorReport, Finding
from remat_cli.runtime.measure.busy import cpu_clock
from remat_cli.runtime.observe.hard_limit import limit_kind
from remat_cli.runtime.sessions._ort import import_ort
from remat_cli.runtime.sessions.providers import absence, parse_device
from remat_cli.settings.cache_place import is_temporary, may_write
from remat_cli.solvers._warmup import must_compile

RUNTIMES: Final = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
"""Packages that hold the runtime, of which each overwrites the others."""
PACKAGES: Final = ("numpy", "onnx", "onnx-ir", "ortools", "numba", *RUNTIMES)
LITTLE_BYTES: Final = 2 * 2**30
BUSY_SHARE: Final = 0.5
LOOK_SECONDS: Final = 0.2


def diagnose(cache: Path) -> DoctorReport:
    """Look at versions, devices, kernels, memory, and the directory where costs are kept."""
    found = {name: text for name in PACKAGES if (text := _version(name))}
    spare = spare_memory_bytes()
    return DoctorReport(
        findings=(*_runtime_findings(found), *_place_findings(cache, spare)),
        versions={"remat": __version__, "python": platform.python_version(), **found},
        providers={name: absence(parse_device(name)) for name in PROVIDERS},
        memory_bytes=total_memory_bytes(),
        spare_bytes=spare,
        cache_dir=str(cache),
        cache_bytes=sum(each.stat().st_size for each in cache.rglob("*") if each.is_file()) if cache.exists() else 0,
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _runtime_findings(found: dict[str, str]) -> Iterator[Finding]:
    """Whether there is one ONNX Runtime, of a version whose rules are known."""
    yield Finding("remat", f"{__version__} on Python {platform.python_version()}, {sys.platform} {platform.machine()}")
    installed = [name for name in RUNTIMES if name in found]
    if len(installed) > 1:
        advice = f"keep one of {' and '.join(installed)}: uninstall all of them, then install that one again"
        yield Finding("onnxruntime", f"{len(installed)} packages overwrite each other", "bad", advice)
        return
    try:
        here = str(import_ort().__version__)
    except MissingDependency as error:
        yield Finding("onnxruntime", "not installed", "bad", str(error))
        return
    if numbers_of(here) < numbers_of(MADE_FROM):
        advice = f"pip install --upgrade 'onnxruntime>={MADE_FROM}': files are made on that, and run on older ones too"
        yield Finding("onnxruntime", f"{here}: too old to make files", "bad", advice)
    elif numbers_of(here) > numbers_of(TRIED_UP_TO):
        advice = f"what ONNX Runtime {here} does with memory was not measured: verify each file, or take {TRIED_UP_TO}"
        yield Finding("onnxruntime", f"{here}: newer than {TRIED_UP_TO}, the newest that was tried", "notice", advice)
    else:
        yield Finding("onnxruntime", f"{here}: what it does with memory is known")


def _planning_finding() -> Finding:
    """Whether the libraries of the solvers are here, and compiled what these compile."""
    absent = [name for name in PLANNERS if find_spec(name) is None]
    if absent:
        advice = f"to plan here: {GET_PLANNERS}; `run`, `verify`, `report`, and `inspect` of plans work without"
        return Finding("kernels", f"{' and '.join(absent)} not installed: plans cannot be made here", "notice", advice)
    from remat_cli.solvers.least_budget import KERNELS  # with numba

    if must_compile(KERNELS):
        advice = "the first compile takes half a minute longer, once: it compiles the kernels of solvers"
        return Finding("kernels", "not compiled yet", "notice", advice)
    return Finding("kernels", "compiled")


def _place_findings(cache: Path, spare_bytes: int) -> Iterator[Finding]:
    """Whether costs and compiled kernels are kept, there is room, limits can be tried, and times mean anything now."""
    if may_write(cache) and not is_temporary(cache):
        yield Finding("costs", "measured ones are kept")
    else:
        advice = "name a folder that can be written with REMAT_CACHE_DIR: else every compile measures again"
        yield Finding("costs", f"cannot be kept in {cache}", "notice", advice)
    yield _planning_finding()
    kind = limit_kind()
    yield Finding("hard limit", "none on this system: capped runs use the arena's" if kind is None else f"by {kind}")
    if spare_bytes < LITTLE_BYTES:
        advice = "a model that needs more than that cannot be run here: give the container more, or end other programs"
        yield Finding("room", "little memory is free", "notice", advice)
    before = cpu_clock()
    time.sleep(LOOK_SECONDS)
    (others, _), cores = cpu_clock().since(before), psutil.cpu_count() or 1
    if others > BUSY_SHARE * cores:
        advice = "times that are measured now are off by as much as others take: compile again when it is quiet"
        yield Finding("load", f"others use {others:.1f} of {cores:g} cores", "notice", advice)
    else:
        yield Finding("load", f"{cores:g} cores, quiet")
