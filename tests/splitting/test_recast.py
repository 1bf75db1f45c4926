"""Models in other ops: norms taken apart, layouts and whole chains made again, always with the same bits."""

from __future__ import annotations

import time

import numpy as np
import pytest

from remat_cli.core.values.profile import OpCost
from remat_cli.onnx_io.read.op_facts import NCHWC
from remat_cli.splitting.bands.again import copies_at_peak
from remat_cli.splitting.recast.norms import norms_apart
from remat_cli.splitting.recast.recast import Copied, Recast, layouts_apart, with_copies
from remat_cli.splitting.recast.resize import resizes_apart
from remat_cli.splitting.tiles.op_view import Slab
from remat_cli.splitting.tiles.steps import Piece, WholeStep
from tests.splitting.random_models import Sketch
from tests.splitting.split_case import Case, check_same, make_case
from tests.splitting.test_bands import check, search

NOTHING = frozenset[str]()


def as_it_is(case: Case) -> Recast:
    costs = tuple(OpCost(op.name, 1_000_000) for op in case.view.graph.ops)
    return Recast(case.view, case.timeline.order, costs, {}, {})


def normalised(groups: int, channels: int = 32, size: int = 24, items: int = 1, scale: bool = True) -> Case:
    """Convolutions with a normalisation between them; as many groups as channels is one of instances."""
    sketch = Sketch(np.random.default_rng(groups))
    shape = [items, channels, size, size]
    weight = sketch.weight(channels, 3, 3, 3, scale=0.3)
    value = sketch.input("x", [items, 3, size, size])
    value = sketch.add("Conv", [value, weight], shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    factor, shift = (sketch.weight(groups) for _ in range(2))
    if not scale:
        factor = sketch.constant(np.ones(groups, np.float32))
        shift = sketch.constant(np.zeros(groups, np.float32))
    if groups != channels:
        grouped = [items, groups, channels // groups * size * size]
        into = sketch.constant(np.array([0, groups, -1], np.int64))
        value = sketch.add("Reshape", [value, into], grouped)
        value = sketch.add("InstanceNormalization", [value, factor, shift], grouped, epsilon=1e-6)
        back = sketch.constant(np.array(shape, np.int64))
        value = sketch.add("Reshape", [value, back], shape)
        value = sketch.add("Mul", [value, sketch.weight(channels, 1, 1)], shape)
    else:
        value = sketch.add("InstanceNormalization", [value, factor, shift], shape)
    value = sketch.add("Relu", [value], shape)
    weight = sketch.weight(8, channels, 3, 3, scale=0.1)
    value = sketch.add("Conv", [value, weight], [items, 8, size, size], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return make_case(sketch.sample([sketch.add("GlobalAveragePool", [value], [items, 8, 1, 1])]))


@pytest.mark.parametrize("groups", [4, 8, 32])
@pytest.mark.parametrize("items", [1, 2])
@pytest.mark.parametrize("scale", [True, False])
def test_a_norm_taken_apart_has_the_same_bits(groups, items, scale):
    case = normalised(groups, items=items, scale=scale)
    apart = norms_apart(as_it_is(case), 1, NOTHING)
    kinds = [op.op_type for op in apart.view.graph.ops]
    assert "InstanceNormalization" not in kinds
    assert kinds.count("ReduceMean") == 2
    check_same(case, apart.view.model, (groups, items, scale))


@pytest.mark.parametrize("size", [5, 7, 9, 18])
@pytest.mark.parametrize("groups", [8, 32])
def test_a_norm_over_lines_that_begin_unlike_in_memory_is_added_up_line_by_line(size, groups):
    case = normalised(groups, size=size, items=2)
    apart = norms_apart(as_it_is(case), 1, NOTHING)
    line = size * size * 32 // groups
    assert "InstanceNormalization" not in kinds_of(apart)
    assert ("Scan" in kinds_of(apart)) == bool(line % 16)
    check_same(case, apart.view.model, (groups, size))


def kinds_of(cast: Recast) -> list[str]:
    return [op.op_type for op in cast.view.graph.ops]


def test_a_norm_that_is_small_or_forbidden_stays_whole():
    case = normalised(8)
    largest = max(tensor.size_bytes for tensor in case.view.graph.tensors)
    assert norms_apart(as_it_is(case), largest + 1, NOTHING) == as_it_is(case)
    name = next(op.name for op in case.view.graph.ops if op.op_type == "InstanceNormalization")
    assert norms_apart(as_it_is(case), 1, frozenset({name})) == as_it_is(case)


def test_what_a_norm_became_stands_for_it():
    case = normalised(8)
    apart = norms_apart(as_it_is(case), 1, NOTHING)
    whole = {op.name for op in case.view.graph.ops}
    assert {apart.stands_for(op) for op in apart.order} <= whole
    assert sum(apart.stands_for(op).endswith("InstanceNormalization") for op in apart.order) > 10


@pytest.mark.parametrize(("groups", "percent"), [(4, 80), (8, 75), (32, 72)])
def test_a_model_with_norms_goes_in_bands(groups, percent):
    case = normalised(groups, size=48)
    peak = max(case.timeline.memory_bytes)
    found = search(case, may_fill=case.may_fill).propose(peak * percent // 100, time.monotonic() + 60)
    assert found is not None
    assert found.cost.peak_bytes <= peak * percent // 100
    check(case, found)


def sound(channels: int = 64, length: int = 59_999) -> Case:
    """The first layers of a model of speech: a convolution of a wave, each channel normalised over time, another."""
    sketch = Sketch(np.random.default_rng(channels))
    long, short = (length - 10) // 5 + 1, ((length - 10) // 5 - 2) // 2 + 1
    value, weight = sketch.input("x", [1, 1, length]), sketch.weight(channels, 1, 10, scale=0.3)
    value = sketch.add("Conv", [value, weight], [1, channels, long], kernel_shape=[10], strides=[5])
    factor, shift = (sketch.weight(channels) for _ in range(2))
    value = sketch.add("InstanceNormalization", [value, factor, shift], [1, channels, long])
    value = sketch.add("Relu", [value], [1, channels, long])
    weight = sketch.weight(channels, channels, 3, scale=0.1)
    value = sketch.add("Conv", [value, weight], [1, channels, short], kernel_shape=[3], strides=[2])
    return make_case(sketch.sample([sketch.add("GlobalAveragePool", [value], [1, channels, 1])]))


def test_what_is_normalised_over_odd_times_is_made_twice_by_channels_and_by_times():
    case = sound()
    peak = max(case.timeline.memory_bytes)
    found = search(case, may_fill=case.may_fill).propose(peak // 2, time.monotonic() + 60)
    assert found is not None
    kinds = [op.op_type for op in found.cast.view.graph.ops]
    assert kinds.count("Conv") == 3
    assert "Scan" in kinds
    check(case, found)


def test_each_reader_of_another_layout_has_its_own_copy_where_the_layout_before_is_read_as_well():
    sketch = Sketch(np.random.default_rng(0))
    shape = [1, 16, 16, 16]
    value = sketch.add(
        "Conv", [sketch.input("x", [1, 3, 16, 16]), sketch.weight(16, 3, 1, 1)], shape, kernel_shape=[1, 1]
    )
    after = sketch.add("Conv", [value, sketch.weight(16, 16, 1, 1)], shape, kernel_shape=[1, 1])
    one, two = (sketch.add(kind, [value], shape) for kind in ("Erf", "Abs"))
    case = make_case(sketch.sample([after, one, two]))
    if not case.view.blocked:
        pytest.skip("this processor has no blocked layout")
    before, cast = as_it_is(case), layouts_apart(as_it_is(case), 1)
    assert kinds_of(cast).count("ReorderOutput") == kinds_of(before).count("ReorderOutput") + 1
    assert layouts_apart(before, 1 << 30) == before
    check_same(case, cast.view.model, "copied layouts")


def chain(layers: int = 1) -> Case:
    """In each layer a large tensor that is read at once, and again at the end, with another large one in between."""
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.input("x", [1, 64])
    for _ in range(layers):
        large = sketch.add("Tile", [value, sketch.constant(np.array([64, 1], np.int64))], [64, 64])
        first = sketch.add("ReduceMax", [sketch.add("Abs", [large], [64, 64])], [1, 1])
        other = sketch.add(
            "Exp", [sketch.add("Tile", [first, sketch.constant(np.array([64, 64], np.int64))], [64, 64])], [64, 64]
        )
        second = sketch.add("ReduceMax", [sketch.add("Neg", [other], [64, 64])], [1, 1])
        last = sketch.add("ReduceMax", [sketch.add("Mul", [large, second], [64, 64])], [1, 1])
        value = sketch.add("Tile", [last, sketch.constant(np.array([1, 64], np.int64))], [1, 64])
    return make_case(sketch.sample([last]))


def test_ops_made_again_serve_the_readers_named_and_no_other():
    case = chain()
    cast = as_it_is(case)
    maker = next(i for i, op in enumerate(case.view.graph.ops) if op.op_type == "Tile")
    late = next(i for i, op in enumerate(case.view.graph.ops) if op.op_type == "Mul")
    copied = with_copies(cast, [Copied((maker,), frozenset({late}))])
    name = case.view.makes[maker][0]
    assert list(copied.twins.values()) == [name]
    assert len(copied.view.readers[name]) == len(case.view.readers[name]) - 1
    check_same(case, copied.view.model, "made again")


def whole_steps(case: Case) -> list[WholeStep]:
    view = case.view
    return [
        WholeStep(
            op,
            tuple(Piece(name, name, None) for name in view.reads[op] if name in view.tensors),
            tuple(Piece(name, name, None) for name in view.makes[op] if name),
        )
        for op in as_it_is(case).order
    ]


@pytest.mark.parametrize("layers", [1, 3])
def test_what_lies_idle_at_the_peaks_is_made_again(layers):
    case = chain(layers)
    cast = as_it_is(case)
    view = case.view
    choices = copies_at_peak(cast, whole_steps(case), frozenset(t.name for t in view.graph.tensors if t.kept))
    assert choices
    assert len(choices[0]) == layers
    for copied in choices[0]:
        assert [view.graph.ops[op].op_type for op in copied.ops] == ["Tile"]
        assert [view.graph.ops[op].op_type for op in copied.readers] == ["Mul"]


def test_what_only_a_view_of_is_read_later_is_made_again():
    sketch = Sketch(np.random.default_rng(0))
    large = sketch.add("Tile", [sketch.input("x", [1, 64]), sketch.constant(np.array([64, 1], np.int64))], [64, 64])
    flat = sketch.add("Reshape", [large, sketch.constant(np.array([4096, 1], np.int64))], [4096, 1])
    first = sketch.add("ReduceMax", [sketch.add("Abs", [flat], [4096, 1])], [1, 1])
    other = sketch.add(
        "Exp", [sketch.add("Tile", [first, sketch.constant(np.array([64, 64], np.int64))], [64, 64])], [64, 64]
    )
    second = sketch.add("ReduceMax", [sketch.add("Neg", [other], [64, 64])], [1, 1])
    last = sketch.add("ReduceMax", [sketch.add("Mul", [flat, second], [4096, 1])], [1, 1])
    case = make_case(sketch.sample([last]))
    copied = copies_at_peak(as_it_is(case), whole_steps(case), frozenset([last]))[0][0]
    ops = case.view.graph.ops
    assert [ops[op].op_type for op in copied.ops] == ["Tile", "Reshape"]
    assert [ops[op].op_type for op in copied.readers] == ["Mul"]


def resized(coordinates: str, sizes: tuple[int, int, int, int], by_sizes: bool = True, channels: int = 8) -> Case:
    """A convolution, a bilinear Resize of its result, and another convolution."""
    high, wide, to_high, to_wide = sizes
    sketch = Sketch(np.random.default_rng(to_high))
    value = sketch.input("x", [1, 3, high, wide])
    weight = sketch.weight(channels, 3, 3, 3, scale=0.3)
    value = sketch.add("Conv", [value, weight], [1, channels, high, wide], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    shape = [1, channels, to_high, to_wide]
    factors = np.array([1, 1, to_high / high, to_wide / wide], np.float32)
    told = sketch.constant(np.array(shape, np.int64) if by_sizes else factors)
    reads = [value, "", "", told] if by_sizes else [value, "", told]
    value = sketch.add("Resize", reads, shape, mode="linear", coordinate_transformation_mode=coordinates)
    weight = sketch.weight(4, channels, 3, 3, scale=0.1)
    value = sketch.add("Conv", [value, weight], [1, 4, to_high, to_wide], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return make_case(sketch.sample([sketch.add("GlobalAveragePool", [value], [1, 4, 1, 1])]))


WAYS = ("align_corners", "half_pixel", "pytorch_half_pixel", "asymmetric")


@pytest.mark.parametrize("coordinates", WAYS)
@pytest.mark.parametrize("sizes", [(19, 19, 37, 37), (30, 40, 17, 21), (17, 12, 18, 30), (9, 7, 28, 7)])
@pytest.mark.parametrize("by_sizes", [True, False])
def test_a_resize_taken_apart_has_the_same_bits(coordinates, sizes, by_sizes):
    case = resized(coordinates, sizes, by_sizes)
    apart = resizes_apart(as_it_is(case), 1, NOTHING)
    assert kinds_of(apart).count("Resize") == 0
    check_same(case, apart.view.model, (coordinates, sizes, by_sizes))


@pytest.mark.parametrize("coordinates", ["align_corners", "half_pixel", "asymmetric"])
@pytest.mark.parametrize("factors", [(2, 2), (3, 3), (3, 1), (4, 3)])
def test_a_blocked_resize_taken_apart_has_the_same_bits(coordinates, factors):
    high, wide = 19, 23
    case = resized(coordinates, (high, wide, high * factors[0], wide * factors[1]), by_sizes=False, channels=16)
    if not any(op.domain == NCHWC and op.op_type == "Upsample" for op in case.view.graph.ops):
        pytest.skip("this processor has no blocked layout")
    is_cut = case.view.slice(
        next(n for n, op in enumerate(case.view.graph.ops) if op.op_type == "Upsample"), Slab(2, 0, high)
    )
    apart = resizes_apart(as_it_is(case), 1, NOTHING)
    assert kinds_of(apart).count("Upsample") == bool(is_cut)
    check_same(case, apart.view.model, (coordinates, factors))


def test_a_resize_that_can_be_cut_is_small_or_forbidden_stays():
    case = resized("half_pixel", (8, 8, 16, 16))
    assert resizes_apart(as_it_is(case), 1, NOTHING) == as_it_is(case)
    case = resized("align_corners", (8, 8, 17, 17))
    name = next(op.name for op in case.view.graph.ops if op.op_type == "Resize")
    assert resizes_apart(as_it_is(case), 1, frozenset({name})) == as_it_is(case)
    assert resizes_apart(as_it_is(case), 1 << 30, NOTHING) == as_it_is(case)


@pytest.mark.parametrize("coordinates", WAYS)
@pytest.mark.parametrize("sizes", [(48, 48, 112, 112), (48, 40, 144, 120)])
def test_a_model_with_a_resize_by_any_factor_goes_in_bands(coordinates, sizes):
    case = resized(coordinates, sizes, channels=16)
    peak = max(case.timeline.memory_bytes)
    found = search(case, may_fill=case.may_fill).propose(peak * 60 // 100, time.monotonic() + 60)
    assert found is not None
    assert found.cost.peak_bytes <= peak * 60 // 100
    check(case, found)
