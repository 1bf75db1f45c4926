"""Which version of the runtime a file needs, read from its ops, its opset and its form: one table, measured.

From the kernels that the CPU wheels of x86-64 list themselves, 1.16.3, 1.18.1, 1.20.1, 1.22.1, 1.24.4, 1.26.0, 1.28.0,
1.31.1 and 1.32.0, and from one-op models loaded there. A version stands for the first of these that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import onnx_ir as ir

from remat_cli.core.values.runs_on import newest
from remat_cli.onnx_io.read.default_order import subgraphs

OLDEST = "1.16"
"""The oldest version tried: what it has may be older."""
OPSETS: Mapping[str, int] = MappingProxyType({"1.16": 19, "1.18": 21, "1.22": 22, "1.24": 25, "1.26": 26, "1.32": 28})
"""The newest opset that a version loads."""
FORMATS: Mapping[str, int] = MappingProxyType({"1.16": 9, "1.18": 10, "1.24": 13, "1.32": 14})
"""The newest version of the file format that a version loads."""
ML_OPSETS: Mapping[str, int] = MappingProxyType({"1.16": 3, "1.18": 5})
"""The newest opset of the domain `ai.onnx.ml` that a version loads."""
LATE_KERNELS: Mapping[tuple[str, int], str] = MappingProxyType(
    {
        ("DeformConv", 19): "1.26",
        ("LpNormalization", 22): "1.26",
        ("QLinearMatMul", 21): "1.20",
        ("TensorScatter", 24): "1.26",
    }
)
"""Standard ops whose kernel, from an opset on, came later than that opset."""
PACKED_FROM = "1.21"
"""The first that reads weights as kernels pack them; 1.20.1 refuses the file."""
CONTRIB = "com.microsoft"
KERNELS: Mapping[str, str] = MappingProxyType(
    {
        "1.16": (
            "Attention AttnLSTM BeamSearch BiasGelu BifurcationDetector CDist ConvTransposeWithDynamicPads "
            "CropAndResize DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul EmbedLayerNormalization "
            "ExpandDims FastGelu FusedConv FusedGemm FusedMatMul GatherND Gelu GreedySearch GridSample Inverse "
            "MatMulBnb4 MatMulFpQ4 MatMulInteger16 MatMulIntegerToFloat MatMulNBits MaxpoolWithMask "
            "MultiHeadAttention MurmurHash3 NGramRepeatBlock NhwcMaxPool Pad QAttention QEmbedLayerNormalization "
            "QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool "
            "QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere QuantizeLinear QuickGelu "
            "Range RotaryEmbedding SampleOp Sampling SkipLayerNormalization SkipSimplifiedLayerNormalization "
            "SparseToDenseMatMul Tokenizer TransposeMatMul Trilu Unique WordConvEmbedding"
        ),
        "1.18": ("GroupQueryAttention WhisperBeamSearch"),
        "1.20": (
            "DecoderMaskedMultiHeadAttention DynamicTimeWarping GatherBlockQuantized SparseAttention UnfoldTensor"
        ),
        "1.24": ("MoE QMoE"),
        "1.26": ("CausalConvWithState LinearAttention"),
        "1.31": (
            "BranchwiseRMSNorm EngramGate GatedAdd GatedRMSNorm HyperConnectionPostMix HyperConnectionPreMix "
            "LinearAttentionGate MRotaryEmbedding NGramHashMapping ScaledSiLU VarlenNGramHashMapping"
        ),
        "1.32": ("GatedDeltaNet GatherPacked MoEGroupRouter VarlenCausalConvWithState"),
    }
)
"""The runtime's own ops (domain `com.microsoft`) by the first version that has them."""
SINCE: Mapping[str, str] = MappingProxyType({op: version for version, ops in KERNELS.items() for op in ops.split()})


def loads_from(model: ir.Model, made_with: str, *, is_packed: bool = False) -> str:
    """The oldest runtime that has all that a file contains; of ops in no table, the one that it was `made_with`."""
    imports = model.graph.opset_imports
    opset = imports.get("", imports.get("ai.onnx", 0))
    needs = {OLDEST, _first_with(OPSETS, opset, made_with), _first_with(FORMATS, model.ir_version, made_with)}
    needs.add(_first_with(ML_OPSETS, imports.get("ai.onnx.ml", 0), made_with))
    needs.update(_kernel_from(node, opset, made_with) for node in all_nodes(model))
    if is_packed:
        needs.add(PACKED_FROM)
    return newest(needs)


def _first_with(table: Mapping[str, int], number: int, made_with: str) -> str:
    return next((version for version, most in table.items() if number <= most), made_with)


def _kernel_from(node: ir.Node, opset: int, made_with: str) -> str:
    """The first version that has a node's kernel; ops of the user's own come with their library."""
    if node.domain == CONTRIB:
        return SINCE.get(node.op_type, made_with)
    if node.domain in ("", "ai.onnx"):
        late = (version for (op, since), version in LATE_KERNELS.items() if op == node.op_type and opset >= since)
        return next(late, OLDEST)
    return OLDEST


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Nodes of a model, of its functions, and of all graphs inside them."""
    for owner in (model.graph, *model.functions.values()):
        for node in owner:
            yield from _with_inner(node)


def _with_inner(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for body in subgraphs(node):
        for inner in body:
            yield from _with_inner(inner)
