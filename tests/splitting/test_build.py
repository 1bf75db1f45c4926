"""Split models give the bits of the whole model, whatever is cut, and change nothing else about it."""

from __future__ import annotations

import collections
from itertools import pairwise

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.opset import opset_of
from remat_cli.splitting.tiles.build import FILL_SINCE
from remat_cli.splitting.tiles.tiling import Cutting
from remat_cli.splitting.tiles.view import view_model
from tests.helpers import observe
from tests.splitting.form import check_form
from tests.splitting.random_models import Sample, Sketch, image_models, transformer_models
from tests.splitting.split_case import Case, check_same, cutting_of, cuttings, describe, make_case, optimised


def check_splits(data, samples, tries, most_tiles):
    """Random regions of one model, each split by itself."""
    case = make_case(data.draw(samples))
    for _ in range(tries):
        cutting = data.draw(cuttings(case, most_tiles))
        split = None if cutting is None else case.split([cutting])
        if cutting is not None and split is not None:
            check_same(case, split, describe(case, cutting))
            check_form(case, split, cutting.ops)


@settings(max_examples=30)
@given(st.data())
def test_split_images_give_the_same_bits(data):
    check_splits(data, image_models(), tries=3, most_tiles=16)


@settings(max_examples=10)
@given(st.data())
def test_split_transformers_give_the_same_bits(data):
    check_splits(data, transformer_models(most_blocks=1), tries=3, most_tiles=24)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.data())
def test_many_split_images_give_the_same_bits(data):
    check_splits(data, image_models(most_ops=14, most_extent=23), tries=6, most_tiles=40)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_many_split_transformers_give_the_same_bits(data):
    check_splits(data, transformer_models(), tries=8, most_tiles=24)


@settings(max_examples=15)
@given(st.data())
def test_several_regions_side_by_side_give_the_same_bits(data):
    case = make_case(data.draw(st.one_of(image_models(), transformer_models(most_blocks=1))))
    check_several(data, case)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data())
def test_many_regions_side_by_side_give_the_same_bits(data):
    check_several(data, make_case(data.draw(st.one_of(image_models(most_ops=14), transformer_models()))))


def check_several(data, case):
    """All ops in a row of neighbouring regions; those that cannot be cut stay whole."""
    count = len(case.timeline.order)
    bounds = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=4))})
    found = []
    for start, stop in pairwise(bounds):
        cutting = data.draw(cutting_of(case, start, stop))
        if cutting is not None and case.split([cutting]) is not None:
            found.append(cutting)
    split = case.split(found)
    assert split is not None
    check_same(case, split, [describe(case, cutting) for cutting in found])
    check_form(case, split, [op for cutting in found for op in cutting.ops])


def pointwise(shape, opset=17):
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.add("Abs", [sketch.input("x", shape)], shape)
    one = sketch.add("Tanh", [value], shape)
    two = sketch.add("Sigmoid", [one], shape)
    three = sketch.add("Mul", [value, two], shape)
    return make_case(sketch.sample([sketch.add("Exp", [three], shape)], opset))


def test_two_regions_that_cut_the_same_rows_of_one_tensor():
    case = pointwise([1, 7, 12, 12])
    split = case.split([Cutting((1, 2), (("t2", 2),), 3), Cutting((3, 4), (("t4", 2),), 3)])
    assert split is not None
    check_same(case, split, "both read t0")


@pytest.mark.parametrize("opset", [9, 13, 21])
def test_slices_of_any_opset(opset):
    case = pointwise([2, 6], opset)
    split = case.split([Cutting((0, 1, 2, 3, 4), (("t4", 1),), 4)])
    assert split is not None
    assert sum(node.op_type == "Slice" for node in split.graph) == 4
    assert opset_of(split) == opset
    check_same(case, split, opset)


def test_slices_that_cover_a_tensor_do_not_become_one_split():
    case = pointwise([1, 7, 12, 12])
    split = case.split([Cutting((1, 2, 3, 4), (("t4", 2),), 3)])
    assert split is not None
    kinds = collections.Counter(node.op_type for node in optimised(split).graph)
    assert kinds["Slice"] == 3  # all parts of a Split would exist at once
    assert kinds["Split"] == 0


@pytest.mark.parametrize("is_filled", [False, True])
def test_a_model_that_was_split_can_be_split_again(is_filled):
    sketch = Sketch(np.random.default_rng(0))
    shape = [1, 3, 12, 12]
    value = sketch.input("x", shape)
    for kind in ("Abs", "Tanh", "Sigmoid", "Relu"):
        value = sketch.add(kind, [value], shape)
    case = make_case(sketch.sample([value]))
    fills = frozenset({"t2"} if is_filled else ())
    split = case.split([Cutting((1, 2), (("t2", 2),), 3, fills=fills)])
    assert split is not None
    assert opset_of(split) == (FILL_SINCE if is_filled else opset_of(case.reference))
    again = make_case(Sample(ir.to_proto(split), case.feeds))
    count = 0
    for index, op in enumerate(again.view.graph.ops):
        name = again.view.makes[index][0]
        axis = len(again.view.tensors[name].shape) - 1
        fills = frozenset(() if not is_filled or again.view.tensors[name].kept else {name})
        twice = again.split([Cutting((index,), ((name, axis),), 2, fills=fills)])
        if twice is not None:
            check_same(again, twice, op.name)
            count += 1
    assert count > 6


def test_weights_along_the_cut_axis_are_cut_once_for_all_tiles():
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.add("Abs", [sketch.input("x", [2, 8, 6])], [2, 8, 6])
    place = sketch.weight(1, 8, 6)
    value = sketch.add("Add", [value, place], [2, 8, 6])
    value = sketch.add("Add", [sketch.add("Sigmoid", [value], [2, 8, 6]), place], [2, 8, 6])
    case = make_case(sketch.sample([value]))
    cutting = Cutting(tuple(range(len(case.view.graph.ops))), ((value, 1),), 4)
    split = case.split([cutting])
    assert split is not None
    assert sum(v.const_value.nbytes for n, v in split.graph.initializers.items() if n.startswith("w")) == 8 * 6 * 4
    check_same(case, split, cutting)
    check_form(case, split, cutting.ops)


def test_a_tile_may_read_a_constant_where_the_whole_reads_what_is_computed():
    """A table, cut to as many rows as there are; its parts end where the cut ends, whatever the whole computes."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], "sizes", end=1),
        helper.make_node("Slice", ["table", "first", "sizes", "first"], ["rows"], "cut"),
        helper.make_node("Add", ["x", "rows"], ["sums"], "sums"),
        helper.make_node("Tanh", ["sums"], ["bent"], "bent"),
        helper.make_node("ReduceSum", ["bent"], ["y"], "sum", keepdims=0),
    ]
    weights = [
        numpy_helper.from_array(rng.random((12, 6), np.float32), "table"),
        numpy_helper.from_array(np.array([0]), "first"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds, reference = {"x": rng.random((8, 6), np.float32)}, ir.from_proto(model)  # the optimiser would fold the shape
    seen = to_graph(reference, observe(reference, feeds))
    case = Case(view_model(reference, seen, 1), reference, feeds)
    ops = tuple(at for at, op in enumerate(case.view.graph.ops) if op.op_type in {"Slice", "Add", "Tanh"})
    cutting = Cutting(ops, (("bent", 0),), 3)
    split = case.split([cutting])
    assert split is not None
    parts = [node for node in split.graph if node.op_type == "Slice" and "rows" in node.outputs[0].name]
    assert len(parts) == 3
    assert all(part.inputs[2].is_initializer() for part in parts)
    check_same(case, split, cutting)
