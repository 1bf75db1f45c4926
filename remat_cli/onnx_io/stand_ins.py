"""What ONNX shape inference is shown in place of ops that only ONNX Runtime knows.

The runtime infers shapes of its own ops when it loads a file; what it would prove must be known beforehand, so each
of these ops is shown as ONNX ops with the same rule. An op without a row is shown as an op of an unknown domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir
from onnx import helper

from remat_cli.onnx_io.draft import Draft
from remat_cli.onnx_io.op_facts import CONTRIB, NCHWC

Nodes = list[onnx.NodeProto]
UNKNOWN_DOMAIN = "remat.unknown"
NOT_BATCHED = ("transBatchA", "transBatchB")


def stand_in(draft: Draft, rank: int) -> Nodes:
    """The nodes that shape inference sees for an op of the file whose first result has `rank` dimensions."""
    source = draft.source
    if source is None:
        node = helper.make_node(draft.op_type, draft.reads, draft.makes, draft.name)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in draft.attributes)
        return [node]
    domain = "" if draft.domain == "ai.onnx" else draft.domain
    rule = STAND_INS.get((domain, draft.op_type))
    if rule is not None:
        return rule(draft, source, rank)
    if domain == "" and not draft.captured:
        return [_itself(draft, source)]
    return _unknown(draft)


def _itself(draft: Draft, source: ir.Node) -> onnx.NodeProto:
    node = onnx.NodeProto()
    node.CopyFrom(ir.to_proto(source))
    node.op_type = draft.op_type
    node.ClearField("input")
    node.ClearField("output")
    node.input.extend(draft.reads)
    node.output.extend(draft.makes)
    return node


def _unknown(draft: Draft) -> Nodes:
    return [helper.make_node(draft.op_type, draft.reads, draft.makes, draft.name, domain=UNKNOWN_DOMAIN)]


def _named(op_type: str) -> Callable[[Draft, ir.Node, int], Nodes]:
    """The ONNX op of the same rule; of the attributes, those that it has too."""

    def nodes(draft: Draft, source: ir.Node, rank: int) -> Nodes:
        allowed = onnx.defs.get_schema(op_type).attributes
        node = helper.make_node(op_type, draft.reads[:3], draft.makes[:1], draft.name)
        node.attribute.extend(ir.to_proto(value) for name, value in source.attributes.items() if name in allowed)
        return [node]

    return nodes


def _same(draft: Draft, source: ir.Node, rank: int) -> Nodes:
    """The shape of the first input."""
    return [helper.make_node("Relu", draft.reads[:1], draft.makes[:1], draft.name)]


def _upsample(draft: Draft, source: ir.Node, rank: int) -> Nodes:
    """Every known dimension times its scale."""
    scales = [float(scale) for scale in source.attributes.get_ints("scales", [1] * rank)]
    name = f"{draft.name}/scales"
    return [
        helper.make_node("Constant", [], [name], name, value_floats=scales),
        helper.make_node("Resize", [draft.reads[0], "", name], draft.makes[:1], draft.name, mode="nearest"),
    ]


def _reorder_input(draft: Draft, source: ir.Node, rank: int) -> Nodes:
    """The same shape, channels moved to the front where they are last."""
    if not source.attributes.get_int("channels_last", 0):
        return _same(draft, source, rank)
    perm = [0, rank - 1, *range(1, rank - 1)]
    return [helper.make_node("Transpose", draft.reads[:1], draft.makes[:1], draft.name, perm=perm)]


def _reorder_output(draft: Draft, source: ir.Node, rank: int) -> Nodes:
    """The first channels only, moved to the end where they are wanted there."""
    bounds = [f"{draft.name}/{word}" for word in ("starts", "ends", "axes")]
    values = (0, source.attributes.get_int("channels", 0), 1)
    nodes = [
        helper.make_node("Constant", [], [name], name, value_ints=[value])
        for name, value in zip(bounds, values, strict=True)
    ]
    cut = f"{draft.name}/cut"
    last = source.attributes.get_int("channels_last", 0)
    nodes.append(helper.make_node("Slice", [draft.reads[0], *bounds], [cut], cut))
    perm = [0, *range(2, rank), 1] if last else list(range(rank))
    return [*nodes, helper.make_node("Transpose", [cut], draft.makes[:1], draft.name, perm=perm)]


def _fused_matmul(draft: Draft, source: ir.Node, rank: int) -> Nodes:
    """A product whose factors may be turned first."""
    if rank < 2 or any(source.attributes.get_int(name, 0) for name in NOT_BATCHED):
        return _unknown(draft)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    nodes, reads = [], list(draft.reads[:2])
    for position, flag in enumerate(("transA", "transB")):
        if source.attributes.get_int(flag, 0):
            turned = f"{draft.name}/{flag}"
            nodes.append(helper.make_node("Transpose", [reads[position]], [turned], turned, perm=perm))
            reads[position] = turned
    return [*nodes, helper.make_node("MatMul", reads, draft.makes[:1], draft.name)]


STAND_INS: Mapping[tuple[str, str], Callable[[Draft, ir.Node, int], Nodes]] = {
    (NCHWC, "Conv"): _named("Conv"),
    (NCHWC, "MaxPool"): _named("MaxPool"),
    (NCHWC, "AveragePool"): _named("AveragePool"),
    (NCHWC, "GlobalMaxPool"): _named("GlobalMaxPool"),
    (NCHWC, "GlobalAveragePool"): _named("GlobalAveragePool"),
    (NCHWC, "Upsample"): _upsample,
    (NCHWC, "ReorderInput"): _reorder_input,
    (NCHWC, "ReorderOutput"): _reorder_output,
    (CONTRIB, "FusedConv"): _named("Conv"),
    (CONTRIB, "FusedGemm"): _named("Gemm"),
    (CONTRIB, "FusedMatMul"): _fused_matmul,
    (CONTRIB, "Gelu"): _same,
    (CONTRIB, "BiasGelu"): _same,
    (CONTRIB, "FastGelu"): _same,
    (CONTRIB, "QuickGelu"): _same,
    (CONTRIB, "SkipLayerNormalization"): _same,
    ("", "SimplifiedLayerNormalization"): _same,
    (CONTRIB, "SkipSimplifiedLayerNormalization"): _same,
}
