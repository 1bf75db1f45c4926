"""Models that are drawn run at the sizes of their ranges, are the same ones each time, and pages say what rows give."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime as ort
import pytest

from bench.drawn.measure import KINDS, code_state
from bench.drawn.report import is_kept, is_late, table

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_runs_at_all_sizes_that_it_is_drawn_for(kind, seed):
    drawn = KINDS[kind](seed)
    assert 1 <= len(drawn.ranges) <= 3
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(drawn.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    all_sizes = drawn.sequence(np.random.default_rng(seed))
    largest, _, least, again, *_ = all_sizes
    assert largest == again == {name: each.most for name, each in drawn.ranges.items()}
    assert least == {name: each.least for name, each in drawn.ranges.items()}
    for at, sizes in enumerate(all_sizes):
        assert all((size - drawn.ranges[name].least) % drawn.ranges[name].step == 0 for name, size in sizes.items())
        (found,) = session.run(None, drawn.feeds_at(sizes, at))
        assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_one_model(kind):
    assert KINDS[kind](1).model.SerializeToString() == KINDS[kind](1).model.SerializeToString()
    assert KINDS[kind](1).model.SerializeToString() != KINDS[kind](2).model.SerializeToString()


def row(**changed):
    """A model that compiled and kept all."""
    kept = {"kind": "old", "seed": 3, "families": ["tf"], "ranges": {"batch": "1..4"}, "exit_code": 0, "reason": ""}
    kept |= {"wrong_bits": [], "above_promise": [], "search_seconds": 3.0, "limit_seconds": 30.0}
    return kept | changed


def test_the_page_counts_what_kept_its_promises_and_tells_the_others():
    rows = [row(), row(seed=4, exit_code=4, reason="too large"), row(kind="torch", wrong_bits=["batch=2"])]
    rows += [row(kind="torch", seed=5, above_promise=["batch=4 (9 of 8 bytes)"]), row(kind="torch", search_seconds=39)]
    text = "\n".join(table(rows))
    assert "| old | older, unsaid | 2 of 200 | 1 | 0 | 0 | 0 | 1 no plan found |" in text
    assert "| torch | older, unsaid | 3 of 200 | 1 | 1 | 1 | 1 |  |" in text
    assert "- old 4 (tf; batch=1..4; code: older, unsaid): no plan found; too large" in text
    assert "- torch 3 (tf; batch=1..4; code: older, unsaid): compiled; other bits at batch=2" in text
    assert "compiled; more than promised at batch=4 (9 of 8 bytes)" in text
    assert "compiled; 39 s of search" in text


def test_rows_are_counted_apart_by_the_code_that_they_are_of():
    text = "\n".join(table([row(), row(seed=4, code="2026-01-02 03:04 abc"), row(seed=5, code="2026-01-02 03:04 abc")]))
    assert "| old | older, unsaid | 1 of 200 | 1 |" in text
    assert "| old | 2026-01-02 03:04 abc | 2 of 200 | 2 |" in text


def test_rows_say_the_commit_that_is_measured():
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d [0-9a-f]{7,}\+?", code_state())


def test_a_search_may_take_a_tenth_and_five_seconds_more():
    assert not is_late(row(search_seconds=37.9))
    assert is_late(row(search_seconds=38.1))
    assert not is_late(row(search_seconds=None))
    assert is_kept(row(search_seconds=38.1))
