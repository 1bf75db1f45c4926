"""Model files as people have them: what ONNX's checker refuses or warns of, and the runtime loads and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 8, 16, 16)
RNG = np.random.default_rng(0)
FIRST = (RNG.standard_normal((16, 8, 3, 3)) / 10).astype(np.float32)
SECOND = (RNG.standard_normal((8, 16, 3, 3)) / 10).astype(np.float32)
DRAWN = {"x": np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32), "cond": np.array(True)}
node, opset = helper.make_node, helper.make_opsetid


def port(name: str, shape: Sequence[int | str | None] | None = SHAPE, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def net(reads: str = "x", prefix: str = "") -> list[onnx.NodeProto]:
    """Two convolutions with a Relu between them."""
    p = prefix
    return [
        node("Conv", [reads, "w1"], [f"{p}c1"], f"{p}first", pads=[1] * 4),
        node("Relu", [f"{p}c1"], [f"{p}r1"], f"{p}relu"),
        node("Conv", [f"{p}r1", "w2"], [f"{p}c2"], f"{p}second", pads=[1] * 4),
    ]


def residual(middle: onnx.NodeProto | None = None) -> list[onnx.NodeProto]:
    first, relu, second = net()
    return [first, middle or relu, second, node("Add", ["c2", "x"], ["y"], "last")]


def model(nodes: list[onnx.NodeProto] | None = None, **how: Any) -> onnx.ModelProto:
    """A model of such nodes; by keyword: inputs, outputs, weights, imports, opset, version, value_info, functions."""
    graph = helper.make_graph(
        residual() if nodes is None else nodes,
        "graph",
        how.get("inputs", [port("x")]),
        how.get("outputs", [port("y")]),
        how.get("weights", [weight("w1", FIRST), weight("w2", SECOND)]),
        value_info=how.get("value_info", []),
    )
    imports = how.get("imports", [opset("", how.get("opset", 17))])
    return helper.make_model(
        graph, opset_imports=imports, ir_version=how.get("version", 8), functions=how.get("functions", [])
    )


def body(nodes: list[onnx.NodeProto], made: str, weights: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", [], [port(made, None)], list(weights))


def branches(taken: onnx.GraphProto, before: onnx.NodeProto | None = None, **how: Any) -> onnx.ModelProto:
    other = body(net(prefix="e"), "ec2")
    choice = node("If", ["cond"], ["i"], "if", then_branch=taken, else_branch=other)
    inputs = [port("x"), port("cond", (), TensorProto.BOOL)]
    last = node("Add", ["i", "x" if before is None else before.output[0]], ["y"], "last")
    return model([each for each in (before, choice, last) if each is not None], inputs=inputs, **how)


def changed(change: Callable[[onnx.ModelProto], object], made: onnx.ModelProto | None = None) -> onnx.ModelProto:
    made = model() if made is None else made
    change(made)
    return made


def constant(**value: Any) -> onnx.ModelProto:
    """A `Constant` that is multiplied with a tensor; of text and of whole numbers by way of another op."""
    (name,) = value
    if "string" in name:
        of_text = {"keys_strings": ["a", "b"], "values_floats": [0.5, 2.0]}
        nodes = [node("LabelEncoder", ["k"], ["l"], "label", domain="ai.onnx.ml", **of_text)]
    else:
        nodes = [node("Cast", ["k"], ["l"], "cast", to=TensorProto.FLOAT)]
    nodes.append(node("ReduceMean", ["l"], ["m"], "mean", keepdims=0))
    made = [
        node("Constant", [], ["k"], "constant", **value),
        *nodes,
        *residual(node("Mul", ["c1", "m"], ["r1"], "mul")),
    ]
    return model(made, imports=[opset("", 17), opset("ai.onnx.ml", 2)])


def sparse(indices: Any, values: Sequence[float] = (0.5, 2.0, 1.5), shape: tuple[int, ...] = (16,)) -> Any:
    return helper.make_sparse_tensor(weight("s", np.array(values, np.float32)), weight("i", indices), shape)


def sparse_weight(indices: Any, shape: tuple[int, ...] = (16,), name: str = "s") -> onnx.ModelProto:
    nodes = residual()
    nodes[3] = node("Mul", ["c2", name], ["y"], "last")
    made = model(nodes)
    made.graph.sparse_initializer.append(sparse(indices, shape=shape))
    return made


OWN = [opset("", 17), opset("own", 1)]


def function(nodes: list[onnx.NodeProto] | None = None, version: int = 17, **how: Any) -> onnx.FunctionProto:
    nodes = nodes or [node("Relu", ["a"], ["b"], "relu"), node("Tanh", ["b"], ["o"], "tanh")]
    imports = [opset("", version), opset("own", 1)]
    return helper.make_function("own", how.pop("name", "Block"), how.pop("reads", ["a"]), ["o"], nodes, imports, **how)


def calling(*functions: onnx.FunctionProto, imports: Sequence[Any] = OWN, **attributes: Any) -> onnx.ModelProto:
    call = node(functions[-1].name, ["c1"], ["r1"], "call", domain="own", **attributes)
    return model(residual(call), imports=list(imports), functions=list(functions))


def with_attribute() -> onnx.ModelProto:
    leaky = node("LeakyRelu", ["a"], ["o"], "leaky")
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    return calling(function([leaky], attributes=["slope"]), slope=0.2)


def with_branch() -> onnx.ModelProto:
    taken, other = (body([node(kind, ["a"], [kind], kind)], kind) for kind in ("Relu", "Tanh"))
    nodes = [
        node("ReduceMax", ["a"], ["most"], "most", keepdims=0),
        node("Cast", ["most"], ["is_any"], "cast", to=TensorProto.BOOL),
        node("If", ["is_any"], ["o"], "if", then_branch=taken, else_branch=other),
    ]
    return calling(function(nodes))


def of_domain(name: str, *imports: Any, every: int = 1) -> onnx.ModelProto:
    made = model(imports=list(imports))
    for each in list(made.graph.node)[::every]:
        each.domain = name
    return made


def nested() -> onnx.ModelProto:
    inner = [body([node(kind, ["r1", "x"][:1], [kind], kind)], kind) for kind in ("Tanh", "Neg")]
    inner_if = node("If", ["cond"], ["z"], "inner", then_branch=inner[0], else_branch=inner[1])
    taken = body([inner_if, node("Conv", ["z", "w2"], ["t"], "conv", pads=[1] * 4)], "t")
    made = branches(taken)
    made.graph.node.extend(net()[:2])
    return made  # the ops that the bodies read from stand behind the If


def resized(*texts: str | int | None) -> onnx.ModelProto:
    return model(inputs=[port("x", texts)], outputs=[port("y", texts)])


def negative() -> onnx.ModelProto:
    made = model()
    for each in (made.graph.input[0], made.graph.output[0]):
        for axis in (0, 2, 3):
            each.type.tensor_type.shape.dim[axis].dim_value = -1
    return made


def listed(made: onnx.ModelProto) -> onnx.ModelProto:
    made.graph.input.extend([port("w1", FIRST.shape), port("w2", SECOND.shape)])
    return made


def unread(made: onnx.ModelProto) -> onnx.ModelProto:
    """As torch's old exporter writes the counts of batch norms."""
    made.graph.input.append(port("batches_tracked", (), TensorProto.INT64))
    made.graph.initializer.append(weight("batches_tracked", np.int64(7)))
    return made


