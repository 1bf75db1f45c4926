"""What the bench of loading calls a miss, and its table."""

from __future__ import annotations

from bench.loading import FIGURES, MIB, misses, table


def row(measured: float, predicted: float) -> dict:
    figures = [dict.fromkeys(FIGURES, int(each * MIB)) for each in (measured, measured / 2, predicted, 200)]
    worst, least, said, original = figures
    return {
        "model": "net",
        "budget": "60%",
        "runtime": "1.32.0",
        "libc": "glibc 2.36",
        "predicted": said,
        "measured": [least, worst],
        "original": [original],
    }


def test_a_process_may_be_a_little_above_the_prediction_and_the_worst_not_far_below():
    assert not misses(row(104.9, 100))
    assert not misses(row(100, 114.9))
    assert misses(row(105.1, 100))[0] == "loading, at most: 105.1 for 100.0"
    assert misses(row(100, 115.1))[0] == "loading, at most: only 100.0 for 115.1"


def test_the_table_has_the_least_and_the_most_and_says_what_missed():
    text = "\n".join(table([row(105.1, 100), row(50, 50)]))
    assert "| net | 60% | 1.32.0 | 52.5 to 105.1 (100.0) |" in text
    assert "- net, 1.32.0: once loaded: 105.1 for 100.0" in text
    assert "2 processes a row" in text
    assert "None." in "\n".join(table([row(50, 50)]))
