"""No schedule beats the bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.pipelines.solve.bounds import memory_bound, period_bound
from remat_cli.pipelines.solve.contiguous import best_contiguous
from remat_cli.pipelines.solve.integer_program import least_period
from tests.pipelines.solve.least_memory import least_memory
from tests.pipelines.solve.vectors import MEMORY_MODELS, chains


@given(chains(3), st.integers(1, 3), st.sampled_from(MEMORY_MODELS))
def test_nothing_beats_the_bounds(chain, devices, model):
    roomy = least_period(chain, devices, 10_000, model)
    assert roomy.is_optimal
    assert roomy.value >= period_bound(chain, devices)
    slow = sum(chain.forward) + sum(chain.backward) + 2 * sum(chain.transfers)
    memory, _ = least_memory(chain, devices, slow, model)
    assert memory >= memory_bound(chain, devices, model)
    contiguous = best_contiguous(chain, devices, 10_000)
    assert contiguous.period >= period_bound(chain, devices)
