"""Makes models for measuring: one op alone, the whole model with more outputs, and the least op there is."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import helper

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph, TensorType
from remat_cli.onnx_io.read.default_order import wiring_of
from remat_cli.onnx_io.read.interface import DATA_TYPES, dims_of
from remat_cli.onnx_io.read.normalise import inputs_become_weights

ONNX_DOMAINS = ("", "ai.onnx")
OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
CALL_OPSET, CALL_IR_VERSION = 13, 8


def one_op_model(model: ir.Model, graph: Graph, op: int) -> ir.Model:
    """A model of one op of `graph`: its attributes, subgraphs and weights; what else it reads are inputs.

    Inputs and outputs have the names and the static types of the whole model. Optional outputs that nobody reads are
    left out. Weights are shared with `model`, not copied.

    Raises:
        ModelError: the model has no such op.
    """
    name = graph.ops[op].name
    node = next((node for node in model.graph if node.name == name), None)
    if node is None:
        raise ModelError(f"the model has no op '{name}'")
    types = {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors}
    reads, weights = wiring_of(node).reads, model.graph.initializers
    proto = ir.to_proto(node)
    # Blank the optional outputs that no op and no caller reads.
    if node.domain in ONNX_DOMAINS:
        version = node.version or model.opset_imports.get(node.domain, model.opset_imports.get("", 1))
        schema = onnx.defs.get_schema(node.op_type, version)
        for place, value in enumerate(node.outputs):
            is_read = bool(value.uses()) or value.is_graph_output()
            if not is_read and place < len(schema.outputs) and schema.outputs[place].option == OPTIONAL:
                proto.output[place] = ""
        while proto.output and not proto.output[-1]:
            proto.output.pop()
    inner = helper.make_graph(
        [proto],
        "one_op",
        [_port(read, types[read]) for read in reads if read in types],
        [_port(made, types[made]) for made in proto.output if made],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    functions = [ir.to_proto(function) for function in model.functions.values()]
    made = helper.make_model(inner, opset_imports=imports, ir_version=model.ir_version, functions=functions)
    return _with_weights(made, {read: weights[read] for read in reads if read in weights and read not in types})


def model_with_outputs(model: ir.Model, graph: Graph, names: Iterable[str]) -> ir.Model:
    """The model with these tensors as outputs too, so that one run shows their values."""
    types = {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors}
    copy = model.clone()
    there = {value.name for value in copy.graph.outputs}
    values = {value.name: value for node in copy.graph for value in node.outputs}
    for name in names:
        if name in there:
            continue
        value, kind = values[name], types[name]
        value.type, value.shape = ir.TensorType(DATA_TYPES[kind.dtype]), ir.Shape(kind.shape)
        copy.graph.outputs.append(value)
    return copy


def call_model(ops: int = 1, elements: int = 1) -> ir.Model:
    """The least there is to run: the negative of one number. What a run of it takes is the call of a session.

    With more `ops` in a row, on more numbers, it shows what several sessions take beyond one.
    """
    kind = TensorType("float", (elements,))
    names = ["x", *(f"y_{number}" for number in range(1, ops)), "y"]
    nodes = [helper.make_node("Neg", [names[n]], [names[n + 1]], f"call_{n}") for n in range(ops)]
    graph = helper.make_graph(nodes, "call", [_port("x", kind)], [_port("y", kind)])
    imports = [helper.make_opsetid("", CALL_OPSET)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=CALL_IR_VERSION))


def write_product(path: Path, rows: int, columns: int, weight: str) -> None:
    """A file with a product whose weight lies in another one, for sessions that are given it when they are opened.

    The runtime looks whether that other file is there, but not into it: it is empty.
    """
    file = path.with_suffix(".data")
    file.touch()
    tensor = onnx.TensorProto(name=weight, data_type=onnx.TensorProto.FLOAT, dims=[rows, columns])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=file.name)
    node = helper.make_node("MatMul", ["x", weight], ["y"], "product")
    ports = [_port("x", TensorType("float", (1, rows)))], [_port("y", TensorType("float", (1, columns)))]
    graph = helper.make_graph([node], "product", *ports, [tensor])
    imports = [helper.make_opsetid("", CALL_OPSET)]
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=CALL_IR_VERSION).SerializeToString())


def _port(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, int(DATA_TYPES[kind.dtype]), kind.shape)


def _with_weights(proto: onnx.ModelProto, weights: Mapping[str, ir.Value]) -> ir.Model:
    """The model with weights, which are inputs until then, because only a graph gives its values names."""
    tensors: dict[str, ir.TensorProtocol] = {}
    for name, weight in weights.items():
        if weight.const_value is None:
            raise ModelError(f"weight '{name}' has no value")
        tensors[name] = weight.const_value
        kind = helper.make_tensor_value_info(name, int(tensors[name].dtype), dims_of(tensors[name]))
        proto.graph.input.append(kind)
    model = ir.from_proto(proto)
    inputs_become_weights(model.graph, tensors)
    return model
