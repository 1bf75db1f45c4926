"""Where measured figures come from: this machine, this runtime, these settings."""

from __future__ import annotations

import platform
from pathlib import Path

from remat_cli.core.profile import Provenance
from remat_cli.runtime.providers import parse_device
from remat_cli.runtime.session import runtime_version


def provenance(device: str, intra_op_threads: int, optimization: str, runs: int, warmups: int) -> Provenance:
    """The record that goes with figures measured here and now under these settings."""
    provider = parse_device(device).provider
    return Provenance(
        cpu=cpu_name(),
        os=f"{platform.system()} {platform.release()}",
        runtime=provider.package,
        runtime_version=runtime_version(),
        provider=provider.runtime_name,
        intra_op_threads=intra_op_threads,
        optimization=optimization,
        runs=runs,
        warmups=warmups,
    )


def cpu_name() -> str:
    """The processor's name and widest vector extension (which decides the runtime's kernels), for people."""
    fields = _cpu_fields(Path("/proc/cpuinfo"))
    name = fields.get("model name") or fields.get("Hardware") or platform.processor() or platform.machine()
    flags = fields.get("flags", fields.get("Features", "")).split()
    widest = next((flag for flag in ("amx_tile", "avx512f", "avx2", "avx", "sve", "asimd") if flag in flags), "")
    return f"{name} ({widest})" if widest else name


def _cpu_fields(path: Path) -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty on systems without it."""
    if not path.exists():
        return {}
    fields: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields
