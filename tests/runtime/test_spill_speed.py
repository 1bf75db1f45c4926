"""What is measured of a disk and of fresh memory: figures that passes of other work do not shift."""

from types import SimpleNamespace

import pytest

from remat_cli.runtime.measure import spill_speed
from remat_cli.runtime.measure.spill_speed import BLOCK_BYTES, LEAST_SECONDS, SIZE_BYTES, SpillJob, time_spill

BLOCKS = SIZE_BYTES // BLOCK_BYTES


def test_fresh_pages_cost_what_the_least_block_does(monkeypatch: pytest.MonkeyPatch):
    """Half of the blocks meet other work: of either kind the least counts, not the least difference or a middle."""
    slow = iter(range(BLOCKS))

    def block() -> tuple[float, float]:
        number = next(slow)
        return (9e-3, 1e-4) if number % 2 else (5e-4, 4e-4)

    monkeypatch.setattr(spill_speed, "block_seconds", block)
    assert spill_speed.fresh_seconds() == pytest.approx(BLOCKS * 4e-4)


def test_fresh_pages_never_cost_less_than_nothing(monkeypatch: pytest.MonkeyPatch):
    """A clock may be too coarse."""
    monkeypatch.setattr(spill_speed, "block_seconds", lambda: (1e-4, 2e-4))
    assert spill_speed.fresh_seconds() == LEAST_SECONDS


def test_fresh_pages_are_taken_while_nothing_else_is_done(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Ops take them with the processors that they compute on: work beside them would be counted twice."""
    busy = SimpleNamespace(is_on=False)

    class Busy:
        def __enter__(self) -> None:
            busy.is_on = True

        def __exit__(self, *_: object) -> None:
            busy.is_on = False

    seen: list[bool] = []
    monkeypatch.setattr(spill_speed, "busy_thread", Busy)
    monkeypatch.setattr(spill_speed, "SECONDS", 0.0)
    monkeypatch.setattr(spill_speed, "block_seconds", lambda: (seen.append(busy.is_on), (2.0, 1.0))[1])
    found = time_spill(SpillJob(str(tmp_path)), lambda done, of: None)
    assert len(seen) == BLOCKS * len(found.pages)
    assert not any(seen)
    assert found.pages == (float(BLOCKS),) * len(found.pages)
