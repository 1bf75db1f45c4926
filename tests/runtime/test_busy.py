"""How far measured times may be off, and what that is told from."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec
import pytest

from remat_cli.core.values.noise import TimeNoise, scatter_percent
from remat_cli.report.style import Style
from remat_cli.runtime.measure.busy import CpuClock, cpu_clock
from tests.report import samples

SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


@pytest.mark.parametrize(
    ("scatter", "others", "free", "words"),
    [
        (4.0, 2.0, 1.0, ""),
        (12.0, 0.1, 1.0, ""),
        (12.0, 0.9, 1.0, "busy machine: times may be off by 12 %"),
        (12.0, 20.0, 63.0, ""),
        (None, 0.1, 1.0, ""),
        (None, 0.9, 1.0, "busy machine: how far times are off is not known"),
        (40.0, 0.0, 1.0, "times may be off by 40 %"),
    ],
)
def test_noise_is_told_where_it_matters(scatter, others, free, words):
    noise = TimeNoise(scatter, others, free)
    assert noise.told == words
    seen = msgspec.structs.replace(samples.verification(), time_noise=noise)
    report = samples.compile_report(seen)
    assert report.verdict == samples.compile_report().verdict + (f" ({words})" if words else "")
    lines = report.lines(Style())
    assert (f"  {words}" in lines) is bool(words)


def test_scatter_is_that_of_the_median_above_the_least():
    assert scatter_percent([100, 110, 500], [100, 100]) == pytest.approx(10)
    assert scatter_percent([], [7]) is None


def test_clocks_tell_others_from_this_process():
    others, free = CpuClock(10, 100, 5).since(CpuClock(0, 85, 0))
    assert others == pytest.approx(1.0)  # 15 seconds of work in 10, 5 of them its own
    assert free == pytest.approx(CpuClock(10, 0, 0).since(CpuClock(0, 0, 0))[1] - 0.5)


def test_another_process_that_works_is_seen():
    with subprocess.Popen([sys.executable, "-c", SPIN]) as other:
        try:
            before = cpu_clock()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass
            others, _ = cpu_clock().since(before)
        finally:
            other.kill()
    assert others > 0.1
