"""Latency and bandwidth from times of copies."""

from __future__ import annotations

import numpy as np
import pytest

from remat_cli.runtime.measure.links import (
    FASTEST,
    SIZES,
    CopyTime,
    LinkJob,
    copier,
    fitted_link,
    measure_link,
    time_copies,
)
from remat_cli.runtime.sessions.session import SessionSettings

NAMES = ("here", "there")


def times(latency_ns: float, per_second: float, noise: float = 0.0) -> list[CopyTime]:
    exact = [latency_ns + 1e9 * size / per_second for size in SIZES]
    return [CopyTime(s, round(t), round(t * (1 + noise))) for s, t in zip(SIZES, exact, strict=True)]


def test_what_was_put_in_comes_out():
    link = fitted_link(NAMES, times(20_000, 12e9, noise=0.03))
    assert (link.source, link.target, link.measured) == ("here", "there", True)
    assert link.latency_ns == pytest.approx(20_000, rel=1e-3)
    assert link.bytes_per_second == pytest.approx(12e9, rel=1e-3)
    assert link.noise_percent == pytest.approx(3, abs=0.1)
    assert link.time_ns(12_000_000) == pytest.approx(1_020_000, rel=1e-3)


def test_large_copies_do_not_drown_small_ones():
    found = times(20_000, 12e9)
    found[-1] = CopyTime(SIZES[-1], found[-1].least_ns * 2, found[-1].least_ns * 2)
    assert fitted_link(NAMES, found).latency_ns == pytest.approx(20_000, rel=0.25)


def test_neither_figure_is_negative():
    slower_than_its_size = [CopyTime(size, size**2 // 2**16, size**2 // 2**16) for size in SIZES]
    link = fitted_link(NAMES, slower_than_its_size)
    assert link.latency_ns == 0
    assert link.bytes_per_second > 0
    constant = [CopyTime(size, 5000, 5000) for size in SIZES]
    link = fitted_link(NAMES, constant)
    assert link.latency_ns == pytest.approx(5000, rel=1e-3)
    faster_when_large = [CopyTime(size, 10**6 - size // 100, 10**6) for size in SIZES]
    link = fitted_link(NAMES, faster_when_large)
    assert link.bytes_per_second == FASTEST
    assert link.latency_ns > 0


def test_between_two_host_memories_bytes_are_really_copied():
    source = np.ones(4)
    made = copier(source.nbytes, ("cpu", 0), ("cpu", 0))()
    assert made.numpy().nbytes == source.nbytes
    again = copier(source.nbytes, ("cpu", 0), ("cpu", 0))()
    assert made.data_ptr() != again.data_ptr()


def test_every_size_is_timed():
    seen = []
    job = LinkJob(SessionSettings(), SessionSettings())
    found = time_copies(job, lambda done, total: seen.append((done, total)))
    assert [time.size_bytes for time in found] == list(SIZES)
    assert all(0 < time.least_ns <= time.second_ns for time in found)
    assert found[-1].least_ns > found[0].least_ns
    assert seen[-1] == (len(SIZES), len(SIZES))


def test_a_link_is_measured_in_a_process_of_its_own():
    link = measure_link(NAMES, (SessionSettings(), SessionSettings()))
    assert link.bytes_per_second > 0
    assert link.measured
