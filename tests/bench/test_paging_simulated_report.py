"""The page of simulated paging: what is counted of its rows."""

from __future__ import annotations

from typing import Any

from bench.paging_simulated_report import METHODS, page

CASE = {"network": "Net", "divisor": 2.0, "budget_bytes": 50, "peak_bytes": 100, "compute_ns": 1000}


def rows(rate: int = 12, **times: int | None) -> list[dict[str, Any]]:
    """A case with the time of each method, 1300 ns unless told."""
    rest = {"rate": rate, "volume_ns": 1200, "moved_bytes": 0, "seconds": 1.0, "limit": 10.0, "best_from": ""}
    return [
        {**CASE, **rest, "method": name, "time_ns": times.get(name, 1300), "bound_ns": 1250 if name == "paging" else 0}
        for name in METHODS
    ]


def test_paging_is_beside_both_bounds():
    told = page(rows(paging=1500))
    assert "1.2 times the volume bound in\n0; the largest is 1.250." in told
    assert "best bound it is in 0; the largest is 1.200." in told
    assert "| 1.250 | 1.200 |" in told


def test_pofo_is_beside_its_own_class():
    told = page(rows(rotor=1200, pofo=1250))
    assert "| POFO beside recompute blocks only | +5.00 | +5.00 | 1 of 1 | 0 |" in told
    assert "| POFO beside recompute blocks only | +0.00 | +0.00 | 0 of 1 | 0 |" in page(rows(rotor=1250, pofo=1250))
    assert "| POFO beside recompute blocks only | - | - | 0 of 0 | 1 |" in page(rows(pofo=None))


def test_how_far_runs_of_one_search_lie_apart():
    told = page([*rows(recompute=1100), *rows(24, recompute=1102)])
    assert "differs by up to 0.20 points" in told
