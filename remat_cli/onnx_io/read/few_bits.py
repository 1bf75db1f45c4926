"""What kind of few-bit model a file is, by its ops and weights."""

import onnx_ir as ir

from remat_cli.core.values.few_bits import FewBitKind

BLOCKS = frozenset({"MatMulNBits", "GatherBlockQuantized", "MatMulBnb4"})
BYTES = (
    *("DynamicQuantize", "QLinear", "QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger"),
    *("QGemm", "QAttention", "QEmbed"),
)  # beginnings of names
MOST_SHARE = 0.5  # of the bytes of weights, for a model to be called after their type


def few_bit_kind(model: ir.Model) -> FewBitKind | None:
    """How few bits a model is made of; None where it is as most are."""
    ops = {node.op_type for node in model.graph.all_nodes()}
    if ops & BLOCKS:
        return "int4"
    if any(op.startswith(BYTES) for op in ops):
        return "int8"
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    halves = sum(weight.nbytes for weight in weights if weight.dtype == ir.DataType.FLOAT16)
    return "float16" if halves and halves >= MOST_SHARE * sum(weight.nbytes for weight in weights) else None
