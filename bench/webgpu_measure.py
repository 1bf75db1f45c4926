"""Run a plan in this process and count below the provider what it takes: `python -m bench.webgpu_measure PLAN FEEDS`.

The environment must put the counting layer between the Vulkan loader and the driver; bench/webgpu.py does.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.compiling import Row
from remat_cli.compiling.program import make_program
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.runtime.segments.segment_run import PlanRunner
from remat_cli.runtime.sessions._ort import pack_all
from tests.webgpu.vulkan_layer import Counters

RUNS = 4


def counted_runs(plan: Path, feeds: Path) -> Row:
    """Most bytes of storage buffers while sessions open and run first, and in later runs; copies of one run.

    A copy from or to the host makes a staging buffer of its own; so staging buffers are copies.
    """
    with np.load(feeds) as file:
        fed = {name: file[name] for name in file.files}
    with tempfile.TemporaryDirectory() as work:
        counters = Counters.of_process()
        with PlanRunner(make_program(read_plan(plan), plan, Path(work))) as runner:
            opened = counters.live["storage"]
            first = pack_all(runner.run(fed))
            peaks = {"open_bytes": opened, "first_run_bytes": counters.peak["storage"]}
            copies, same, times, steady = [], True, [], []
            for _ in range(RUNS):
                counters.begin()
                outputs, record = runner.run_recorded(fed)
                same = same and pack_all(outputs) == first
                copies.append(counters.made["other"])
                times.append(record.total_ns)
                steady.append(counters.peak["storage"])
            live = counters.live
    return {
        **peaks,
        "steady_bytes": max(steady),
        "is_steady": len(set(steady)) == 1,
        "staging_copies": copies[-1],
        "same_bits_in_every_run": same,
        "allocated_bytes": live["memory"],
        "run_ns": min(times),
    }


if __name__ == "__main__":
    print(json.dumps(counted_runs(Path(sys.argv[1]), Path(sys.argv[2]))))  # noqa: T201
