"""Dimensions for all sizes: windows by their attributes, exact where a few runs would not tell; others as seen."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph, Tensor
from remat_cli.splitting.loops.learn_dims import learn_dims

LEAST, MOST = 140, 150  # three layers of the widest windows have one at the least


KINDS = ("Conv", "MaxPool", "MaxPool, rounding up")


@st.composite
def windows(draw):
    """Three layers of windows: kernels, strides, dilations, pads, and what each is."""
    pads = st.sampled_from([0, 1, "SAME_UPPER", "SAME_LOWER", "VALID"])
    layer = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), pads, st.sampled_from(KINDS))
    return draw(st.lists(layer, min_size=1, max_size=3))


def chain(layers) -> bytes:
    nodes, weights, name = [], [], "x"
    for at, (kernel, stride, dilation, pad, kind) in enumerate(layers):
        weights.append(numpy_helper.from_array(np.ones((2, 2, kernel), np.float32), f"w{at}"))
        common = {"strides": [stride], "dilations": [dilation]}
        if isinstance(pad, str):
            common["strides"] = [min(stride, kernel)]  # else the runtime would pad by less than nothing
            common |= {"auto_pad": pad} | ({"dilations": [1]} if pad != "VALID" else {})
        else:  # windows of pools lie nowhere in the padding alone
            common["pads"] = [pad if kind == "Conv" or kernel > 1 else 0] * 2
        node = helper.make_node("Conv", [name, f"w{at}"], [f"v{at}"], **common)
        if kind != "Conv":
            rounds_up = {"ceil_mode": int(kind == "MaxPool, rounding up")}
            node = helper.make_node("MaxPool", [name], [f"v{at}"], kernel_shape=[kernel], **common, **rounds_up)
        nodes.append(node)
        name = f"v{at}"
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, "n"])]
    outs = [helper.make_tensor_value_info(f"v{at}", TensorProto.FLOAT, [1, 2, None]) for at in range(len(layers))]
    graph = helper.make_graph(nodes, "g", ports, outs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def seen_at(session: ort.InferenceSession, size: int) -> dict[str, tuple[int, ...]]:
    outputs = session.run(None, {"x": np.zeros((1, 2, size), np.float32)})
    names = [port.name for port in session.get_outputs()]
    return {"x": (1, 2, size), **{name: array.shape for name, array in zip(names, outputs, strict=True)}}


def graph_of(shapes: dict[str, tuple[int, ...]]) -> Graph:
    return Graph((), tuple(Tensor(name, "float", shape, 0) for name, shape in shapes.items()), ())


@settings(max_examples=40, deadline=None)
@given(windows())
def test_windows_are_exact_at_every_size(layers):
    model = chain(layers)
    session = ort.InferenceSession(model)
    low = LEAST
    seen = [({"n": size}, seen_at(session, size)) for size in (low + MOST, low + 6, low + 9)]
    dims = learn_dims(ir.from_proto(onnx.load_from_string(model)), graph_of(seen[0][1]), seen)
    for size in range(low, low + MOST):
        shapes = seen_at(session, size)
        assert {name: tuple(dim.at({"n": size}) for dim in dims[name]) for name in shapes} == shapes


def test_what_follows_no_rule_is_told():
    seen = [({"n": size}, {"x": (shape,)}) for size, shape in ((8, 3), (9, 7), (10, 1), (11, 9))]
    with pytest.raises(ModelError, match="tensor 'x' has no dimensions that follow from the sizes"):
        learn_dims(ir.from_proto(helper.make_model(helper.make_graph([], "g", [], []))), graph_of(seen[0][1]), seen)


@pytest.mark.parametrize(
    ("sizes", "divisor", "told"),
    [
        ((450, 451, 452, 459), 441, "such as --dim n=8..448:8, or compile for one size"),
        ((480, 160, 320, 400), 441, "such as --dim n=441..441:441, or compile for one size"),
        ((480, 160, 320, 400), 0, r"\): compile for one size"),
    ],
)
def test_steps_that_were_asked_for_in_vain_are_not_advised(sizes, divisor, told):
    """But those by which the model divides, as one does that changes how often a sound is sampled."""
    seen = [({"n": size}, {"x": (shape,)}) for size, shape in zip(sizes, (3, 7, 1, 9), strict=True)]
    numbers = [numpy_helper.from_array(np.array(divisor), "by")]
    ports = [helper.make_tensor_value_info(name, TensorProto.INT64, ()) for name in ("length", "frames")]
    nodes = [helper.make_node("Div", ["length", "by"], ["frames"])]
    model = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], numbers))
    with pytest.raises(ModelError, match=told):
        learn_dims(ir.from_proto(model), graph_of(seen[0][1]), seen)


@pytest.mark.parametrize("op_type", ["ConvInteger", "QLinearConv", "QLinearConv, channels last"])
def test_windows_of_quantised_convolutions_are_counted_by_their_attributes(op_type):
    """Two in turn that move 160 positions and 2: a few runs do not tell of divisions by so much."""
    is_last, name = op_type.endswith("last"), op_type.split(",")[0]
    one, nought = numpy_helper.from_array(np.float32(1), "one"), numpy_helper.from_array(np.uint8(0), "nought")
    before = ["one", "nought"] if name == "QLinearConv" else []
    nodes, weights, made = [], [one, nought], "x"
    for at, (kernel, stride) in enumerate(((400, 160), (3, 2))):
        weights.append(numpy_helper.from_array(np.ones((1, 1, kernel), np.uint8), f"w{at}"))
        how = {"strides": [stride], "pads": [kernel // 2] * 2}
        if is_last:
            how |= {"channels_last": 1, "domain": "com.microsoft"}
        after = [*before, "one", "nought"] if before else []
        reads = [made, *before, f"w{at}", *after]
        nodes.append(helper.make_node(name, reads, [f"v{at}"], f"conv{at}", **how))
        made = f"v{at}"
        if name == "ConvInteger":
            nodes.append(helper.make_node("Cast", [made], [f"c{at}"], f"cast{at}", to=TensorProto.UINT8))
            made = f"c{at}"
    shape = [1, "n", 1] if is_last else [1, 1, "n"]
    port = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [port("x", TensorProto.UINT8, shape)], [port(made, 2, None)], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))
    lengths = {size: (size // 160 + 1, size // 320 + 1) for size in (160_000, 8_960, 9_440, 9_760, 10_560)}

    def shaped(length: int) -> tuple[int, ...]:
        return (1, length, 1) if is_last else (1, 1, length)

    measured = [
        ({"n": size}, {"x": shaped(size), **{f"{kind}{at}": shaped(made[at]) for at in (0, 1) for kind in "vc"}})
        for size, made in lengths.items()
    ]
    tensors = tuple(Tensor(each, "uint8", measured[0][1][each], 1, None) for each in measured[0][1])
    dims = learn_dims(model, Graph((), tensors, ()), measured)
    axis = 1 if is_last else 2
    assert [dims["v1"][axis].at({"n": size}) for size in (8_000, 8_319, 8_320)] == [26, 26, 27]
