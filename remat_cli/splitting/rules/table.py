"""The table of slicing rules: all that splitting knows of an op stands in its record. An op without one ends a region.

Engines ask the record. None keeps a list of op types of its own.
"""

from collections.abc import Mapping

from remat_cli.onnx_io.read.op_facts import CONTRIB, ML, NCHWC, ONNX
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
    sums,
    table_rows,
    window,
)
from remat_cli.splitting.rules.record import (
    REPEATED,
    REST,
    ElementKind,
    LayoutKind,
    ProductKind,
    Scope,
    SliceRule,
    Why,
    WindowKind,
)
from remat_cli.splitting.tiles.op_view import SUMMED, OpView, Slab, Sliced

RECORDS: tuple[SliceRule, ...] = (
    SliceRule(
        pointwise.elementwise,
        {ONNX: "Add Sub Mul Div Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor"},
        Why.ALONE,
        Scope.EVERY_SIZE,
        is_cheap=True,
        windows=WindowKind.BESIDE,
        elements=ElementKind.ALONE,
        takes_one_for_copies=True,
    ),
    SliceRule(
        pointwise.elementwise,
        {
            ONNX: "Relu LeakyRelu PRelu HardSigmoid HardSwish Softsign Erf Sqrt Neg Abs Reciprocal Floor Ceil Round "
            "Sign Tan Sinh Cosh Asinh Acosh Atanh Mod Sum Mean Not BitwiseAnd BitwiseNot BitwiseOr BitwiseXor "
            "BitShift IsNaN IsInf ThresholdedRelu",
            CONTRIB: "BiasGelu QLinearMul QLinearSigmoid QLinearLeakyRelu QLinearWhere",
        },
        Why.ALONE,
        Scope.EVERY_SIZE,
        is_cheap=True,
        windows=WindowKind.BESIDE,
        elements=ElementKind.ALONE,
    ),
    SliceRule(
        pointwise.elementwise,
        {ONNX: "Identity"},
        Why.MOVED,
        Scope.EVERY_SIZE,
        is_cheap=True,
        windows=WindowKind.BESIDE,
        elements=ElementKind.ALONE,
        moves_numbers=True,
    ),
    SliceRule(
        pointwise.first_input,
        {ONNX: "Clip Shrink"},
        Why.ALONE,
        Scope.EVERY_SIZE,
        is_cheap=True,
        windows=WindowKind.BESIDE,
    ),
    SliceRule(
        pointwise.transcendental,
        {ONNX: "Sigmoid Tanh Exp Gelu Swish", CONTRIB: "Gelu FastGelu QuickGelu"},
        Why.ALONE,
        Scope.EVERY_SIZE,
        is_cheap=True,
        windows=WindowKind.BESIDE,
        elements=ElementKind.ALONE,
    ),
    SliceRule(
        pointwise.by_packets,
        {ONNX: "Celu Elu Selu Softplus Mish Log Sin Cos Asin Acos Atan"},
        Why.ASKED,
        is_cheap=True,
        elements=ElementKind.PACKETS,
    ),
    SliceRule(
        pointwise.extremum,
        {ONNX: "Min Max"},
        Why.ASKED,
        Scope.EVERY_SIZE,
        is_cheap=True,
        elements=ElementKind.ALONE,
        takes_one_for_copies=True,
    ),
    SliceRule(
        pointwise.choice,
        {ONNX: "Where"},
        Why.ASKED,
        Scope.SEVERAL_ROWS,
        is_cheap=True,
        elements=ElementKind.ALONE,
        takes_one_for_copies=True,
    ),
    SliceRule(pointwise.power, {ONNX: "Pow"}, Why.ASKED, Scope.SEVERAL_ROWS, is_cheap=True),
    SliceRule(
        pointwise.conversion, {ONNX: "Cast"}, Why.ALONE, Scope.EVERY_SIZE, is_cheap=True, elements=ElementKind.ALONE
    ),
    SliceRule(pointwise.dropout, {ONNX: "Dropout"}, Why.MOVED, Scope.EVERY_SIZE, is_cheap=True),
    SliceRule(
        pointwise.quantisation,
        dict.fromkeys((ONNX, CONTRIB), "QuantizeLinear DequantizeLinear"),
        Why.ALONE,
        Scope.EVERY_SIZE,
        is_cheap=True,
    ),
    SliceRule(pointwise.across_channels, {ONNX: "LRN"}, Why.ASKED, is_cheap=True),
    SliceRule(pointwise.along_own_axis, {ONNX: "LpNormalization"}, Why.APART, is_cheap=True),
    SliceRule(
        window.convolution,
        {ONNX: "Conv", CONTRIB: "FusedConv"},
        Why.ASKED,
        windows=WindowKind.WIDTH,
        items_apart=True,
        reads_all_channels=True,
        reads_no_constants=True,
        adds=sums.convolution,
    ),
    SliceRule(
        window.convolution,
        {NCHWC: "Conv"},
        Why.ASKED,
        windows=WindowKind.ROWS,
        items_apart=True,
        reads_all_channels=True,
        reads_no_constants=True,
    ),
    SliceRule(
        window.transposed_convolution,
        {ONNX: "ConvTranspose"},
        Why.ASKED,
        windows=WindowKind.SPREAD,
        items_apart=True,
        reads_all_channels=True,
        reads_no_constants=True,
    ),
    SliceRule(window.pooling, {ONNX: "MaxPool"}, Why.ASKED, windows=WindowKind.ROWS, items_apart=True),
    SliceRule(
        window.pooling, {NCHWC: "MaxPool"}, Why.APART, windows=WindowKind.ROWS, by_channel=True, items_apart=True
    ),
    SliceRule(window.pooling, {ONNX: "AveragePool LpPool"}, Why.ASKED, windows=WindowKind.WIDTH, items_apart=True),
    SliceRule(
        window.pooling, {NCHWC: "AveragePool"}, Why.ASKED, windows=WindowKind.WIDTH, by_channel=True, items_apart=True
    ),
    SliceRule(
        window.batch_only, {NCHWC: "GlobalAveragePool GlobalMaxPool"}, Why.APART, by_channel=True, items_apart=True
    ),
    SliceRule(window.batch_only, {CONTRIB: "QLinearGlobalAveragePool"}, Why.APART, items_apart=True),
    SliceRule(
        channel.global_pooling, {ONNX: "GlobalAveragePool GlobalMaxPool GlobalLpPool"}, Why.APART, items_apart=True
    ),
    SliceRule(channel.channel_normalisation, {ONNX: "InstanceNormalization"}, Why.ASKED),
    SliceRule(channel.batch_normalisation, {ONNX: "BatchNormalization"}, Why.ALONE, items_apart=True),
    SliceRule(channel.mean_variance, {ONNX: "MeanVarianceNormalization"}, Why.ASKED),
    SliceRule(resize.resizing, {ONNX: "Resize Upsample"}, Why.ASKED, windows=WindowKind.BESIDE, is_resize=True),
    SliceRule(
        resize.resizing, {NCHWC: "Upsample"}, Why.ASKED, windows=WindowKind.BESIDE, by_channel=True, is_resize=True
    ),
    SliceRule(shape.padding, {ONNX: "Pad"}, Why.MOVED, is_cheap=True),
    SliceRule(shape.concatenation, {ONNX: "Concat"}, Why.MOVED, is_cheap=True, windows=WindowKind.BESIDE),
    SliceRule(shape.split, {ONNX: "Split"}, Why.MOVED, Scope.EVERY_SIZE, is_cheap=True),
    SliceRule(shape.transposition, {ONNX: "Transpose"}, Why.MOVED, Scope.EVERY_SIZE, is_cheap=True, moves_numbers=True),
    SliceRule(
        shape.reorder_to_blocked,
        {NCHWC: "ReorderInput"},
        Why.MOVED,
        is_cheap=True,
        windows=WindowKind.BESIDE,
        layout=LayoutKind.BLOCKS,
    ),
    SliceRule(
        shape.reorder_from_blocked,
        {NCHWC: "ReorderOutput"},
        Why.MOVED,
        is_cheap=True,
        windows=WindowKind.BESIDE,
        layout=LayoutKind.PLAIN,
        by_channel=True,
    ),
    SliceRule(
        shape.reshape,
        {ONNX: "Reshape"},
        Why.MOVED,
        Scope.TILE_LENGTH,
        is_cheap=True,
        open_length=REST,
        regroups=True,
        moves_numbers=True,
    ),
    SliceRule(shape.flatten, {ONNX: "Flatten"}, Why.MOVED, Scope.TILE_LENGTH, is_cheap=True, regroups=True),
    SliceRule(
        shape.flatten,
        {ONNX: "Unsqueeze"},
        Why.MOVED,
        Scope.TILE_LENGTH,
        is_cheap=True,
        regroups=True,
        moves_numbers=True,
    ),
    SliceRule(shape.squeeze, {ONNX: "Squeeze"}, Why.MOVED, is_cheap=True, moves_numbers=True),
    SliceRule(
        shape.expansion,
        {ONNX: "Expand"},
        Why.MOVED,
        Scope.EVERY_SIZE,
        is_cheap=True,
        open_length=REPEATED,
        moves_numbers=True,
    ),
    SliceRule(shape.counting, {ONNX: "Range"}, Why.ALONE, Scope.EVERY_SIZE, is_cheap=True, counts_places=True),
    SliceRule(shape.gather, {ONNX: "Gather"}, Why.MOVED, Scope.EVERY_SIZE, is_cheap=True),
    SliceRule(shape.gather_elements, {ONNX: "GatherElements"}, Why.MOVED, Scope.EVERY_SIZE, is_cheap=True),
    SliceRule(indexed.gather_points, dict.fromkeys((ONNX, CONTRIB), "GatherND"), Why.MOVED, is_cheap=True),
    SliceRule(indexed.scatter_points, {ONNX: "ScatterND"}, Why.MOVED, is_cheap=True),
    SliceRule(
        indexed.scatter_elements, {ONNX: "ScatterElements Scatter"}, Why.MOVED, is_cheap=True, adds=sums.scattered
    ),
    SliceRule(indexed.scatter_rows, {ONNX: "TensorScatter"}, Why.MOVED, is_cheap=True),
    SliceRule(indexed.one_hot, {ONNX: "OneHot"}, Why.MOVED, is_cheap=True),
    SliceRule(indexed.triangle, dict.fromkeys((ONNX, CONTRIB), "Trilu"), Why.MOVED, is_cheap=True),
    SliceRule(indexed.reversal, {ONNX: "ReverseSequence"}, Why.MOVED, is_cheap=True),
    SliceRule(
        indexed.embedding, {CONTRIB: "EmbedLayerNormalization QEmbedLayerNormalization"}, Why.APART, is_cheap=True
    ),
    SliceRule(sampled.grid_sample, dict.fromkeys((ONNX, CONTRIB), "GridSample"), Why.ALONE),
    SliceRule(
        sampled.affine_grid,
        {ONNX: "AffineGrid"},
        Why.APART,
        whole_in_loops="an input of it says how many grids there are, which is another number for each tile",
    ),
    SliceRule(sampled.regions, {ONNX: "RoiAlign MaxRoiPool", CONTRIB: "CropAndResize"}, Why.APART),
    SliceRule(sampled.deformable, {ONNX: "DeformConv"}, Why.APART),
    SliceRule(
        recurrent.recurrent,
        {ONNX: "RNN GRU LSTM"},
        Why.ASKED,
        in_turn=recurrent.along_time,
        hands_on=recurrent.handed_on,
    ),
    SliceRule(sampled.fold, {ONNX: "Col2Im"}, Why.APART),
    SliceRule(sampled.spectrum, {ONNX: "DFT"}, Why.APART),
    SliceRule(sampled.frames, {ONNX: "STFT"}, Why.APART, windows=WindowKind.WIDTH),
    SliceRule(shape.depth_to_space, {ONNX: "DepthToSpace"}, Why.MOVED, is_cheap=True),
    SliceRule(shape.space_to_depth, {ONNX: "SpaceToDepth"}, Why.MOVED, is_cheap=True),
    SliceRule(shape.tile, {ONNX: "Tile"}, Why.MOVED, is_cheap=True),
    SliceRule(shape.strided_slice, {ONNX: "Slice"}, Why.MOVED, is_cheap=True),
    SliceRule(
        matrix.matmul,
        {ONNX: "MatMul", CONTRIB: "FusedMatMul TransposeMatMul"},
        Why.ASKED,
        Scope.TILE_LENGTH,
        product=ProductKind.STACK,
        adds=sums.matrices,
    ),
    SliceRule(
        matrix.gemm,
        {ONNX: "Gemm", CONTRIB: "FusedGemm"},
        Why.ASKED,
        Scope.TILE_LENGTH,
        product=ProductKind.ONE,
        adds=sums.product,
    ),
    SliceRule(
        matrix.integer_matmul,
        {ONNX: "MatMulInteger", CONTRIB: "MatMulIntegerToFloat"},
        Why.INTEGERS,
        reads_no_constants=True,
    ),
    SliceRule(matrix.quantised_matmul, {ONNX: "QLinearMatMul"}, Why.INTEGERS, reads_no_constants=True),
    SliceRule(einsum.einsum, {ONNX: "Einsum"}, Why.ASKED),
    SliceRule(lines.softmax, {ONNX: "Softmax LogSoftmax Hardmax"}, Why.APART, Scope.EVERY_SIZE),
    SliceRule(
        lines.normalisation,
        {ONNX: "LayerNormalization SimplifiedLayerNormalization RMSNormalization"},
        Why.APART,
        Scope.EVERY_SIZE,
    ),
    SliceRule(
        lines.skip_normalisation,
        {CONTRIB: "SkipLayerNormalization SkipSimplifiedLayerNormalization"},
        Why.APART,
        Scope.EVERY_SIZE,
    ),
    SliceRule(lines.running, {ONNX: "CumSum"}, Why.APART),
    SliceRule(lines.best, {ONNX: "TopK"}, Why.APART),
    SliceRule(
        lines.reduction,
        {ONNX: "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"},
        Why.APART,
    ),
    SliceRule(lines.summation, {ONNX: "ReduceSum"}, Why.ASKED, adds=sums.reduced),
    SliceRule(lines.summation, {ONNX: "ReduceMean"}, Why.ASKED),
    SliceRule(lines.by_rows, {ONNX: "Scan"}, Why.ASKED),
    SliceRule(lines.best_place, {ONNX: "ArgMax ArgMin"}, Why.APART),
    SliceRule(attention.attention, {ONNX: "Attention"}, Why.ASKED),
    SliceRule(attention.multi_head, {CONTRIB: "MultiHeadAttention"}, Why.ASKED),
    SliceRule(attention.grouped, {CONTRIB: "GroupQueryAttention"}, Why.APART),
    SliceRule(attention.packed, {CONTRIB: "Attention"}, Why.APART),
    SliceRule(attention.rotary, dict.fromkeys((ONNX, CONTRIB), "RotaryEmbedding"), Why.ALONE),
    SliceRule(
        quantised.convolution,
        {ONNX: "QLinearConv", CONTRIB: "QLinearConv"},
        Why.INTEGERS,
        reads_no_constants=True,
        counts_windows=True,
    ),
    SliceRule(
        quantised.convolution,
        {ONNX: "ConvInteger"},
        Why.INTEGERS,
        reads_no_constants=True,
        takes_for_one_item=True,
        counts_windows=True,
    ),
    SliceRule(quantised.pooling, {CONTRIB: "NhwcMaxPool QLinearAveragePool"}, Why.ASKED),
    SliceRule(quantised.concatenation, {CONTRIB: "QLinearConcat"}, Why.ALONE),
    SliceRule(quantised.addition, {CONTRIB: "QLinearAdd"}, Why.ASKED),
    SliceRule(quantised.softmax, {CONTRIB: "QLinearSoftmax"}, Why.APART),
    SliceRule(quantised.gemm, {CONTRIB: "QGemm"}, Why.INTEGERS),
    SliceRule(quantised.attention, {CONTRIB: "QAttention"}, Why.APART),
    SliceRule(
        quantised.block_product,
        {CONTRIB: "MatMulNBits"},
        Why.ASKED,
        reads_no_constants=True,
        rows_together=quantised.packet_rows,
    ),
    SliceRule(quantised.block_gather, {CONTRIB: "GatherBlockQuantized"}, Why.ALONE, Scope.EVERY_SIZE),
    SliceRule(table_rows.rows, {ML: "Scaler Normalizer Binarizer Imputer"}, Why.APART, Scope.EVERY_SIZE, is_cheap=True),
    SliceRule(table_rows.counted, {ONNX: "TfIdfVectorizer"}, Why.APART, Scope.EVERY_SIZE),
    SliceRule(table_rows.trees, {ML: "TreeEnsembleRegressor TreeEnsembleClassifier"}, Why.ASKED),
)
RULES: Mapping[tuple[str, str], SliceRule] = {
    (domain, op_type): record
    for record in RECORDS
    for domain, op_types in record.ops.items()
    for op_type in op_types.split()
}


