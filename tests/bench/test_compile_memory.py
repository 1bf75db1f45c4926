"""What the bench of the compiler's memory calls a miss, its table, and that it sees the pages of a process."""

from __future__ import annotations

import sys

import psutil

from bench.compile_memory import BENCH, MIB, _watched, misses


def row(own_mib: int, child_mib: int) -> dict:
    return {
        "weights": "inside",
        "mib": 400,
        "exit_code": 0,
        "seconds": 90,
        "original_bytes": 500 * MIB,
        "own_bytes": own_mib * MIB,
        "child_bytes": child_mib * MIB,
        "together_bytes": (own_mib + child_mib) * MIB,
    }


def test_bars_are_half_the_weights_and_a_tenth_above_the_original():
    assert not misses(row(200, 550))
    assert misses(row(201, 550)) == ("more than 0.5 x the weights of its own",)
    assert misses(row(200, 551)) == ("a process that measures has more than 1.1 x the original's",)


def test_the_table_has_a_row_each():
    text = BENCH.table([row(200, 600)])
    assert "| inside | 400 | 0 | 500 | 200 | 0.50 | 600 | 1.20 | 800 | 2 | a process that" in text


def test_pages_of_a_process_and_of_its_children_are_seen():
    fill = "import time; held = b'x' * 2**25; time.sleep(1)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {fill!r}])"
    seen = _watched([sys.executable, "-c", start])
    assert seen.exit_code == 0
    assert max(seen.child_bytes.values()) > 32 * MIB > seen.own_bytes
    assert seen.together_bytes < psutil.virtual_memory().total
