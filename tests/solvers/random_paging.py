"""Random chains and graphs for property tests of paging."""

from __future__ import annotations

from hypothesis import strategies as st

from remat_cli.core.paging import Link, PagedProblem, PagedTensor
from remat_cli.solvers._chains.actions import Chain
from remat_cli.solvers._paging.paged_chain import PagedChain


@st.composite
def links(draw: st.DrawFn, is_duplex: bool | None = None) -> Link:
    """Half or full duplex, at times slower one way."""
    per_ns = draw(st.integers(1, 2))
    write = draw(st.integers(1, 3))
    read = draw(st.sampled_from([write, write, 1, 2]))
    return Link(write, read, per_ns, draw(st.booleans()) if is_duplex is None else is_duplex)


@st.composite
def chains(draw: st.DrawFn, most: int = 5, one_speed: bool = False) -> PagedChain:
    """A budget between what is too little and what takes no paging."""
    count = draw(st.integers(1, most))
    figures = [
        draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
        for low, high in [(1, 4), (1, 5), (0, 3), (0, 3), (0, 2), (0, 2), (0, 2), (0, 2)]
    ]
    forward, backward, values, more, gradients, *extras = figures
    first = draw(st.integers(0, 3))
    chain = Chain(
        (0, *forward),
        (0, *backward),
        (first, *values),
        (0, *(value + extra for value, extra in zip(values, more, strict=True))),
        (*gradients, 0),
        *((0, *extra) for extra in extras),
    )
    link = draw(links(is_duplex=False))
    if one_speed:
        link = Link(link.write_bytes, link.write_bytes, link.per_ns)
    free = PagedChain(chain, 0, link)
    budget = draw(st.integers(max(0, free.least_bytes - 1), max(free.least_bytes, free.peak_bytes)))
    return PagedChain(chain, budget, link)


@st.composite
def graphs(draw: st.DrawFn, most_steps: int = 4, is_duplex: bool | None = None) -> PagedProblem:
    """Steps with one result each, given tensors, some of them hosted, workspaces, kept results."""
    steps = draw(st.integers(2, most_steps))
    tensors = []
    for producer in [*[-1] * draw(st.integers(0, 2)), *range(steps)]:
        readers = draw(st.sets(st.integers(producer + 1, steps - 1), max_size=3)) if producer < steps - 1 else set()
        uses = (producer, *sorted(readers))
        is_hosted = producer < 0 and draw(st.booleans())
        is_kept = not is_hosted and draw(st.integers(0, 4)) == 0
        tensors.append(PagedTensor(draw(st.integers(0, 3)), uses, is_hosted, is_kept))
    durations = tuple(draw(st.lists(st.integers(1, 3), min_size=steps, max_size=steps)))
    workspaces = tuple(draw(st.lists(st.integers(0, 2), min_size=steps, max_size=steps)))
    link = Link(1, 1, 1, draw(st.booleans()) if is_duplex is None else is_duplex)
    free = PagedProblem(durations, workspaces, tuple(tensors), 0, link)
    least, most = max(free.working_bytes()), max(free.held_bytes())
    budget = draw(st.integers(max(0, least - 1), most))
    return PagedProblem(durations, workspaces, tuple(tensors), budget, link)
