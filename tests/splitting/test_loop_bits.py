"""What is said of all sizes at once follows from what is said of each."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.splitting.loop_bits import Tiling
from remat_cli.splitting.rules_matrix import Product, Span, has_same_bits, have_rows_same_bits

SIZE = st.integers(1, 300)
THREADS = st.sampled_from([1, 2, 4, 8])


@given(st.builds(Product, SIZE, SIZE, SIZE, st.integers(1, 16), st.just(False), st.booleans()), SIZE, THREADS)
def test_rows_that_are_the_same_by_their_ends_are_the_same(product, other, threads):
    few, whole = sorted((product.rows, other))
    columns, depth = product.columns, product.depth
    if not have_rows_same_bits(Span(few, whole), Span(columns, columns), Span(depth, depth), threads):
        return
    products = [product._replace(rows=count) for count in (whole, few)]
    assert has_same_bits(products[0], products[1], 0, threads)


@given(st.integers(1, 200), st.integers(1, 5000))
def test_tiles_cover_all_and_none_is_shorter_than_half(rows, length):
    tiling = Tiling(rows)
    bounds = tiling.bounds(length)
    assert (bounds[0][0], bounds[-1][1]) == (0, length)
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(bounds))
    extents = {stop - start for start, stop in bounds}
    assert extents <= tiling.extents(length)
    assert max(extents) <= rows
    assert len(bounds) == 1 or min(extents) >= tiling.least
