"""Which weights of a model kernels pack in the session's arena: by what a file says of quantised convolutions."""

from collections.abc import Iterator

import onnx_ir as ir

from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.onnx_io.write.op_versions import all_nodes
from remat_cli.ort_rules.arena_copies import ArenaCopy, ArenaCopyRules, arena_copy_bytes

ZERO_POINT, WEIGHT, WEIGHT_ZERO_POINT = 2, 3, 5  # inputs of QLinearConv


def arena_copies(model: ir.Model, rules: ArenaCopyRules) -> tuple[ArenaCopy, ...]:
    """Every copy of a weight that an op makes in the arena, in the order of ops."""
    nodes = (node for node in all_nodes(model) if node.op_type == "QLinearConv")
    return tuple(copy for node in nodes for copy in _copy(node, rules) if copy.bytes)


def _copy(node: ir.Node, rules: ArenaCopyRules) -> Iterator[ArenaCopy]:
    weight, zero_point, weight_zero_point = map(node.inputs.__getitem__, (WEIGHT, ZERO_POINT, WEIGHT_ZERO_POINT))
    tensors = [None if value is None else value.const_value for value in (weight, zero_point, weight_zero_point)]
    filters, zero, own_zero = tensors
    if weight is None or filters is None or zero is None or own_zero is None:
        return
    is_unsigned, is_signed = zero.dtype == ir.DataType.UINT8, filters.dtype == ir.DataType.INT8
    if is_unsigned and is_signed and not own_zero.numpy().any():
        group = node.attributes.get("group")
        groups = 1 if group is None else group.as_int()
        yield ArenaCopy(weight.name or "", arena_copy_bytes(groups, dims_of(filters), rules))
