"""The counting layer below the provider: built once, switched on by the environment of a fresh process."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("counting_layer.c")
NAME = "VK_LAYER_remat_counting"
LIBRARY = "REMAT_TEST_LAYER"
"""Where the layer's library is: it is read by the process that is counted."""
KINDS = ("storage", "uniform", "other", "memory")


def has_compiler() -> bool:
    """Whether the layer can be built here."""
    return shutil.which("cc") is not None


def build_layer(folder: Path) -> Path:
    """The layer's library in a folder, with the manifest by which the Vulkan loader finds it."""
    library = folder / "libcounting_layer.so"
    if not library.exists():
        made = folder / f"{library.name}.{os.getpid()}"
        flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
        subprocess.run(["cc", *flags, str(SOURCE), "-o", str(made), "-lpthread"], check=True)
        layer = {"name": NAME, "type": "GLOBAL", "library_path": str(library), "api_version": "1.3.0"}
        layer |= {"implementation_version": "1", "description": "counts bytes"}
        (folder / "counting_layer.json").write_text(json.dumps({"file_format_version": "1.1.2", "layer": layer}))
        made.rename(library)
    return library


def layer_environment(library: Path) -> dict[str, str]:
    """Variables that put the layer between the loader and the driver of a process.

    `LAYER_LOSES_DEVICE_AT` and `LAYER_MOST_AT_ONCE` beside them are faults: the submit, from 1, at which the device is
    lost, and the most bytes of one allocation.
    """
    return {"VK_LAYER_PATH": str(library.parent), "VK_INSTANCE_LAYERS": NAME, LIBRARY: str(library)}


def counted_environment(library: Path) -> dict[str, str]:
    """The environment of this process with the layer in it, for another process that imports this package too."""
    return {**os.environ, **layer_environment(library), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@dataclass(frozen=True)
class Counters:
    """What this process holds on its Vulkan device, as the layer counts it; bytes by kind of `KINDS`."""

    library: ctypes.CDLL

    @classmethod
    def of_process(cls) -> Counters:
        """The counters, where the environment names the layer."""
        library = ctypes.CDLL(os.environ[LIBRARY])
        for name in ("layer_live_bytes", "layer_peak_bytes", "layer_made", "layer_submits"):
            getattr(library, name).restype = ctypes.c_uint64
        return cls(library)

    def begin(self) -> None:
        """Peaks are counted from now on."""
        self.library.layer_begin()

    @property
    def live(self) -> Mapping[str, int]:
        """Bytes that are held now."""
        return {kind: int(self.library.layer_live_bytes(n)) for n, kind in enumerate(KINDS)}

    @property
    def peak(self) -> Mapping[str, int]:
        """The most bytes that were held since it began."""
        return {kind: int(self.library.layer_peak_bytes(n)) for n, kind in enumerate(KINDS)}

    @property
    def made(self) -> Mapping[str, int]:
        """How many buffers and allocations were made since it began."""
        return {kind: int(self.library.layer_made(n)) for n, kind in enumerate(KINDS)}

    def sizes(self, kind: str) -> list[int]:
        """Bytes of each buffer of a kind that is there now, sorted."""
        most = 65536
        found = (ctypes.c_uint64 * most)()
        count = self.library.layer_sizes(KINDS.index(kind), found, most)
        return sorted(found[:count])

    @property
    def submits(self) -> int:
        """How often work was handed to the device."""
        return int(self.library.layer_submits())
