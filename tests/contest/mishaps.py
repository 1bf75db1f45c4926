"""What may happen to the process of a case, in place of solving it."""

from __future__ import annotations

import os
import signal
import sys
import time

from remat_cli.base.processes import Tell
from remat_cli.contest.report.bench_run import BenchRun
from remat_cli.contest.runner import Job


def give_up(job: Job, tell: Tell) -> BenchRun:
    sys.exit("out of luck")


def be_killed(job: Job, tell: Tell) -> BenchRun:
    tell()
    tell(0.5, 3.0, None)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def wait(job: Job, tell: Tell) -> BenchRun:
    """Tell who waits, and wait for the end."""
    tell(float(os.getpid()), None, None)
    time.sleep(60)
    raise AssertionError