NO_RULE = SliceRule(lambda op, slab: None, {}, Why.NEVER)


def rule_of(domain: str, op_type: str) -> SliceRule:
    """The record of an op; one that claims nothing and cuts nothing where there is none."""
    return RULES.get((domain, op_type), NO_RULE)


def is_for_threads(domain: str, op_type: str) -> bool:
    """Whether parts have the bits of the whole with as many threads as were asked about, and not with any number."""
    return rule_of(domain, op_type) is not NO_RULE and op_type in pointwise.SHARED_CYCLES


def slice_op(op: OpView, slab: Slab) -> Sliced | None:
    """The op cut down to make a slab of its outputs, or to add up some positions; None where no rule can."""
    if slab.axis == SUMMED:
        adding = added_up(op)
        sliced = None if adding is None else sums.cut_sum(op, adding, slab)
    else:
        sliced = rule_of(*op.key).cut(op, slab)
    if sliced is None or not any(op.defaults):
        return sliced
    # what a caller may give is no constant to be cut
    cut = {*sliced.constants, *(at for at, need in enumerate(sliced.needs) if need is not None)}
    return None if any(op.defaults[at] for at in cut if at < len(op.defaults)) else sliced


def slice_in_turn(op: OpView, slab: Slab) -> Sliced | None:
    """The op cut down to a slab that runs when those before it have; None where no rule can."""
    in_turn = rule_of(*op.key).in_turn
    return None if in_turn is None else in_turn(op, slab)


def added_up(op: OpView) -> sums.Adding | None:
    """What an op adds up, where that can be done part by part."""
    adds = rule_of(*op.key).adds
    return None if adds is None else adds(op)
