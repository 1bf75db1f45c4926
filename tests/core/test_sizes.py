"""Dimensions as expressions of sizes, and families of sizes with limits."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.values.sizes import (
    Dim,
    SizeBound,
    SizeFamily,
    SizeLimit,
    SizeRange,
    Term,
    dim_told,
    family_told,
    fit_dim,
    fit_multiple,
)

B, S = "batch", "seq"
SIZES = [{B: b, S: s} for b, s in [(7, 10), (10, 10), (12, 10), (7, 12), (7, 17), (12, 17), (32, 8192)]]


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (Dim(offset=5), "5"),
        (Dim((Term((S,)),)), "seq"),
        (Dim((Term((B, S), 12),)), "12 * batch * seq"),
        (Dim((Term((S, S), 1),), -1), "seq * seq - 1"),
        (Dim((Term((B,)), Term((S,), 2)), 3), "batch + 2 * seq + 3"),
        (Dim((Term((S,)),), 1, 2), "(seq + 1) // 2"),
    ],
)
def test_an_expression_is_found_from_its_values(dim, text):
    assert str(dim) == text
    assert fit_dim([(sizes, dim.at(sizes)) for sizes in SIZES]) == dim


@pytest.mark.parametrize(
    "dim", [Dim((Term((B, S)),), 64, 64), Dim((Term((S,), 3),), 16, 8), Dim((Term((B, S)),), 0, 4)]
)
def test_shares_of_products_are_found_where_sizes_are_in_steps(dim):
    samples = [{name: 16 * size for name, size in sizes.items()} for sizes in SIZES]
    found = fit_dim([(sizes, dim.at(sizes)) for sizes in samples])
    assert found is not None
    for b, s in itertools.product(range(16, 512, 16), range(32, 1024, 48)):
        assert found.at({B: b, S: s}) == dim.at({B: b, S: s})


EIGHTH, THIRD = Dim((Term((S,)),), 7, 8), Dim((Term((S,)),), 1, 3)


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (Dim((Term((S,)),), 7, 8, 2, -1), "2 * ((seq + 7) // 8) - 1"),
        (Dim((Term((S,)),), 7, 8, 4), "4 * ((seq + 7) // 8)"),
        (Dim((Term((S,)),), 1, 3, 3, 5), "3 * ((seq + 1) // 3) + 5"),
    ],
)
def test_a_multiple_of_a_length_that_is_divided_is_found_from_it(dim, text):
    assert str(dim) == text
    assert dim.symbol is None
    samples = [({S: size}, dim.at({S: size})) for size in (100, 206, 209, 211, 216)]
    assert fit_dim(samples) is None
    assert fit_multiple(samples, [Dim((Term((S,)),)), THIRD, EIGHTH]) == dim
    assert fit_multiple([(sizes, value + (sizes[S] == 211)) for sizes, value in samples], [THIRD, EIGHTH]) is None


def test_so_much_more_of_a_multiple_is_more_of_that():
    distances = Dim((Term((S,)),), 7, 8, 2, -1)
    assert str(distances.and_more(1)) == "2 * ((seq + 7) // 8)"
    assert str(EIGHTH.and_more(1)) == "(seq + 15) // 8"


@pytest.mark.parametrize("step", [1, 2, 5, 16])
def test_sizes_in_steps(step):
    each = SizeRange("height", 7, 7 + 6 * step, step)
    assert list(each.sizes) == [7 + step * at for at in range(7)]
    assert str(each) == f"height=7..{7 + 6 * step}" + ("" if step == 1 else f":{step}")
    for size in range(1, 8 + 7 * step):
        assert each.down_from(size) == max((at for at in each.sizes if at <= size), default=each.low)
        assert each.up_from(size) == min((at for at in each.sizes if at >= size), default=each.high)
        assert SizeFamily((each,)).admits({"height": size}) == (size in list(each.sizes))


def test_what_follows_no_rule_is_none():
    assert fit_dim([(sizes, number) for sizes, number in zip(SIZES, [3, 1, 4, 1, 5, 9, 2], strict=True)]) is None


def test_only_a_plain_name_is_a_symbol():
    assert Dim((Term((S,)),)).symbol == S
    for other in (Dim(offset=1), Dim((Term((S,), 2),)), Dim((Term((S, S)),)), Dim((Term((S,)),), 1)):
        assert other.symbol is None


@pytest.mark.parametrize(
    ("dim", "is_never_zero"),
    [
        (Dim(offset=0), False),
        (Dim(offset=3), True),
        (Dim((Term((B, S), 4),)), True),
        (Dim((Term((S,)),), -1), False),
        (Dim((Term((S,), 2),), -1), True),
        (Dim((Term((S,)),), 1, 2), True),
        (Dim((Term((S,)),), 0, 32), False),
        (Dim((Term((S,), -1),), 9), False),
        (Dim((Term((S,)),), 7, 8, 2, -1), True),
        (Dim((Term((S,)),), 7, 8, 2, -2), False),
        (Dim((Term((S,)),), within=SizeBound((Dim((Term((S,)),)),), 9)), False),
    ],
)
def test_a_length_that_grows_from_one_is_never_zero(dim, is_never_zero):
    for low in (1, 0):
        family = SizeFamily((SizeRange(B, low, 9), SizeRange(S, low, 9)))
        zero = dim.within is not None or any(dim.at({B: b, S: s}) <= 0 for b in range(low, 10) for s in range(low, 10))
        assert family.is_never_zero(dim) <= (not zero)
        assert low == 0 or family.is_never_zero(dim) is is_never_zero


@given(
    st.integers(1, 9), st.integers(0, 30), st.integers(1, 9), st.integers(0, 30), st.integers(1, 400), st.integers(1, 5)
)
def test_corners_are_sizes_of_which_none_can_grow_alone(low, more, other_low, other_more, most, step):
    limit = SizeLimit(((B, S),), max(most, low * other_low))
    ranges = SizeRange(B, low, low + more), SizeRange(S, other_low, other_low + other_more * step, step)
    family = SizeFamily(ranges, (limit,))
    every = itertools.product(*(each.sizes for each in ranges))
    all_sizes = [{B: b, S: s} for b, s in every if b * s <= limit.most]
    for corner in family.corners:
        assert corner in all_sizes
        assert not any(corner[B] <= each[B] and corner[S] <= each[S] and each != corner for each in all_sizes)
    assert max(each[S] for each in all_sizes) == max(corner[S] for corner in family.corners)
    assert max(each[B] for each in all_sizes) == max(corner[B] for corner in family.corners)


@pytest.mark.parametrize(
    ("text", "at", "written"),
    [
        ("past+seq", 7, "past + seq"),
        ("past_sequence_length + 1", 3, "past_sequence_length + 1"),
        ("2*seq - past", 8, "2 * seq - past"),
        ("batch * seq+3", 18, "batch * seq + 3"),
    ],
)
def test_a_sum_is_read_as_it_is_written(text, at, written):
    found = dim_told(text)
    assert found.at({"past": 2, "seq": 5, "past_sequence_length": 2, "batch": 3}) == at
    assert str(found) == written
    assert dim_told(written) == found


@pytest.mark.parametrize(
    "text", ["seq", "seq_len.1", "7", "", "a b", "unk__12", "seq/2", "1..9", "32..256:16", "-", "?"]
)
def test_what_is_no_sum_is_not_read_as_one(text):
    assert dim_told(text) is None


def test_of_a_limited_sum_the_corner_with_the_largest_product_comes_first():
    ranges = SizeRange("past", 0, 4096), SizeRange(S, 1, 1024)
    family = SizeFamily(ranges, (SizeLimit((("past",), (S,)), 4096),))
    assert family.corners == ({"past": 3072, S: 1024}, {"past": 4095, S: 1})
    assert not family.admits({"past": 4096, S: 1})
    assert family_told(str(family)) == family


def test_a_family_admits_what_is_in_its_ranges_and_limits():
    family = SizeFamily((SizeRange(B, 1, 4), SizeRange(S, 2, 8)), (SizeLimit(((B, S),), 16),))
    assert family.admits({B: 2, S: 8})
    assert not family.admits({B: 4, S: 8})
    assert not family.admits({B: 1, S: 1})
    assert str(family.limits[0]) == "batch*seq<=16"


BOUND = SizeBound((Dim((Term((B,)),)), Dim((Term((S,)),), 1), Dim((Term((S,)),))), 60)


def test_a_dimension_within_a_bound_is_nought_beyond_it():
    dim = Dim((Term((S,)),), within=BOUND)
    assert [dim.at({B: 2, S: size}) for size in (1, 5, 6)] == [1, 5, 0]  # 2 x 6 x 5 = 60, 2 x 7 x 6 = 84
    assert dim.symbol is None
    assert dim.names == {B, S}
    assert str(dim) == "seq if batch * (seq + 1) * seq <= 60 else 0"


@given(st.integers(1, 4), st.integers(0, 6), st.integers(1, 9), st.integers(0, 9), st.integers(1, 300))
def test_corners_within_a_bound_are_all_that_hold_most(low, more, other_low, other_more, most):
    family = SizeFamily((SizeRange(B, low, low + more), SizeRange(S, other_low, other_low + other_more)))
    bound = SizeBound(BOUND.factors, most)
    found = family.corners_within(bound)
    inside = [
        {B: b, S: s}
        for b, s in itertools.product(range(low, low + more + 1), range(other_low, other_low + other_more + 1))
        if bound.holds({B: b, S: s})
    ]
    assert all(corner in inside for corner in found)
    assert bool(found) == bool(inside)
    for corner in found:
        assert not [each for each in inside if each != corner and all(each[name] >= corner[name] for name in corner)]


FAMILY = SizeFamily(
    (SizeRange(B, 1, 4), SizeRange("a; b", 32, 256, 16)), (SizeLimit(((B, S),), 64), SizeLimit(((S,),), 40)), {S: 16}
)


def test_a_family_reads_back_from_its_text():
    text = "batch=1..4; a; b=32..256:16; seq=16; batch*seq<=64; seq<=40"
    assert str(FAMILY) == text
    assert family_told(text) == FAMILY


@pytest.mark.parametrize("text", ["", "batch", "batch=1", "batch=1..4; what", "batch=1..", "batch*seq<=3"])
def test_what_says_no_family_is_none(text):
    assert family_told(text) is None


@pytest.mark.parametrize(
    ("sizes", "left"),
    [
        ({B: 4, "a; b": 48}, None),
        ({B: 5, "a; b": 48}, "batch=1..4"),
        ({"a; b": 40}, "a; b=32..256:16"),
        ({B: 4, S: 17}, "batch*seq<=64"),
        ({S: 41}, "seq<=40"),
        ({}, None),
    ],
)
def test_the_range_or_limit_that_sizes_leave_is_named(sizes, left):
    found = FAMILY.left_by(sizes)
    assert (None if found is None else str(found)) == left


def term(name: str, offset: int = 0, divisor: int = 1, factor: int = 1) -> Dim:
    return Dim((Term((name,), factor),), offset, divisor)


@pytest.mark.parametrize(
    ("one", "other", "factor", "step", "are_the_same"),
    [
        (term(S, 3, 4), term(S, 0, 4), 1, 32, True),
        (term(S, 3, 4), term(S, 0, 4), 1, 2, False),
        (term(S, 0, 2), term(S, 3, 4), 2, 4, True),
        (term(S, 0, 2), term(S, 3, 4), 2, 1, False),
        (term(S, 2, 2, 2), term(S, 1), 1, 1, True),
        (term(S), term(B), 1, 1, False),
        (Dim(offset=6), Dim(offset=3), 2, 1, True),
    ],
)
def test_dimensions_agree_where_they_are_the_same_at_every_size(one, other, factor, step, are_the_same):
    family = SizeFamily((SizeRange(B, 1, 4), SizeRange(S, 32, 320, step)))
    sizes = [{B: b, S: s} for b in range(1, 5) for s in range(32, 321, step)]
    assert all(one.at(each) == factor * other.at(each) for each in sizes) is are_the_same
    assert family.agree(one, other, factor) is are_the_same


def test_dimensions_that_are_the_same_are_written_alike():
    family = SizeFamily((SizeRange(S, 32, 320, 32),))
    dims = {"a": (Dim(offset=1), term(S, 3, 4)), "b": (term(S, 0, 4), term(S, 1, 2)), "c": (term(S, 0, 2),)}
    alike = {"a": (Dim(offset=1), term(S, 3, 4)), "b": (term(S, 3, 4), term(S, 1, 2)), "c": (term(S, 1, 2),)}
    assert family.unified(dims) == alike