def untyped(made: onnx.ModelProto) -> None:
    made.graph.output[0].ClearField("type")


def cast_last() -> onnx.ModelProto:
    nodes = [*residual(), node("Cast", ["half"], ["w1"], "cast", to=TensorProto.FLOAT)]
    return model(nodes, weights=[weight("half", FIRST.astype(np.float16)), weight("w2", SECOND)])


def external(folder: Path, *, says_length: bool) -> onnx.ModelProto:
    """Both weights in one file, at offsets, with bytes between and behind them."""
    made, data = model(), b""
    for tensor in made.graph.initializer:
        data += bytes(64)
        entries = {"location": "weights.bin", "offset": str(len(data))}
        entries |= {"length": str(len(tensor.raw_data))} if says_length else {}
        data += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    (folder / "weights.bin").write_bytes(data + b"more")
    return made


ML = opset("ai.onnx.ml", 2)
FORMS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "a cast of weights at the end": cast_last,
    "nodes in reverse": lambda: model(residual()[::-1]),
    "what bodies read stands behind them": nested,
    "nodes without names": lambda: changed(lambda m: [each.ClearField("name") for each in m.graph.node]),
    "names of a branch in the other one": lambda: branches(body(net(prefix="e"), "ec2")),
    "dimensions ?": lambda: resized("batch", 8, "?", "?"),
    "all dimensions ?": lambda: resized("?", 8, "?", "?"),
    "dimensions None": lambda: resized("None", 8, "None", "None"),
    "dimensions '-1'": lambda: resized("-1", 8, "-1", "-1"),
    "dimensions without a name": lambda: resized(None, 8, None, None),
    "negative dimensions": negative,
    "one name for two sizes": lambda: resized("batch", 8, "size", "size"),
    "weights that are inputs": lambda: listed(model()),
    "weights that are inputs, one unread": lambda: unread(listed(model())),
    "weights that are inputs, version 3": lambda: listed(model(version=3, opset=8)),
    "weights that are no inputs, version 3": lambda: model(version=3, opset=8),
    "version 1": lambda: listed(model(version=1, opset=7)),
    "wrong shapes inside": lambda: model(value_info=[port("c1", (1, 16, 7, 7)), port("c2", (3,))]),
    "wrong shape of an output": lambda: model(outputs=[port("y", (1, 8, 5, 5))]),
    "wrong rank of an output": lambda: model(outputs=[port("y", (3,))]),
    "shapes of nothing": lambda: model(value_info=[port("nobody", (1,))]),
    "an output without a type": lambda: changed(untyped),
    "an output without a shape": lambda: model(outputs=[port("y", None)]),
    "domains without ops": lambda: model(imports=[opset("", 17), opset("com.acme", 3), opset("pkg.torch", 1)]),
    "ops of the runtime's domain, not imported": lambda: model(
        residual(node("Gelu", ["c1"], ["r1"], "gelu", domain="com.microsoft"))
    ),
    "ai.onnx beside it": lambda: of_domain("ai.onnx", opset("", 17), opset("ai.onnx", 17), every=2),
    "ai.onnx of another version": lambda: of_domain("ai.onnx", opset("", 17), opset("ai.onnx", 13), every=2),
    "ai.onnx alone": lambda: of_domain("ai.onnx", opset("ai.onnx", 17)),
    "ai.onnx in ops only": lambda: of_domain("ai.onnx", opset("", 17)),
    "one domain twice": lambda: model(imports=[opset("", 11), opset("", 17)]),
    "value": lambda: constant(value=weight("", np.array([0.5, 2], np.float32))),
    "value_float": lambda: constant(value_float=0.5),
    "value_floats": lambda: constant(value_floats=[0.5, 2.0]),
    "value_int": lambda: constant(value_int=3),
    "value_ints": lambda: constant(value_ints=[3, 4]),
    "value_string": lambda: constant(value_string="a"),
    "value_strings": lambda: constant(value_strings=["a", "b", "a"]),
    "sparse_value": lambda: constant(sparse_value=sparse([0, 3, 9])),
    "sparse weight": lambda: sparse_weight([0, 3, 9]),
    "sparse weight, places by axis": lambda: sparse_weight([[0, 1], [2, 2], [15, 3]], (16, 16)),
    "sparse weight out of order": lambda: sparse_weight([9, 3, 0]),
    "a weight twice": lambda: model(weights=[weight("w1", FIRST), weight("w1", 3 * FIRST), weight("w2", SECOND)]),
    "a weight and a Constant": lambda: model(
        [node("Constant", [], ["w1"], "constant", value=weight("", 3 * FIRST)), *residual()]
    ),
    "a weight, dense and sparse": lambda: changed(
        lambda m: m.graph.initializer.append(weight("s", np.ones(16, np.float32))), sparse_weight([0, 3, 9])
    ),
    "a small weight twice": lambda: changed(
        lambda m: m.graph.initializer.extend(
            [weight("s", np.ones(16, np.float32)), weight("s", np.zeros(16, np.float32))]
        ),
        model([*residual()[:3], node("Mul", ["c2", "s"], ["y"], "last")]),
    ),
    "a small weight and a Constant": lambda: changed(
        lambda m: m.graph.initializer.append(weight("k", np.float32(2))), constant(value_float=0.5)
    ),
    "a weight without a name": lambda: changed(lambda m: m.graph.initializer.append(weight("", SECOND))),
    "a graph without a name": lambda: changed(lambda m: m.graph.ClearField("name")),
    "metadata twice": lambda: changed(
        lambda m: [m.metadata_props.add(key="key", value=value) for value in ("one", "other")]
    ),
    "an op that is older than its operator set says": lambda: model(
        residual(node("ThresholdedRelu", ["c1"], ["r1"], "relu", alpha=0.1)), opset=8
    ),
    "an op that ONNX gave up": lambda: model(
        residual(node("GroupNormalization", ["c1", "gain", "gain"], ["r1"], "norm", num_groups=2)),
        opset=18,
        weights=[weight("w1", FIRST), weight("w2", SECOND), weight("gain", np.array([0.5, 2], np.float32))],
    ),
    "an op that only the runtime has so early": lambda: model(
        residual(node("LayerNormalization", ["c1", "ones"], ["r1"], "norm", axis=-1)),
        opset=11,
        weights=[weight("w1", FIRST), weight("w2", SECOND), weight("ones", np.ones(16, np.float32))],
    ),
    "a function": lambda: calling(function()),
    "a function in a function": lambda: calling(
        function(name="Inner"), function([node("Inner", ["a"], ["o"], "inner", domain="own")])
    ),
    "a function with an attribute": with_attribute,
    "a function with a branch": with_branch,
    "a function of another operator set": lambda: calling(function(version=13)),
    "a function with a Constant": lambda: calling(
        function([node("Constant", [], ["k"], "k", value_float=0.5), node("Mul", ["a", "k"], ["o"], "mul")])
    ),
    "a function in a branch": lambda: branches(
        body([node("Block", ["x"], ["t"], "call", domain="own")], "t"), imports=OWN, functions=[function()]
    ),
    "a function in a branch and around it": lambda: branches(
        body([node("Block", ["x"], ["t"], "", domain="own")], "t"),
        imports=OWN,
        functions=[function()],
        before=node("Block", ["x"], ["j"], "", domain="own"),
    ),
    "a wrong function that nobody calls": lambda: model(
        imports=OWN, functions=[function([node("NoSuchOp", ["a"], ["o"], "wrong")])]
    ),
    "each Constant in a branch": lambda: branches(
        body(
            [
                node("Constant", [], ["k0"], "k0", value_float=0.4),
                node("Constant", [], ["k1"], "k1", value_ints=list(SHAPE)),
                node("Constant", [], ["k2"], "k2", sparse_value=sparse([0, 3, 9])),
                node("Mul", ["x", "k0"], ["p"]),
                node("Reshape", ["p", "k1"], ["q"]),
                node("Add", ["q", "k2"], ["t"]),
            ],
            "t",
        )
    ),
}
"""What a file contains -> such a file."""
