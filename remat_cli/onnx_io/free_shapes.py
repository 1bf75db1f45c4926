"""Shapes for runs of any size: what inference is shown in place of ops that only ONNX Runtime knows, and what follows.

The runtime infers shapes of its own ops when it loads a file; what it would prove must be known beforehand, so each
of these ops is shown as ONNX ops with the same rule. An op without a row is shown as an op of an unknown domain.

ONNX Runtime keeps a dead buffer for a later tensor of the same declared shape, which raises the peak. Two shapes with
differently named dimensions are never the same, so every buffer gets names of its own. Tensors that share a buffer by
working in place must agree in all dimensions, so they share the names. A dimension that shape inference proves
(channels, mostly, which come from weights) cannot be hidden, and is declared as the number it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import helper

from remat_cli.core.graph import TensorType
from remat_cli.onnx_io.assemble import Draft
from remat_cli.onnx_io.interface import DATA_TYPES, dims_of
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


Dims = tuple[int | str | None, ...]
VISIBLE_ELEMENTS = 64  # constants up to this size may steer shape inference (shapes, axes, scales)


@dataclass(frozen=True)
class Canvas:
    """What shape inference needs to know of the rewritten model.

    `fixed` are shapes that are not ours to choose (inputs and outputs of the model); `weights` are the constants;
    `groups` numbers the values made by ops such that those in one group have one shape, known or not.
    """

    drafts: Sequence[Draft]
    types: Mapping[str, TensorType]
    fixed: Mapping[str, Dims | None]
    weights: Mapping[str, ir.TensorProtocol]
    groups: Mapping[str, int]
    opset_imports: Mapping[str, int]


def free_shapes(canvas: Canvas) -> dict[str, Dims]:
    """Shape to declare for each value in `groups`: numbers where inference proves them, else names of the group."""
    proved: dict[int, frozenset[int]] = {}
    skeleton = _skeleton(canvas)
    while True:
        shapes = _declare(canvas, proved)
        del skeleton.graph.value_info[:]
        skeleton.graph.value_info.extend(_info(name, canvas, dims) for name, dims in shapes.items())
        found = _proved(canvas, onnx.shape_inference.infer_shapes(skeleton).graph.value_info)
        grown = {group: axes | proved.get(group, frozenset()) for group, axes in found.items()}
        if all(axes == proved.get(group, frozenset()) for group, axes in grown.items()):
            return shapes
        proved = {**proved, **grown}


def known_shapes(
    drafts: Sequence[Draft], shapes: Mapping[str, Dims], least_bytes: int, sizes: Mapping[str, int]
) -> list[str]:
    """Values whose readers should not see their shape, because it makes the shape of a large tensor known.

    They are the values of known shape that the maker of such a tensor reads, else those whose shape is known in part,
    or the tensor itself if there are none; for Expand also the constant that says how far.
    """
    known = {name for name, dims in shapes.items() if dims and all(isinstance(dim, int) for dim in dims)}
    partly = {name for name, dims in shapes.items() if any(isinstance(dim, int) for dim in dims)}
    targets: dict[str, None] = {}
    for draft in drafts:
        makes = [name for name in draft.makes if name in known]
        if any(sizes.get(name, 0) >= least_bytes for name in makes):
            sources = [name for name in draft.all_reads if name in known or name in _said_by(draft)]
            sources = sources or [name for name in draft.all_reads if name in partly]
            targets.update(dict.fromkeys(sources or makes))
    return list(targets)


def _said_by(draft: Draft) -> tuple[str, ...]:
    """What says the shape of an op's result whatever else it reads."""
    return draft.reads[1:2] if draft.op_type == "Expand" and draft.domain in ("", "ai.onnx") else ()


def _declare(canvas: Canvas, proved: Mapping[int, frozenset[int]]) -> dict[str, Dims]:
    return {
        name: tuple(
            dim if axis in proved.get(group, ()) else f"r{group}d{axis}"
            for axis, dim in enumerate(canvas.types[name].shape)
        )
        for name, group in canvas.groups.items()
    }


def _proved(canvas: Canvas, inferred: Iterable[onnx.ValueInfoProto]) -> dict[int, frozenset[int]]:
    """Axes of each group that inference knows of one of its members."""
    axes: dict[int, frozenset[int]] = {}
    for info in inferred:
        group = canvas.groups.get(info.name)
        dims = info.type.tensor_type.shape.dim
        if group is not None and len(dims) == len(canvas.types[info.name].shape):
            known = frozenset(axis for axis, dim in enumerate(dims) if dim.HasField("dim_value"))
            axes[group] = axes.get(group, frozenset()) | known
    return axes


def _skeleton(canvas: Canvas) -> onnx.ModelProto:
    """The graph without large weights, for ONNX shape inference."""
    visible = {name: tensor for name, tensor in canvas.weights.items() if tensor.size <= VISIBLE_ELEMENTS}
    hidden = {name: tensor for name, tensor in canvas.weights.items() if name not in visible}
    made = {name for draft in canvas.drafts for name in draft.makes}
    inputs = [_info(name, canvas, dims) for name, dims in canvas.fixed.items() if name not in made]
    inputs += [
        helper.make_tensor_value_info(name, int(tensor.dtype), dims_of(tensor)) for name, tensor in hidden.items()
    ]
    graph = helper.make_graph(
        [node for draft in canvas.drafts for node in stand_in(draft, _rank(canvas, draft))],
        "shapes",
        inputs,
        [_info(name, canvas, dims) for name, dims in canvas.fixed.items() if name in made],
        [ir.to_proto(ir.tensor(t.numpy(), dtype=t.dtype, name=name)) for name, t in visible.items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in canvas.opset_imports.items()]
    imports.append(helper.make_opsetid(UNKNOWN_DOMAIN, 1))
    return helper.make_model(graph, opset_imports=imports)


def _info(name: str, canvas: Canvas, dims: Dims | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, int(DATA_TYPES[canvas.types[name].dtype]), dims)


def _rank(canvas: Canvas, draft: Draft) -> int:
    """Dimensions of an op's first result; 0 where it is not a tensor."""
    kind = canvas.types.get(draft.makes[0]) if draft.makes else None
    return len(kind.shape) if kind else 0
