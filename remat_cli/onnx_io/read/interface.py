"""Describes what a session takes and gives, by the runtime's names of types, who reads a weight, of how few bits."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.schedule.program import InputSpec, Reader, WeightUse
from remat_cli.core.values.few_bits import FewBitKind
from remat_cli.onnx_io.read.default_order import captured_values, subgraphs
from remat_cli.onnx_io.read.op_facts import CONTRIB
from remat_cli.ort_rules.packing import beside_blocks_bytes

HIDDEN = "remat/length/"
"""Begins names of inputs that nobody gives."""
IN_BLOCKS, HALF_BYTE, BYTES_LEVEL = "MatMulNBits", 4, 4  # its bits and accuracy level
RUNTIME_NAMES: Mapping[ir.DataType, str] = {
    ir.DataType.FLOAT: "float",
    ir.DataType.DOUBLE: "double",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.INT8: "int8",
    ir.DataType.INT16: "int16",
    ir.DataType.INT32: "int32",
    ir.DataType.INT64: "int64",
    ir.DataType.UINT8: "uint8",
    ir.DataType.UINT16: "uint16",
    ir.DataType.UINT32: "uint32",
    ir.DataType.UINT64: "uint64",
    ir.DataType.BOOL: "bool",
    ir.DataType.STRING: "string",
    ir.DataType.COMPLEX64: "complex64",
    ir.DataType.COMPLEX128: "complex128",
    ir.DataType.FLOAT8E4M3FN: "float8e4m3fn",
    ir.DataType.FLOAT8E4M3FNUZ: "float8e4m3fnuz",
    ir.DataType.FLOAT8E5M2: "float8e5m2",
    ir.DataType.FLOAT8E5M2FNUZ: "float8e5m2fnuz",
    ir.DataType.INT4: "int4",
    ir.DataType.UINT4: "uint4",
    ir.DataType.INT2: "int2",
    ir.DataType.UINT2: "uint2",
    ir.DataType.FLOAT4E2M1: "float4e2m1",
}
DATA_TYPES: Mapping[str, ir.DataType] = {name: data_type for data_type, name in RUNTIME_NAMES.items()}


def runtime_name(data_type: ir.DataType | None) -> str:
    """ONNX Runtime's name of an element type.

    Raises:
        ModelError: the type is missing or unknown.
    """
    if data_type is None or data_type not in RUNTIME_NAMES:
        raise ModelError(f"element type {data_type} is not supported")
    return RUNTIME_NAMES[data_type]


def type_of(tensor: ir.TensorProtocol) -> TensorType:
    """Type and shape of a constant.

    Raises:
        ModelError: its element type is unknown.
    """
    return TensorType(runtime_name(tensor.dtype), dims_of(tensor))


def dims_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Shape of a constant."""
    return tuple(int(dim) for dim in tensor.shape.numpy())


IN_BLOCKS_OF_BITS = frozenset({"MatMulNBits", "GatherBlockQuantized", "MatMulBnb4"})
ON_BYTES = (
    *("DynamicQuantize", "QLinear", "QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger"),
    *("QGemm", "QAttention", "QEmbed"),
)  # beginnings of names
FEW_BITS_SHARE = 0.5  # of the bytes of weights, for a model to be called after their type


@dataclass(frozen=True)
class Port:
    """One input or output as the model declares it."""

    name: str
    type: ir.TypeProtocol | None
    shape: ir.Shape | None


