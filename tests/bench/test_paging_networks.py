"""Networks that paging is judged on: what their steps hold, and that solvers for chains take them; and their page."""

from __future__ import annotations

import pytest

from bench.paging_networks import BATCH, BYTES, NETWORKS, StepBuilder
from bench.paging_simulated_report import overhead_percent, page
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers.published._pofo.chain_proposals import no_chain


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_a_chain_of_blocks_that_holds_gigabytes(name):
    problem = NETWORKS[name]()
    assert no_chain(problem) is None
    assert 1e9 < baseline(problem).peak < 12e9
    forward = [op for op in problem.ops if op.phase == "forward"]
    assert len(forward) < len(problem.ops) - len(forward) + 1  # a backward for each, and sums of gradients


def test_figures_of_a_step_are_those_of_its_ops():
    """A convolution of 8 channels and its backward: the input is kept, the backward is two convolutions."""
    step = StepBuilder()
    first = step.conv(step.images(), 8, 1, 5)
    problem = step.problem(step.conv(first, 8, 3))
    size = BYTES * BATCH * 8 * 100 * 100
    assert [problem.tensors[op.outputs[0]].size_bytes for op in problem.ops[:2]] == [size, size]
    conv, back = problem.ops[1], problem.ops[-2]
    assert back.inputs[0] == conv.inputs[0]
    assert back.time_ns[0] == pytest.approx(2 * conv.time_ns[0], abs=2)
    assert problem.tensors[problem.ops[-1].outputs[0]].size_bytes == 0  # the images need no gradient


def test_the_page_counts_what_rows_say():
    def row(method: str, time_ns: int | None, rate: int = 12) -> dict:
        return {
            "network": "N",
            "divisor": 2.0,
            "rate": rate,
            "method": method,
            "budget_bytes": 10**9,
            "peak_bytes": 2 * 10**9,
            "compute_ns": 100,
            "volume_ns": 200,
            "bound_ns": 210,
            "time_ns": time_ns,
            "moved_bytes": 5 * 10**8,
            "seconds": 1.0,
            "limit": 10.0,
            "best_from": "x",
        }

    times = {"recompute": 110, "rotor": 120, "paging": 230, "pofo": None, "auto": 105}
    rows = [row(method, time_ns, rate) for rate in (12, 24) for method, time_ns in times.items()]
    text = page(rows)
    assert "Of 1 cases" in text
    assert "| auto beside recompute only | -5.00 | -5.00 | 0 of 1 | 0 |" in text
    assert "| POFO beside recompute only | - | - | 0 of 0 | 1 |" in text
    assert "| POFO beside recompute blocks only | - | - | 0 of 0 | 1 |" in text
    assert "| N | 2.00 | 2 | 1/2 for +10.0 % | 1/2 for +20.0 % | - | - | 1/2 for +5.0 % |" in text
    assert "| N | 1/2 | 24 | 10.00 | 20.00 | 130.00 | - | 5.00 | 1.150 | 1.095 | 0.50 |" in text
    assert overhead_percent(row("auto", None)) is None
