"""Which version of the runtime has what: ops, operator sets, file formats; on which files were tried, with which bits.

From the kernels that the CPU wheels of x86-64 list themselves, 1.16.3, 1.18.1, 1.20.1, 1.22.1, 1.24.4, 1.26.0, 1.28.0,
1.31.1 and 1.32.0, and from one-op models loaded there. A version stands for the first of these that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from remat_cli.core.values.runs_on import RuntimeRange

TRIED_UP_TO: Final = "1.32"
"""The newest runtime on which files of all kinds were run."""
MADE_FROM: Final = "1.31"
"""The oldest runtime on which files are made."""
SAME_BITS_FROM: Final = "1.26"
"""The oldest runtime on which every file tried had the bits of its original; older ones fuse some originals otherwise.

Measured on 1.16, 1.18, 1.20, 1.22, 1.23, 1.24, 1.26, 1.28, 1.30, 1.31 and 1.32: up to 1.24 a DenseNet differs by 3e-5,
up to 1.20 a transformer by 4e-7.
"""
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
COUNTERS_FROM: Final = "1.28"
"""The first whose profiles count memory; 1.26 does not, and 1.27 was not tried."""
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


def newest(versions: Iterable[str]) -> str:
    """The newest of some versions of the runtime, as MAJOR.MINOR."""
    return ".".join(map(str, max(numbers_of(version) for version in versions)))


def ends_of(asked: RuntimeRange | None) -> tuple[str, ...]:
    """The oldest and the newest of the versions that a file is asked for; none where none are named."""
    return () if asked is None else (asked.oldest, newest_of(asked))


def newest_of(asked: RuntimeRange | None) -> str:
    """The newest of the versions that a file is asked for; empty where none are named."""
    return "" if asked is None else asked.newest or TRIED_UP_TO


def numbers_of(version: str) -> tuple[int, int]:
    """Major and minor number of a version; what is behind them matters to nobody here."""
    major, minor, *_ = [*version.split("."), "0"]
    return int(major), int(minor) if minor.isdigit() else 0