@dataclass(frozen=True)
class Interface:
    """Inputs that the caller must feed, and outputs, in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def interface_of(model: ir.Model) -> Interface:
    """The declared interface; inputs that have an initialiser are left out."""
    return Interface(
        tuple(port_of(value) for value in fed_inputs(model.graph)),
        tuple(port_of(value) for value in model.graph.outputs),
    )


def fed_inputs(graph: ir.Graph) -> list[ir.Value]:
    """Inputs without an initialiser, which the caller must feed."""
    return [value for value in graph.inputs if value.name not in graph.initializers]


def inputs_of(model: ir.Model) -> tuple[InputSpec, ...]:
    """What to feed to a model whose dimensions are bound.

    Raises:
        ModelError: an input is not a tensor, or a dimension is not bound.
    """
    return tuple(input_spec(value) for value in fed_inputs(model.graph))


def outputs_of(model: ir.Model) -> tuple[str, ...]:
    """Names of the outputs, in order."""
    return tuple(value.name or "" for value in model.graph.outputs)


def fixed_value(value: ir.Value | None) -> ir.TensorProtocol | None:
    """What a value always is: a constant, but none that is an input too, for which a caller may give another.

    No caller gives one by a name of ours.
    """
    if value is None or (value.is_graph_input() and not (value.name or "").startswith(HIDDEN)):
        return None
    return value.const_value


def is_bound(value: ir.Value) -> bool:
    """Whether the shape of a value is made of numbers only."""
    return value.shape is not None and all(isinstance(dim, int) for dim in value.shape)


def input_spec(value: ir.Value) -> InputSpec:
    """What to feed to one input.

    Raises:
        ModelError: it is not a tensor, or a dimension is not bound.
    """
    if not isinstance(value.type, ir.TensorType):
        raise ModelError(f"input '{value.name}' is not a tensor: only tensors can be fed")
    if value.shape is None or not is_bound(value):
        raise ModelError(f"input '{value.name}' has unbound dimensions: bind them with --dim or --input-shape")
    return InputSpec(value.name or "", runtime_name(value.dtype), value.shape.numpy())


def port_of(value: ir.Value) -> Port:
    """How a value is declared; its shape is a copy."""
    shape = None if value.shape is None else value.shape.copy()
    return Port(value.name or "", value.type, shape)


CAPTURED = -1  # input number of a weight that a subgraph reads


def weight_uses(model: ir.Model, left_out: Collection[str] = ()) -> tuple[WeightUse, ...]:
    """Every initialiser of the main graph with the ops that read it; model outputs count as readers that pack nothing.

    Ops of a subgraph count as those around it do: the runtime packs weights for them too. It does not for ops of a
    subgraph in a subgraph. Ops that are `left_out`, by name, count as no readers. Sizes are in bytes, as in the file.
    """
    readers: dict[str, list[Reader]] = {name: [] for name in model.graph.initializers}
    for node in (node for node in model.graph if node.name not in left_out):
        for index, value in enumerate(node.inputs):
            if value is not None and value.name in readers:
                readers[value.name].append(_reader(node, index))
        for value in captured_values(node):
            if value.name in readers:
                readers[value.name] += _inner_readers(node, value)
    for value in model.graph.outputs:
        if value.name in readers:
            readers[value.name].append(Reader("", "", CAPTURED))
    uses: list[WeightUse] = []
    for name, value in model.graph.initializers.items():
        tensor, read_by = value.const_value, tuple(readers[name])
        if tensor is None:
            uses.append(WeightUse("", (), 0, read_by))
        else:
            uses.append(WeightUse(runtime_name(tensor.dtype), dims_of(tensor), tensor.nbytes, read_by))
    return tuple(uses)


def inner_uses(model: ir.Model) -> dict[str, tuple[Reader, ...]]:
    """By initialiser of the main graph the ops that read it right inside bodies of the graph's ops."""
    readers: dict[str, list[Reader]] = {}
    for node in model.graph:
        for value in captured_values(node):
            name = value.name or ""
            if name in model.graph.initializers:
                readers.setdefault(name, []).extend(_inner_readers(node, value))
    return {name: tuple(found) for name, found in readers.items()}


def _inner_readers(node: ir.Node, value: ir.Value) -> list[Reader]:
    """The ops of a node's subgraphs that read a value from outside, as `weight_uses` counts them."""
    found: list[Reader] = []
    for body in subgraphs(node):
        for inner in body:
            found += [_reader(inner, at) for at, read in enumerate(inner.inputs) if read is value]
            found += [Reader(inner.domain, inner.op_type, CAPTURED)] if value in captured_values(inner) else []
        found += [Reader(node.domain, node.op_type, CAPTURED)] if value in body.outputs else []
    return found


def _reader(node: ir.Node, place: int) -> Reader:
    """An op as the reader of a weight; what a product with weights in blocks packs hangs on its attributes."""
    if (node.domain, node.op_type) != (CONTRIB, IN_BLOCKS):
        return Reader(node.domain, node.op_type, place)
    numbers = {name: each.as_int() for name, each in node.attributes.items() if each.type is ir.AttributeType.INT}
    is_of_bytes = numbers.get("accuracy_level", 0) == BYTES_LEVEL
    blocks = -(-numbers["K"] // numbers["block_size"])
    is_matrix = place == 1
    return Reader(
        node.domain,
        node.op_type,
        place,
        packs=is_of_bytes or numbers.get("bits", HALF_BYTE) == HALF_BYTE,
        beside_bytes=beside_blocks_bytes(numbers["N"], blocks) if is_of_bytes and is_matrix else 0,
        is_copied=is_of_bytes and not is_matrix,
    )


def has_op(model: ir.Model, node: ir.Node) -> bool:
    """Whether a model has such an op, which makes the same tensors; not where the runtime made it of others."""
    made = [value.name for value in node.outputs]
    kind = (_domain(node), node.op_type)
    return any([v.name for v in each.outputs] == made and (_domain(each), each.op_type) == kind for each in model.graph)


def _domain(node: ir.Node) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def few_bit_kind(model: ir.Model) -> FewBitKind | None:
    """How few bits a model is made of; None where it is as most are."""
    ops = {node.op_type for node in model.graph.all_nodes()}
    if ops & IN_BLOCKS_OF_BITS:
        return "int4"
    if any(op.startswith(ON_BYTES) for op in ops):
        return "int8"
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    halves = sum(weight.nbytes for weight in weights if weight.dtype == ir.DataType.FLOAT16)
    return "float16" if halves and halves >= FEW_BITS_SHARE * sum(weight.nbytes for weight in weights) else None
