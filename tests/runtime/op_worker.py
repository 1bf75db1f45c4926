"""Measuring processes for tests: one whose provider crashes, and one whose provider never comes up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec

from remat_cli.runtime.measure.findings import OpFinding
from remat_cli.runtime.measure.op_profiler import OpsJob
from remat_cli.runtime.sessions._ort import Advance


def crash_in_bad_ops(job: OpsJob, advance: Advance) -> int:
    with Path(job.findings).open("ab", buffering=0) as stream:
        for number, op in enumerate(job.ops):
            if op.name.startswith("bad"):
                os.kill(os.getpid(), signal.SIGSEGV)
            stream.write(msgspec.json.encode(OpFinding(op.name, 1000 + number)) + b"\n")
            advance(number + 1, len(job.ops))
    return len(job.ops)


def crash_at_once(job: OpsJob, advance: Advance) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0
