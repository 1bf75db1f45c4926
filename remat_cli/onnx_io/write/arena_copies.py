"""Finds the weights that kernels copy into the session's arena: those of quantised convolutions of some kinds."""

import onnx_ir as ir

from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.onnx_io.write.op_versions import all_nodes
from remat_cli.ort_rules.arena_copies import ArenaCopy, ArenaCopyRules, arena_copy_bytes

ZERO_POINT, WEIGHT, WEIGHT_ZERO_POINT = 2, 3, 5  # inputs of QLinearConv


def arena_copies(model: ir.Model, rules: ArenaCopyRules) -> tuple[ArenaCopy, ...]:
    """Every copy of a weight that an op makes in the arena, in the order of ops."""
    copies: list[ArenaCopy] = []
    for node in (node for node in all_nodes(model) if node.op_type == "QLinearConv"):
        weight, values = node.inputs[WEIGHT], [node.inputs[at] for at in (WEIGHT, ZERO_POINT, WEIGHT_ZERO_POINT)]
        filters, zero, own_zero = (None if value is None else value.const_value for value in values)
        if weight is None or filters is None or zero is None or own_zero is None:
            continue
        is_unsigned, is_signed = zero.dtype == ir.DataType.UINT8, filters.dtype == ir.DataType.INT8
        if is_unsigned and is_signed and not own_zero.numpy().any():
            group = node.attributes.get("group")
            copy_bytes = arena_copy_bytes(1 if group is None else group.as_int(), dims_of(filters), rules)
            copies += [ArenaCopy(weight.name or "", copy_bytes)] if copy_bytes else []
    return tuple(copies)
