"""Run in a process with the counting layer; prints what it counted as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import numpy as np

from bench.webgpu_measure import RUNS, counted_runs
from remat_cli.runtime.sessions._ort import import_ort
from remat_cli.runtime.sessions.providers import parse_device, place_of, placed_value, require_device
from remat_cli.runtime.sessions.session import SessionSettings, device_settings, open_session, session_options
from tests.webgpu.vulkan_layer import Counters


def held_for(sizes: list[int]) -> list[int]:
    """Sizes of the buffers that values of so many bytes on the device take."""
    device = parse_device("webgpu:0")
    require_device(device)
    counters = Counters.of_process()
    values = [placed_value(np.zeros(size // 4, np.float32), place_of(device)) for size in sizes]
    found = counters.sizes("storage")
    values.clear()
    return found


def held_by(model: Path, feeds: Path) -> int:
    """The most that later runs of a model hold there, in a session as users open one, which fuses no ops."""
    spec = parse_device("webgpu:0").spec
    settings = device_settings(spec, SessionSettings(exact=False))
    options = session_options(settings)
    options.graph_optimization_level = import_ort().GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = open_session(model, msgspec.structs.replace(settings, is_alone=False), options)
    with np.load(feeds) as file:
        fed = {name: file[name] for name in file.files}
    counters = Counters.of_process()
    session.run(None, fed)
    counters.begin()
    for _ in range(RUNS):
        session.run(None, fed)
    return counters.peak["storage"]


def main() -> None:
    """`plan PLAN FEEDS`, `gated MODEL FEEDS`, or `values BYTES ...`."""
    mode, *words = sys.argv[1:]
    if mode == "plan":
        found = counted_runs(Path(words[0]), Path(words[1]))
    elif mode == "gated":
        found = {"steady_bytes": held_by(Path(words[0]), Path(words[1]))}
    else:
        found = {"sizes": held_for(list(map(int, words)))}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
