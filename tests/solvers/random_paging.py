"""Random chains and graphs for property tests of paging."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from remat_cli.core.paging.paging import Link, PagedProblem, PagedTensor
from remat_cli.solvers.chains.actions import Chain
from remat_cli.solvers.published._pofo.paged_chain import PagedChain


def chains(most: int = 5, is_low: bool = False) -> st.SearchStrategy[PagedChain]:
    """Chains on a half duplex link, by the seed of each; `is_low` for budgets that paging alone may not meet."""
    return st.builds(random_chain, st.integers(0, 2**32), st.just(most), st.just(is_low))


def random_chain(seed: int, most: int, is_low: bool) -> PagedChain:
    """A budget from just below what is possible without recomputation, or from less, to what needs no paging."""
    rng = random.Random(seed)
    count = rng.randint(1, most)

    def row(low: int, high: int) -> list[int]:
        return [rng.randint(low, high) for _ in range(count)]

    values = row(1, 5)
    chain = Chain(
        (0, *row(1, 4)),
        (0, *row(1, 5)),
        (rng.randint(0, 3), *values),
        (0, *(value + extra for value, extra in zip(values, row(0, 3), strict=True))),
        (*row(0, 3), 0),
        *((0, *row(0, 2)) for _ in range(3)),
    )
    write = rng.randint(1, 3)
    link = Link(write, rng.choice([write, write, 1, 2]), rng.randint(1, 2))
    free = PagedChain(chain, 0, link)
    least = free.least_bytes * 2 // 5 if is_low else free.least_bytes - 1
    return PagedChain(chain, rng.randint(max(0, least), free.peak_bytes), link)


def graphs(most_steps: int = 4) -> st.SearchStrategy[PagedProblem]:
    """Steps in a given order for which the budget is too little to hold everything, by the seed of each."""
    return st.builds(random_graph, st.integers(0, 2**32), st.just(most_steps))


def random_graph(seed: int, most_steps: int) -> PagedProblem:
    """Given tensors, some of them hosted, results of each step, some kept, workspaces; half or full duplex.

    The budget is what is possible, at times one less, or above that but too little to hold everything.
    """
    rng = random.Random(seed)
    while True:
        steps = rng.randint(3, most_steps)
        tensors = tuple(_tensor(rng, producer, steps) for producer in [*[-1] * rng.randint(0, 2), *range(steps)])
        durations = tuple(rng.randint(1, 3) for _ in range(steps))
        workspaces = tuple(rng.choice([0, 0, 1, 2]) for _ in range(steps))
        link = Link(1, 1, 1, rng.random() < 0.5)
        free = PagedProblem(durations, workspaces, tensors, 0, link)
        least, most = max(free.working_bytes()), max(free.held_bytes())
        if least < most:
            budget = rng.randint(least, most - 1) - (rng.random() < 0.1)
            return PagedProblem(durations, workspaces, tensors, budget, link)


def _tensor(rng: random.Random, producer: int, steps: int) -> PagedTensor:
    later = range(producer + 1, steps)
    uses = (producer, *sorted(rng.sample(later, min(len(later), rng.choice([1, 1, 2, 3])))))
    is_hosted = producer < 0 and rng.random() < 0.5
    final = rng.randrange(len(uses)) if not is_hosted and rng.random() < 0.2 else 0
    return PagedTensor(rng.randint(1, 3), uses, is_hosted, not is_hosted and rng.random() < 0.1, final=final)
