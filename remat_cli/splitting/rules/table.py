"""The table of slicing rules: per op, what a slab of its output needs. An op without a row ends a region."""

from collections.abc import Callable, Mapping

from remat_cli.onnx_io.read.op_facts import CONTRIB, NCHWC, ONNX, by_op
from remat_cli.splitting.rules import (
    attention,
    channel,
    einsum,
    indexed,
    lines,
    matrix,
    pointwise,
    quantised,
    recurrent,
    resize,
    sampled,
    shape,
    window,
)
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced

Rule = Callable[[OpView, Slab], Sliced | None]

_ROWS: Mapping[Rule, Mapping[str, str]] = {
    pointwise.elementwise: {
        ONNX: "Relu LeakyRelu PRelu HardSigmoid HardSwish Softsign Erf Sqrt Neg Abs Reciprocal Floor Ceil Round Sign "
        "Tan Sinh Cosh Asinh Acosh Atanh Add Sub Mul Div Mod Sum Mean Equal Less Greater LessOrEqual GreaterOrEqual "
        "Not And Or Xor BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BitShift IsNaN IsInf ThresholdedRelu Identity",
        CONTRIB: "BiasGelu QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearWhere",
    },
    pointwise.first_input: {ONNX: "Clip Shrink"},
    pointwise.transcendental: {ONNX: "Sigmoid Tanh Exp Gelu Swish", CONTRIB: "Gelu FastGelu QuickGelu"},
    pointwise.by_packets: {ONNX: "Elu Softplus Mish Log Sin Cos Asin Acos Atan"},
    pointwise.by_shares: {ONNX: "Selu Celu"},
    pointwise.extremum: {ONNX: "Min Max"},
    pointwise.choice: {ONNX: "Where"},
    pointwise.power: {ONNX: "Pow"},
    pointwise.conversion: {ONNX: "Cast"},
    pointwise.dropout: {ONNX: "Dropout"},
    pointwise.quantisation: {
        ONNX: "QuantizeLinear DequantizeLinear",
        CONTRIB: "QuantizeLinear DequantizeLinear",
    },
    pointwise.across_channels: {ONNX: "LRN"},
    pointwise.along_own_axis: {ONNX: "LpNormalization"},
    window.convolution: {ONNX: "Conv", CONTRIB: "FusedConv", NCHWC: "Conv"},
    window.transposed_convolution: {ONNX: "ConvTranspose"},
    window.pooling: {ONNX: "MaxPool AveragePool LpPool", NCHWC: "MaxPool AveragePool"},
    window.batch_only: {
        NCHWC: "GlobalAveragePool GlobalMaxPool",
        CONTRIB: "QLinearGlobalAveragePool",
    },
    channel.global_pooling: {ONNX: "GlobalAveragePool GlobalMaxPool GlobalLpPool"},
    channel.channel_normalisation: {ONNX: "InstanceNormalization"},
    channel.batch_normalisation: {ONNX: "BatchNormalization"},
    channel.mean_variance: {ONNX: "MeanVarianceNormalization"},
    resize.resizing: {ONNX: "Resize Upsample", NCHWC: "Upsample"},
    shape.padding: {ONNX: "Pad"},
    shape.concatenation: {ONNX: "Concat"},
    shape.split: {ONNX: "Split"},
    shape.transposition: {ONNX: "Transpose"},
    shape.reorder_to_blocked: {NCHWC: "ReorderInput"},
    shape.reorder_from_blocked: {NCHWC: "ReorderOutput"},
    shape.reshape: {ONNX: "Reshape"},
    shape.flatten: {ONNX: "Flatten Unsqueeze"},
    shape.squeeze: {ONNX: "Squeeze"},
    shape.expansion: {ONNX: "Expand"},
    shape.gather: {ONNX: "Gather"},
    shape.gather_elements: {ONNX: "GatherElements"},
    indexed.gather_points: {ONNX: "GatherND", CONTRIB: "GatherND"},
    indexed.scatter_points: {ONNX: "ScatterND"},
    indexed.scatter_elements: {ONNX: "ScatterElements Scatter"},
    indexed.scatter_rows: {ONNX: "TensorScatter"},
    indexed.one_hot: {ONNX: "OneHot"},
    indexed.triangle: {ONNX: "Trilu", CONTRIB: "Trilu"},
    indexed.reversal: {ONNX: "ReverseSequence"},
    indexed.embedding: {CONTRIB: "EmbedLayerNormalization"},
    sampled.grid_sample: {ONNX: "GridSample", CONTRIB: "GridSample"},
    sampled.affine_grid: {ONNX: "AffineGrid"},
    sampled.regions: {ONNX: "RoiAlign MaxRoiPool", CONTRIB: "CropAndResize"},
    sampled.deformable: {ONNX: "DeformConv"},
    recurrent.recurrent: {ONNX: "RNN GRU LSTM"},
    sampled.fold: {ONNX: "Col2Im"},
    sampled.spectrum: {ONNX: "DFT"},
    sampled.frames: {ONNX: "STFT"},
    shape.depth_to_space: {ONNX: "DepthToSpace"},
    shape.space_to_depth: {ONNX: "SpaceToDepth"},
    shape.tile: {ONNX: "Tile"},
    shape.strided_slice: {ONNX: "Slice"},
    matrix.matmul: {ONNX: "MatMul", CONTRIB: "FusedMatMul TransposeMatMul"},
    matrix.gemm: {ONNX: "Gemm", CONTRIB: "FusedGemm"},
    matrix.integer_matmul: {ONNX: "MatMulInteger", CONTRIB: "MatMulIntegerToFloat"},
    matrix.quantised_matmul: {ONNX: "QLinearMatMul"},
    einsum.einsum: {ONNX: "Einsum"},
    lines.softmax: {ONNX: "Softmax LogSoftmax Hardmax"},
    lines.normalisation: {ONNX: "LayerNormalization SimplifiedLayerNormalization RMSNormalization"},
    lines.skip_normalisation: {CONTRIB: "SkipLayerNormalization SkipSimplifiedLayerNormalization"},
    lines.running: {ONNX: "CumSum"},
    lines.best: {ONNX: "TopK"},
    lines.reduction: {
        ONNX: "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"
    },
    lines.summation: {ONNX: "ReduceSum ReduceMean"},
    lines.by_rows: {ONNX: "Scan"},
    lines.best_place: {ONNX: "ArgMax ArgMin"},
    attention.attention: {ONNX: "Attention"},
    attention.multi_head: {CONTRIB: "MultiHeadAttention"},
    attention.packed: {CONTRIB: "Attention"},
    attention.rotary: {ONNX: "RotaryEmbedding", CONTRIB: "RotaryEmbedding"},
    quantised.convolution: {ONNX: "QLinearConv ConvInteger", CONTRIB: "QLinearConv"},
    quantised.pooling: {CONTRIB: "NhwcMaxPool QLinearAveragePool"},
    quantised.concatenation: {CONTRIB: "QLinearConcat"},
    quantised.addition: {CONTRIB: "QLinearAdd"},
    quantised.softmax: {CONTRIB: "QLinearSoftmax"},
    quantised.gemm: {CONTRIB: "QGemm"},
    quantised.attention: {CONTRIB: "QAttention"},
}
RULES: Mapping[tuple[str, str], Rule] = by_op(_ROWS)


def slice_op(op: OpView, slab: Slab) -> Sliced | None:
    """The op cut down to make a slab of its outputs; None where there is no rule, or the rule cannot."""
    rule = RULES.get(op.key)
    return None if rule is None else rule(op, slab)
