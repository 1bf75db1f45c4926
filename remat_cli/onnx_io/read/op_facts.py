"""States what ONNX Runtime does with each kind of op: it shares storage, works in place, or must never run twice.

Storage facts were measured on the CPU execution provider, one row at a time; `tests/onnx_io/test_op_facts.py` measures
them again on the installed runtime. An op of the ONNX domain without a row is plain: it makes new buffers and may be
repeated. In any other domain only ops with a row may be repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import onnx_ir as ir

ONNX = ""
CONTRIB = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
ML = "ai.onnx.ml"
Row = TypeVar("Row")


@dataclass(frozen=True)
class OpFacts:
    """Nature of one op.

    `view`: output 0 always shares the storage of input 0. `in_place`: (input, output) positions that share a buffer
    when the op is the last reader and both have the same shape and element size. `why_not_repeatable` is empty when
    the op may run more than once.
    """

    view: bool = False
    in_place: tuple[tuple[int, int], ...] = ()
    why_not_repeatable: str = ""


PLAIN = OpFacts()
VIEW = OpFacts(view=True)
IN_PLACE = OpFacts(in_place=((0, 0),))
SUM_IN_PLACE = OpFacts(in_place=((3, 0),))  # the tensor added to the result of a convolution
RANDOM = OpFacts(why_not_repeatable="random without a seed: two runs give different values")
CONTROL_FLOW = OpFacts(why_not_repeatable="control flow: its body is opaque")
SEQUENCE = OpFacts(why_not_repeatable="reads or makes a sequence or an optional value")
TRAINING_DROPOUT = OpFacts(why_not_repeatable="Dropout in training mode without a seed: random")
TRAINING_NORM = OpFacts(why_not_repeatable="BatchNormalization in training mode overwrites its running statistics")

_SPECIAL: Mapping[OpFacts, Mapping[str, str]] = {
    VIEW: {ONNX: "Reshape Flatten Squeeze Unsqueeze Identity"},
    IN_PLACE: {
        ONNX: "Relu Sigmoid Tanh LeakyRelu Elu Selu Celu ThresholdedRelu Softplus Softsign HardSigmoid Softmax "
        "LogSoftmax Clip Trilu Shrink Cast ScatterElements Scatter TensorScatter ParametricSoftplus",
        CONTRIB: "Trilu",
    },
    SUM_IN_PLACE: {CONTRIB: "FusedConv", NCHWC: "Conv"},
    RANDOM: {
        ONNX: "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli",
        CONTRIB: "BitmaskDropout Sampling",
    },
    CONTROL_FLOW: {ONNX: "If Loop Scan", CONTRIB: "BeamSearch GreedySearch"},
    SEQUENCE: {
        ONNX: "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap "
        "ConcatFromSequence SplitToSequence Optional OptionalGetElement OptionalHasElement"
    },
    # Deterministic ops that the runtime's own optimiser writes, and those that exporters for it use.
    PLAIN: {
        NCHWC: "MaxPool AveragePool GlobalMaxPool GlobalAveragePool ReorderInput ReorderOutput Upsample",
        CONTRIB: "FusedGemm FusedMatMul FusedMatMulActivation TransposeMatMul Gelu BiasGelu FastGelu QuickGelu "
        "LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization "
        "EmbedLayerNormalization QEmbedLayerNormalization GroupNorm SkipGroupNorm Attention MultiHeadAttention "
        "GroupQueryAttention PackedAttention QAttention "
        "RotaryEmbedding BiasSoftmax BiasSplitGelu BiasAdd MatMulNBits MatMulBnb4 MatMulFpQ4 MatMulInteger16 "
        "MatMulIntegerToFloat DynamicQuantizeMatMul DynamicQuantizeLSTM QLinearAdd QLinearMul QLinearSigmoid "
        "QLinearLeakyRelu QLinearSoftmax QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearAveragePool "
        "QLinearReduceMean QLinearWhere QGemm QMoE MoE QuantizeLinear DequantizeLinear NhwcMaxPool NhwcConv "
        "NhwcFusedConv GatherND GatherBlockQuantized ExpandDims Pad Unique Inverse Irfft Rfft CropAndResize "
        "ConvTransposeWithDynamicPads GridSample MaxpoolWithMask MulInteger ReduceSumInteger Range",
    },
}


def by_op(rows: Mapping[Row, Mapping[str, str]]) -> dict[tuple[str, str], Row]:
    """One row per (domain, op type), from what is said of the ops of each domain."""
    return {
        (domain, op_type): row
        for row, domains in rows.items()
        for domain, op_types in domains.items()
        for op_type in op_types.split()
    }


FACTS: Mapping[tuple[str, str], OpFacts] = by_op(_SPECIAL)
# With a seed, each copy of these has a generator of its own that begins with it. A plan runs every copy once per run,
# so that in each run all copies draw the same, and in the next run something else. (Bernoulli would do so as well, but
# the runtime takes it for an op that is not random, and merges equal copies.)
SEEDED = frozenset({"Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"})
DRAWING = SEEDED - {"Dropout"} | {"Bernoulli"}  # always
OURS, MOST = 2**40, 2**22  # so many seeds of Dropout from here on, and other seeds that are not whole, are remat's


def facts_of(node: ir.Node) -> OpFacts:
    """Nature of a node: its row, or what its attributes and types say where they matter."""
    domain = ONNX if node.domain == "ai.onnx" else node.domain
    is_onnx = domain == ONNX
    # Attributes and inputs of an ONNX op overrule its row.
    if is_onnx and node.op_type in SEEDED and "seed" in node.attributes and not is_ours(node):
        return PLAIN
    if is_onnx and may_train(node):
        return TRAINING_DROPOUT
    if is_onnx and node.op_type == "BatchNormalization":
        # It updates its statistics by an attribute, or before opset 14 where it has more outputs.
        mode = node.attributes.get("training_mode")
        if (mode is not None and mode.as_int() == 1) or sum(bool(value.name) for value in node.outputs) > 1:
            return TRAINING_NORM
    facts = FACTS.get((domain, node.op_type))
    if facts is None and domain not in (ONNX, ML):
        reason = f"{domain}.{node.op_type} is not known to be free of side effects"
        return replace(PLAIN, why_not_repeatable=reason)
    facts = facts or PLAIN
    if is_onnx and node.op_type == "Scan" and is_by_rows(node):
        facts = PLAIN
    elif not facts.why_not_repeatable and has_body(node):
        facts = CONTROL_FLOW
    elif not facts.why_not_repeatable:
        kinds = [value.type for value in (*node.inputs, *node.outputs) if value is not None]
        facts = SEQUENCE if any(isinstance(kind, ir.SequenceType | ir.OptionalType) for kind in kinds) else facts
    return facts


def is_ours(node: ir.Node) -> bool:
    """Whether the seed of an op that draws random numbers is one that remat gave, which no file has that it writes."""
    seed = node.attributes.get("seed")
    if seed is None or node.op_type not in DRAWING | SEEDED:
        return False
    if seed.type == ir.AttributeType.FLOAT:
        return not seed.as_float().is_integer()
    return OURS <= seed.as_int() < OURS + MOST


def has_body(node: ir.Node) -> bool:
    """Whether an op runs a graph of its own: If, Loop, Scan and the like."""
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def is_by_rows(node: ir.Node) -> bool:
    """Whether a Scan does the same with each row of what it reads, and only ops of which nothing but results remain."""
    body, count = node.attributes.get("body"), node.attributes.get("num_scan_inputs")
    if body is None or body.type != ir.AttributeType.GRAPH or node.inputs[:1] in ((), (None,)):
        return False
    if count is None or count.type != ir.AttributeType.INT or count.as_int() != len(node.inputs):
        return False  # it has states
    others = (each for name, each in node.attributes.items() if name not in ("body", "num_scan_inputs"))
    if any(each.type != ir.AttributeType.INTS or any(each.as_ints()) for each in others):
        return False  # other axes, or backwards
    inner = ir.traversal.RecursiveGraphIterator(body.as_graph())
    return not any(has_body(each) or facts_of(each).why_not_repeatable for each in inner)


def may_train(node: ir.Node) -> bool:
    """Whether an op is a Dropout that may drop: its third input is there and not a constant False."""
    if node.op_type != "Dropout":
        return False
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    if mode is None:
        return False
    return mode.const_value is None or mode.is_graph_input() or bool(mode.const_value.numpy().any())
