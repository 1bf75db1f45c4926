"""Ops between a turn of axes and the turn back: run as if there were none, with the same bits at any size."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.splitting.loops.turns import without_turns
from tests.splitting.looped_model import LoopedModel

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
FAMILY = SizeFamily((SizeRange("n", 1, 3), SizeRange("h", 2, 24), SizeRange("w", 2, 20)))
SIZES = [{"n": 3, "h": 24, "w": 20}, {"n": 1, "h": 2, "w": 3}, {"n": 2, "h": 7, "w": 5}]
CHANNELS = 8
AS_IT_IS, FUSED = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
DICE = np.random.default_rng(0)


def op(op_type, reads, made, **attributes):
    return helper.make_node(op_type, reads.split(), [made], made, **attributes)


def turned(read, made):
    return op("Transpose", read, made, perm=LAST)


def back(read, made):
    return op("Transpose", read, made, perm=FIRST)


NORM = [op("Mul", "t scale", "m"), op("Add", "m shift", "a"), op("Relu", "a", "r"), back("r", "b")]
WITHOUT = {
    "a norm and an activation": [turned("c", "t"), *NORM],
    "slopes, bounds and numbers": [
        turned("c", "t"),
        op("PRelu", "t slope", "p"),
        op("Mul", "p half", "h"),
        op("Clip", "h low high", "k"),
        back("k", "b"),
    ],
    "a sum of two, both turned": [turned("c", "t"), turned("x", "u"), op("Add", "t u", "s"), back("s", "b")],
    "two ways back": [
        turned("c", "t"),
        op("Mul", "t scale", "m"),
        back("m", "o"),
        op("Abs", "m", "d"),
        back("d", "e"),
        op("Add", "o e", "b"),
    ],
}
LEFT = {
    "an op that looks at all of a picture": [*WITHOUT["a norm and an activation"], op("ReduceMax", "r", "z", axes=[1])],
    "what a convolution would take in": [turned("c", "t"), op("Relu", "t", "r"), back("r", "b")],
    "another turn than the one before": [
        turned("c", "t"),
        op("Mul", "t half", "m"),
        op("Transpose", "m", "b", perm=[0, 3, 2, 1]),
    ],
    "sums of a turned one with one that is not": [turned("c", "t"), op("Add", "t image", "m"), back("m", "b")],
}


def built(nodes):
    """`x` convolved to `c`, these ops to `b`, and that convolved to `y`."""
    weights = {name: DICE.standard_normal((CHANNELS, CHANNELS, 3, 3)) for name in ("one", "two")}
    weights |= {name: DICE.standard_normal(CHANNELS) for name in ("scale", "shift", "slope")}
    weights |= {"half": np.array(0.5), "low": np.array(-1.0), "high": np.array(1.5)}
    convolve = [op("Conv", "x one", "c", pads=[1] * 4), op("Conv", "b two", "y", pads=[1] * 4)]
    ports = [("x", ["n", CHANNELS, "h", "w"]), ("image", ["n", "h", "w", CHANNELS])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in ports]
    ends = ["y", *(name for name in ("z",) if any(name in node.output for node in nodes))]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends]
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph([convolve[0], *nodes, convolve[1]], "g", inputs, outputs, stored)
    return LoopedModel(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), FAMILY)


def straightened(small):
    graph = small.sized.view.graph
    types = {
        each.name: tuple(TensorType(graph.tensors[made].dtype, graph.tensors[made].shape) for made in each.outputs)
        for each in graph.ops
    }
    return without_turns(small.named, small.sized.dims, types)


def run(model, feeds, threads=0, level=AS_IT_IS):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.graph_optimization_level, options.log_severity_level = threads, level, 3
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_ops_between_turns_have_the_bits_of_the_model(name, threads):
    small = built(WITHOUT[name])
    found = straightened(small)
    assert "Transpose" not in {node.op_type for node in found.model.graph}
    for at, sizes in enumerate(SIZES):
        feeds = small.feeds(sizes, at)
        wanted = run(small.named, feeds, threads)
        for level in (AS_IT_IS, FUSED):  # nothing is put into the weights of a convolution
            pairs = zip(wanted, run(found.model, feeds, threads, level), strict=True)
            assert all(one.tobytes() == other.tobytes() for one, other in pairs), (sizes, level)


@pytest.mark.parametrize("name", WITHOUT)
def test_what_is_said_of_new_tensors_is_so(name):
    small = built(WITHOUT[name])
    found = straightened(small)
    sizes = SIZES[2]
    every = found.model.clone()
    known = [value for node in every.graph for value in node.outputs if value.name in found.dims]
    assert known
    every.graph.outputs.extend(known)
    seen = run(every, small.feeds(sizes), level=AS_IT_IS)[-len(known) :]
    for value, array in zip(known, seen, strict=True):
        assert tuple(dim.at(sizes) for dim in found.dims[value.name]) == array.shape
        (kind,) = found.types[value.producer().name]
        assert kind.shape == tuple(dim.at(SIZES[0]) for dim in found.dims[value.name])


@pytest.mark.parametrize("name", LEFT)
def test_other_ops_are_left_as_they_are(name):
    small = built(LEFT[name])
    assert straightened(small).model is small.named
