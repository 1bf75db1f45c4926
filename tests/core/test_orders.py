from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.schedule.orders import chained_order, inverse, ranked_order


@st.composite
def _graphs(draw: st.DrawFn) -> list[set[int]]:
    """By op, earlier ops that it reads from."""
    count = draw(st.integers(0, 12))
    return [draw(st.sets(st.integers(0, op - 1), max_size=3)) if op else set() for op in range(count)]


def _is_topological(sources: list[set[int]], order: list[int]) -> bool:
    place = {op: number for number, op in enumerate(order)}
    return sorted(order) == list(range(len(sources))) and all(
        place[source] < place[op] for op, group in enumerate(sources) for source in group
    )


@given(_graphs(), st.data())
def test_the_lowest_rank_of_what_is_ready_comes_first(sources, data):
    ranks = data.draw(st.lists(st.integers(0, 5), min_size=len(sources), max_size=len(sources)))
    order = ranked_order(sources, ranks)
    assert _is_topological(sources, order)
    for number, op in enumerate(order):
        ready = [later for later in order[number:] if sources[later] <= set(order[:number])]
        assert (ranks[op], op) == min((ranks[other], other) for other in ready)


@given(_graphs())
def test_a_chain_goes_on_where_it_can(sources):
    reads = [set(sorted(group)[:2]) for group in sources]
    order = chained_order(sources, reads)
    assert _is_topological(sources, order)
    for number, op in enumerate(order):
        ready = [later for later in order[number:] if sources[later] <= set(order[:number])]
        readers = [other for other in ready if number and order[number - 1] in reads[other]]
        assert op == min(readers or ready)


def test_inverse_is_ascending():
    assert inverse([[], [0], [0, 1], [0]]) == [[1, 2, 3], [2], [], []]
