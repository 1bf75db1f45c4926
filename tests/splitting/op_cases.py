"""For every op with a slicing rule one to cut: written out here, or made from its schema if elements stand alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from remat_cli.onnx_io.read.op_facts import CONTRIB, ML, NCHWC, ONNX
from remat_cli.splitting.rules import lines as rules_lines
from remat_cli.splitting.rules import pointwise as rules_pointwise
from remat_cli.splitting.rules.table import RULES
from tests.splitting.sliced_op import Array, OneOp, block_size

BY_ELEMENT = (
    *(rules_pointwise.elementwise, rules_pointwise.first_input, rules_pointwise.transcendental),
    rules_pointwise.by_packets,
)
NEWEST_OPSET = 26  # that the runtime takes
SIZES = (2, 64, 48, 32)  # long enough for functions that are computed in packets


def real(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).random(shape, np.float32) / 2 + np.float32(0.25)


def ints(*numbers: int | list[int]) -> Array:
    return np.array(numbers, np.int64)


def blocked(op_type: str, *weights: Array, **attributes: Any) -> OneOp:
    places = tuple(range(1, 1 + len(weights)))
    inputs = (real(3, block_size(), 9, 7), *weights)
    return OneOp(op_type, inputs, attributes, places, NCHWC, 1)


def contrib(op_type: str, *inputs: Array, weights: tuple[int, ...] = (), **attributes: Any) -> OneOp:
    return OneOp(op_type, inputs, attributes, weights, CONTRIB, 1)


IMAGE, KERNEL, WINDOW = real(3, 4, 9, 8), real(5, 4, 3, 3), {"kernel_shape": [2, 2]}
LEFT, RIGHT = real(3, 20, 12), real(12, 10)
SMALL, SCALE, ZERO = np.ones((3, 20, 12), np.uint8), np.array(0.1, np.float32), np.array(3, np.uint8)
PIXELS, TAPS, POINT = np.arange(864, dtype=np.uint8).reshape(3, 4, 9, 8), np.ones((5, 4, 3, 3), np.uint8), (SCALE, ZERO)
PLACES = np.array([[0, 1, 2, 3, 0, 1], [3, 0, 1, 2, 2, 0]], np.int64)
BOXES = np.array([[0, 0, 4, 4], [1, 2, 7, 6], [0, 1, 3, 8], [2, 2, 6, 7]], np.float32)
WORDS = np.arange(12, dtype=np.int32).reshape(2, 6)
EMBEDDED = (WORDS, WORDS % 2, real(12, 16), real(6, 16), real(2, 16), real(16), real(16))


TABLE, SCALES = np.arange(96, dtype=np.uint8).reshape(6, 16), real(6, 2)
GROUPED = (real(3, 1, 32), real(3, 1, 16), real(3, 1, 16), real(3, 2, 4, 8), real(3, 2, 4, 8))
GROUPED += (np.full(3, 4, np.int32), np.array(5, np.int32))
BYTES_AND_SCALES = (*range(2, 7), *range(8, 18))
EMBEDDED_IN_BYTES = (WORDS, WORDS % 2, *(np.arange(16 * rows, dtype=np.uint8).reshape(rows, 16) for rows in (12, 6, 2)))
EMBEDDED_IN_BYTES += (np.arange(16, dtype=np.uint8),) * 2 + (np.ones((2, 6), np.int32), *(SCALE,) * 5, *(ZERO,) * 5)


def blocks(columns: int, count: int, size: int, bits: int = 4) -> tuple[Array, Array]:
    """A matrix of so many columns, each of `count` blocks of numbers of a few bits, and a scale for each block."""
    dice = np.random.default_rng(columns + size)
    return dice.integers(0, 256, (columns, count, size * bits // 8)).astype(np.uint8), real(columns * count) / 9


def recurrent(gates: int) -> tuple[Array, ...]:
    """Input, weights and recurrent weights."""
    return real(5, 4, 8), real(1, gates * 16, 8), real(1, gates * 16, 16)


def trees(count: int, features: int = 6) -> dict[str, Any]:
    """Trees of one question each: their nodes, as ensembles for regression and for classes both have them."""
    dice, each = np.random.default_rng(count), range(count)
    asked, bound = dice.integers(features, size=count), dice.random(count) / 2 + 0.25
    return {
        "nodes_treeids": [tree for tree in each for _ in range(3)],
        "nodes_nodeids": [0, 1, 2] * count,
        "nodes_featureids": [at for tree in each for at in (int(asked[tree]), 0, 0)],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * count,
        "nodes_values": [value for tree in each for value in (float(bound[tree]), 0.0, 0.0)],
        "nodes_truenodeids": [1, 0, 0] * count,
        "nodes_falsenodeids": [2, 0, 0] * count,
    }


def votes(count: int, word: str, kinds: int = 1) -> dict[str, Any]:
    """What the leaves of such trees say: numbers for targets, or for classes."""
    dice, each = np.random.default_rng(count + 1), range(count)
    return {
        f"{word}_treeids": [tree for tree in each for _ in range(2)],
        f"{word}_nodeids": [1, 2] * count,
        f"{word}_ids": [leaf % kinds for leaf in range(2 * count)],
        f"{word}_weights": [float(vote) for vote in dice.standard_normal(2 * count)],
    }


def regressor(count: int, rows: int = 800) -> OneOp:
    return OneOp(
        "TreeEnsembleRegressor", (real(rows, 6),), {**trees(count), **votes(count, "target"), "n_targets": 1}, (), ML, 1
    )


def classifier(count: int, kinds: int, rows: int = 800) -> OneOp:
    said = {**trees(count), **votes(count, "class", kinds), "classlabels_int64s": list(range(kinds))}
    return OneOp("TreeEnsembleClassifier", (real(rows, 6),), said, (), ML, 1, (True, True))


def means_of_rows(line: int) -> onnx.GraphProto:
    """A body that gives the mean of a row."""
    ends = [onnx.helper.make_tensor_value_info(*end) for end in (("row", 1, [line]), ("mean", 1, [1]))]
    node = onnx.helper.make_node("ReduceMean", ["row", "along"], ["mean"])
    return onnx.helper.make_graph([node], "row", ends[:1], ends[1:], [onnx.numpy_helper.from_array(ints(0), "along")])


CASES = (
    OneOp("Scan", (real(64, 37),), {"body": means_of_rows(37), "num_scan_inputs": 1}),
    *(OneOp(op, (real(*SIZES), SCALE)) for op in ("Min", "Max")),
    OneOp("Where", (real(5, 9, 4) > 0.5, real(5, 9, 4), real(5, 9, 4))),
    OneOp("Pow", (real(5, 9, 4), SCALE)),
    OneOp("Mod", (real(5, 9), real(5, 9)), {"fmod": 1}),
    OneOp("BitShift", (np.ones((5, 9), np.uint8), np.ones((5, 9), np.uint8)), {"direction": "LEFT"}),
    OneOp("Cast", (real(5, 9),), {"to": 10}),
    OneOp("Dropout", (real(5, 9),)),
    OneOp("QuantizeLinear", (real(5, 9), SCALE, ZERO), {}, (1, 2)),
    OneOp("DequantizeLinear", (SMALL, SCALE, ZERO), {}, (1, 2)),
    OneOp("BatchNormalization", (IMAGE, *(real(4),) * 4), {}, (1, 2, 3, 4), opset=15),
    OneOp("LRN", (real(*SIZES),), {"size": 3}),
    OneOp("LpNormalization", (real(5, 9),)),
    OneOp("Conv", (IMAGE, KERNEL), {"pads": [1] * 4}, (1,)),
    contrib("FusedConv", IMAGE, KERNEL, weights=(1,), activation="Relu"),
    OneOp("ConvTranspose", (IMAGE, real(4, 2, 2, 2)), {"strides": [2, 2]}, (1,)),
    *(OneOp(op, (IMAGE,), WINDOW) for op in ("MaxPool", "AveragePool", "LpPool")),
    *(OneOp(f"Global{kind}Pool", (IMAGE,)) for kind in ("Average", "Max", "Lp")),
    OneOp("InstanceNormalization", (IMAGE, real(4), real(4)), {}, (1, 2)),
    OneOp("Resize", (IMAGE, None, np.array([1, 1, 2, 2], np.float32)), {"mode": "nearest"}, (2,)),
    OneOp("Upsample", (IMAGE, np.array([1, 1, 2, 2], np.float32)), {"mode": "nearest"}, (1,), opset=9),
    OneOp("Pad", (IMAGE, ints(0, 0, 1, 1, 0, 0, 2, 2)), {}, (1,)),
    OneOp("Concat", (IMAGE, IMAGE), {"axis": 1}),
    OneOp("Split", (IMAGE,), {"axis": 1, "num_outputs": 2}, outputs=(True, True)),
    OneOp("Transpose", (IMAGE,)),
    OneOp("ReorderInput", (real(3, block_size(), 5, 7),), {"channels_last": 0}, (), NCHWC, 1),
    blocked("ReorderOutput", channels=block_size(), channels_last=0),
    OneOp("Reshape", (real(4, 6, 5), ints(4, 30)), {}, (1,)),
    OneOp("Flatten", (IMAGE,)),
    OneOp("Squeeze", (real(1, 4, 5), ints(0)), {}, (1,)),
    OneOp("Unsqueeze", (real(4, 5), ints(1)), {}, (1,)),
    OneOp("Range", (np.array(0), np.array(40), np.array(1)), {}, (0, 1, 2), opset=11),
    OneOp("Expand", (real(4, 1, 5), ints(4, 6, 5)), {}, (1,)),
    OneOp("Gather", (IMAGE, ints(0, 2)), {"axis": 1}),
    OneOp("GatherElements", (real(5, 6), np.zeros((4, 6), np.int64))),
    OneOp("DepthToSpace", (real(3, 8, 4, 5),), {"blocksize": 2}),
    OneOp("SpaceToDepth", (real(3, 2, 8, 10),), {"blocksize": 2}),
    OneOp("Tile", (real(4, 5), ints(1, 3)), {}, (1,)),
    OneOp("Slice", (real(9, 6), ints(2), ints(8)), {}, (1, 2)),
    OneOp("MatMul", (LEFT, RIGHT), {}, (1,)),
    *(contrib(op, LEFT, RIGHT, weights=(1,), alpha=0.5) for op in ("FusedMatMul", "TransposeMatMul")),
    contrib("FusedMatMul", real(20, 3, 12), real(10, 3, 12), transBatchA=1, transBatchB=1, transB=1),
    OneOp("Gemm", (LEFT[0], RIGHT), {}, (1,)),
    contrib("FusedGemm", LEFT[0], RIGHT, weights=(1,), activation="Tanh"),
    OneOp("MatMulInteger", (SMALL, np.ones((12, 10), np.uint8))),
    OneOp("QLinearMatMul", (SMALL, SCALE, ZERO, np.ones((12, 10), np.uint8), SCALE, ZERO, SCALE, ZERO)),
    *(OneOp(op, (real(5, 9, 7),)) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    OneOp("LayerNormalization", (LEFT, real(12)), {}, (1,)),
    OneOp("SimplifiedLayerNormalization", (LEFT, real(12)), {}, (1,), opset=1),
    OneOp("RMSNormalization", (LEFT, real(12)), {}, (1,), opset=23),
    *(contrib(f"Skip{n}LayerNormalization", LEFT, LEFT, real(12), weights=(2,)) for n in ("", "Simplified")),
    OneOp("CumSum", (real(5, 9), np.array(1)), {}, (1,)),
    OneOp("TopK", (real(5, 9), ints(3)), {}, (1,), outputs=(True, True)),
    *(OneOp(op, (real(5, 9, 7),)) for op in ("ArgMax", "ArgMin")),
    OneOp("Attention", (real(3, 2, 20, 8), real(3, 2, 30, 8), real(3, 2, 30, 8)), opset=23),
    contrib("MultiHeadAttention", *(real(3, 20, 32),) * 3, num_heads=4),
    contrib("Attention", real(3, 20, 48), real(48, 96), real(96), weights=(1, 2), num_heads=4),
    *(
        contrib(op, real(3, 5, 16), *extra)
        for op, *extra in (("Gelu",), ("FastGelu",), ("QuickGelu",), ("BiasGelu", real(16)))
    ),
    OneOp("QLinearConv", (PIXELS, *POINT, TAPS, *POINT, *POINT), {}, (3,)),
    contrib("QLinearConv", PIXELS, *POINT, TAPS, *POINT, *POINT, weights=(3,)),
    OneOp("ConvInteger", (PIXELS, TAPS, ZERO), {}, (1,)),
    contrib("NhwcMaxPool", PIXELS, **WINDOW),
    contrib("QLinearAveragePool", PIXELS, *POINT, *POINT, **WINDOW),
    contrib("QLinearConcat", *POINT, PIXELS, *POINT, PIXELS, *POINT, axis=1),
    *(contrib(f"QLinear{op}", PIXELS, *POINT, PIXELS, *POINT, *POINT) for op in ("Add", "Mul")),
    *(contrib(f"QLinear{op}", PIXELS, *POINT, *POINT) for op in ("Sigmoid", "LeakyRelu", "GlobalAveragePool")),
    contrib("QLinearSoftmax", PIXELS, *POINT, *POINT, opset=13),
    contrib("QLinearWhere", PIXELS > 9, PIXELS, *POINT, PIXELS, *POINT, *POINT),
    contrib("QuantizeLinear", real(5, 9), *POINT),
    contrib("DequantizeLinear", SMALL, *POINT),
    contrib("QGemm", SMALL[0], *POINT, SMALL[0], *POINT, None, *POINT, transB=1),
    contrib("MatMulIntegerToFloat", SMALL, SMALL[0].T, SCALE, SCALE),
    contrib("QAttention", SMALL, np.ones((12, 24), np.uint8), real(24), SCALE, SCALE, weights=(1,), num_heads=4),
    contrib("MatMulNBits", real(3, 20, 64), *blocks(10, 2, 32), weights=(1, 2), K=64, N=10, bits=4, block_size=32),
    contrib("GatherBlockQuantized", TABLE, PLACES, SCALES, weights=(0, 2), bits=4, block_size=16, quantize_axis=1),
    OneOp("GroupQueryAttention", GROUPED, {"num_heads": 4, "kv_num_heads": 2}, (), CONTRIB, 1, (True,) * 3),
    OneOp("QEmbedLayerNormalization", EMBEDDED_IN_BYTES, {}, BYTES_AND_SCALES, CONTRIB, 1, (True, True)),
    blocked("Conv", real(block_size(), block_size(), 3, 3)),
    *(blocked(op, **WINDOW) for op in ("MaxPool", "AveragePool")),
    *(blocked(f"Global{kind}Pool") for kind in ("Average", "Max")),
    blocked("Upsample", scales=[1, 1, 2, 2], mode="nearest"),
    OneOp("MeanVarianceNormalization", (IMAGE,), {"axes": [2, 3]}),
    OneOp("Einsum", (real(3, 20, 16), real(3, 16, 10)), {"equation": "bij,bjk->bik"}),
    *(OneOp("GatherND", (real(3, 6, 5), ints([0], [2])), {}, (), *version) for version in (("", 13), (CONTRIB, 1))),
    OneOp("ScatterND", (real(4, 6, 5), ints([0], [2]), real(2, 6, 5)), opset=18),
    *(OneOp(op, (real(4, 6), PLACES, real(2, 6)), opset=v) for op, v in (("ScatterElements", 18), ("Scatter", 9))),
    OneOp("TensorScatter", (real(2, 3, 9, 4), real(2, 3, 2, 4), ints(1, 5)), opset=24),
    OneOp("OneHot", (PLACES, ints(4), np.array([2, 5], np.float32)), {}, (1, 2), opset=11),
    *(OneOp("Trilu", (real(3, 7, 6), np.array(1)), {}, (1,), *version) for version in (("", 14), (CONTRIB, 1))),
    OneOp("ReverseSequence", (real(5, 4, 3), ints(1, 2, 3, 5)), opset=10),
    OneOp("EmbedLayerNormalization", EMBEDDED, {}, (2, 3, 4, 5, 6), CONTRIB, 1, (True, False, True)),
    *(OneOp("GridSample", (IMAGE, real(3, 6, 5, 2)), {}, (), *version) for version in (("", 16), (CONTRIB, 1))),
    OneOp("AffineGrid", (real(3, 2, 3), ints(3, 4, 6, 5)), {}, (1,), opset=20),
    OneOp("RoiAlign", (IMAGE, BOXES, ints(0, 2, 1, 1)), {"output_height": 2, "output_width": 3}, opset=16),
    OneOp(
        "MaxRoiPool",
        (IMAGE, np.concatenate([np.ones((4, 1), np.float32), BOXES], 1)),
        {"pooled_shape": [2, 2]},
        opset=1,
    ),
    contrib("CropAndResize", IMAGE, BOXES / 9, np.zeros(4, np.int32), np.array([3, 2], np.int32), weights=(3,)),
    OneOp("DeformConv", (IMAGE, KERNEL, real(3, 18, 7, 6)), {}, (1,), opset=19),
    OneOp("Col2Im", (real(3, 16, 56), ints(9, 8), ints(2, 2)), {}, (1, 2), opset=18),
    *(OneOp(op, recurrent(gates), {"hidden_size": 16}, (1, 2), opset=14) for op, gates in (("GRU", 3), ("LSTM", 4))),
    OneOp("Scaler", (real(9, 6),), {"offset": [0.3] * 6, "scale": [1.7] * 6}, (), ML, 1),
    OneOp("Normalizer", (real(9, 6),), {"norm": "L2"}, (), ML, 1),
    OneOp("Binarizer", (real(9, 6),), {"threshold": 0.5}, (), ML, 1),
    OneOp("Imputer", (real(9, 6),), {"imputed_value_floats": [0.5], "replaced_value_float": 0.25}, (), ML, 1),
    OneOp(
        "TfIdfVectorizer",
        (np.random.default_rng(3).integers(0, 5, (9, 12)),),
        {
            "max_gram_length": 2,
            "min_gram_length": 1,
            "max_skip_count": 0,
            "mode": "TFIDF",
            "ngram_counts": [0, 3],
            "ngram_indexes": [0, 1, 2, 4, 3],
            "pool_int64s": [1, 2, 4, 1, 2, 3, 4],
            "weights": [0.3, 1.7, 0.1, 2.5, 0.7],
        },
        opset=9,
    ),
    regressor(12),
    classifier(12, 3),
    OneOp("RNN", recurrent(1), {"hidden_size": 16}, (1, 2), opset=14),
    OneOp("DFT", (real(3, 8, 5, 1),), {"axis": 1}, opset=17),
    OneOp("STFT", (real(3, 64, 1), np.array(4), None, np.array(16)), {}, (1, 3), opset=17),
    OneOp("RotaryEmbedding", (real(2, 3, 9, 8), *(real(2, 9, 4),) * 2), {}, (), opset=23),
    contrib("RotaryEmbedding", real(2, 9, 24), ints(0), *(real(20, 4),) * 2, weights=(1, 2, 3), num_heads=3),
    *(
        OneOp(op, (real(64, 9, 32), ints(2)), {}, (1,), opset=18)
        for (_, op), rule in RULES.items()
        if rule.cut in (rules_lines.reduction, rules_lines.summation)
    ),
)


def case_of(domain: str, op_type: str) -> OneOp:
    """The first case of an op; made up from its schema where its rule is one of those by element."""
    written = next((case for case in CASES if (case.domain, case.op_type) == (domain, op_type)), None)
    if written is not None:
        return written
    is_plain = domain == ONNX and RULES[domain, op_type].cut in BY_ELEMENT
    assert is_plain, (
        f"the slicing rule of {domain}:{op_type} has no case: add one to CASES in tests/splitting/op_cases.py"
    )
    schema = onnx.defs.get_schema(op_type, NEWEST_OPSET)
    allowed = {kind for each in schema.type_constraints for kind in each.allowed_type_strs}
    dtype = next(t for t in (np.float32, np.int64, np.bool_) if f"tensor({_word(t)})" in allowed)
    inputs = tuple(real(*SIZES).astype(dtype) for _ in range(schema.min_input if schema.max_input < 9 else 2))
    return OneOp(op_type, inputs, opset=max(21, schema.since_version))


def _word(dtype: type) -> str:
    return {np.float32: "float", np.int64: "int64", np.bool_: "bool"}[dtype]
