"""How long files of tests take, and an order of tests in which several workers end at the same time.

`make durations` runs the fast tests and records them. Workers that steal work begin with a contiguous part each of all
tests, of equal number, and then take from each other's ends: so every part begins with long files, each file whole (its
tests share what they made), and ends with short ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

RECORD = Path(__file__).with_name("durations.json")
LONG_SECONDS = 2.0
"""Shorter files are not recorded."""

Test = TypeVar("Test")


def recorded() -> dict[str, float]:
    """Seconds by file."""
    found: dict[str, float] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def record(seconds: Iterable[tuple[str, float]]) -> None:
    """Keep the sums by file of those that are long, the longest first."""
    sums: Counter[str] = Counter()
    for file, each in seconds:
        sums[file] += each
    long = {file: round(each, 1) for file, each in sums.most_common() if each >= LONG_SECONDS}
    RECORD.write_text(json.dumps(long, indent=1) + "\n", encoding="utf-8")


def spread(tests: Sequence[tuple[str, Test]], seconds: Mapping[str, float], workers: int) -> list[Test]:
    """The tests, given with their files, in the order for so many workers."""
    by_file: dict[str, list[Test]] = {}
    for file, test in tests:
        by_file.setdefault(file, []).append(test)
    shares: list[list[Test]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for file in sorted(by_file.keys() & seconds.keys(), key=lambda file: (-seconds[file], file)):
        least = loads.index(min(loads))
        shares[least] += by_file.pop(file)
        loads[least] += seconds[file]
    short = [test for found in by_file.values() for test in found]
    return _filled(shares, short)


def _filled(shares: Sequence[list[Test]], short: Sequence[Test]) -> list[Test]:
    """All shares one after the other, made equally long by short tests as far as these go."""
    whole, start = sum(map(len, shares)) + len(short), 0
    order: list[Test] = []
    for number, share in enumerate(shares, 1):
        order += share
        stop = len(short) if number == len(shares) else start + max(0, whole * number // len(shares) - len(order))
        order += short[start:stop]
        start = min(stop, len(short))
    return order
