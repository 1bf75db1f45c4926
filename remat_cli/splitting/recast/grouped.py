"""Attention with grouped queries or with a past, some heads after others, which holds less.

Measured with ONNX Runtime 1.32.0: heads that share a key and a value head have the bits of the whole op, 0 of 388
slices of groups differ (1 to 1,024 queries on pasts of 0 to 1,000, heads of 16 to 128, 1, 2, 4 and 8 threads; rotated,
in windows, with capped scores, bias, sinks). So have heads of MultiHeadAttention: 0 of 1,103 slices with a past and 0
of 332 without one differ (1 to 257 queries on pasts of 0 to 200, 2 to 12 heads of 8 to 80, 1, 2, 4 and 8 threads;
causal or not, with masks, biases of all kinds).
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.op_facts import CONTRIB, ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.rules.attention import BIAS, BIAS_OF_SCORES, FURTHER, MEMORY, SCORES, SINKS
from remat_cli.splitting.tiles.op_view import OpView
from remat_cli.splitting.tiles.view import ModelView

FLOAT = "float"
QUERIES, SHARED, PASTS = 0, (1, 2), (3, 4)  # inputs of GroupQueryAttention
SLICED_SINCE = 10  # opset: bounds of a Slice are inputs
HEADS_LAST, HEADS_SECOND = 2, 1  # axes
MADE_AXES = (HEADS_LAST, HEADS_SECOND, HEADS_SECOND)  # by output
MOST_PARTS = 8  # of MultiHeadAttention, each of several heads


@dataclass(frozen=True)
class _Heads:
    """Into how many groups the heads of an op come apart, and the axis along which they lie, by input.

    `counts` are the attributes that say how many heads there are. `added` is the input whose numbers are added to
    queries, keys and values, all in one constant (None: there is no such input).
    """

    groups: int
    axes: Mapping[int, int]
    counts: Mapping[str, int]
    added: int | None = None


def groups_apart(cast: Recast, least_bytes: int, forbidden: frozenset[str]) -> Recast:
    """The model in which attention that takes so many bytes for itself takes them for one group at a time."""
    view = cast.view
    large = (op for op in cast.order if cast.costs[op].workspace_bytes >= least_bytes)
    taken = {op for op in large if view.graph.ops[op].name not in forbidden and has_groups(view, op)}
    return taken_apart(cast, {op: op for op in taken}, parts_of_groups)


def has_groups(view: ModelView, op: int) -> bool:
    """Whether an op is such attention with several groups, of queries, keys and values that come apart."""
    spec, made = view.ops[op], view.makes[op]
    if spec.key not in _HEADS or captured_values(view.nodes[op]) or op in view.of_value_lengths:
        return False
    if view.model.graph.opset_imports.get(ONNX, 1) < SLICED_SINCE or not all(map(spec.has_input, (QUERIES, *SHARED))):
        return False
    heads = _HEADS[spec.key](spec)
    is_float = bool(made) and all(name and view.tensors[name].dtype == FLOAT for name in made)
    return heads is not None and heads.groups > 1 and is_float


def _of_grouped(spec: OpView) -> _Heads | None:
    """GroupQueryAttention: heads that share a key and a value head are a group."""
    if any(map(spec.has_input, range(SINKS + 1, len(spec.inputs)))) or len(spec.outputs) != len(MADE_AXES):
        return None
    axes = {**dict.fromkeys((QUERIES, *SHARED), HEADS_LAST), **dict.fromkeys(PASTS, HEADS_SECOND), SINKS: 0}
    if spec.has_input(BIAS_OF_SCORES) and spec.input_shape(BIAS_OF_SCORES)[HEADS_SECOND] > 1:
        axes[BIAS_OF_SCORES] = HEADS_SECOND
    counts = {name: spec.integer(name, 1) for name in ("num_heads", "kv_num_heads")}
    return _Heads(counts["kv_num_heads"], axes, counts)


def _of_many(spec: OpView) -> _Heads | None:
    """MultiHeadAttention that cannot go by queries, as it has a past or is causal; a bias is to be a constant."""
    goes_by_queries = not (any(map(spec.has_input, MEMORY)) or spec.integer("unidirectional", 0))
    shapes = [spec.input_shape(place) for place in (QUERIES, *SHARED)]
    is_known = len(shapes[0]) == HEADS_LAST + 1 and all(len(shape) in (3, 4) for shape in shapes)
    if goes_by_queries or not is_known or any(map(spec.has_input, range(FURTHER, len(spec.inputs)))):
        return None
    if spec.has_input(BIAS) and spec.constant(BIAS) is None:
        return None
    by_rank = {3: HEADS_LAST, 4: HEADS_SECOND}
    axes = {place: by_rank[len(shape)] for place, shape in enumerate(shapes)}
    axes |= dict.fromkeys(MEMORY, HEADS_SECOND)
    if spec.has_input(SCORES) and spec.input_shape(SCORES)[HEADS_SECOND] > 1:
        axes[SCORES] = HEADS_SECOND
    heads = spec.integer("num_heads", 1)
    groups = max((count for count in range(2, MOST_PARTS + 1) if heads % count == 0), default=heads)
    return _Heads(groups, axes, {"num_heads": heads}, BIAS if spec.has_input(BIAS) else None)


_HEADS: Mapping[tuple[str, str], Callable[[OpView], _Heads | None]] = {
    (CONTRIB, "GroupQueryAttention"): _of_grouped,
    (CONTRIB, "MultiHeadAttention"): _of_many,
}


def parts_of_groups(rewrite: Rewrite, op: int) -> Generator[Draft]:
    """Slices of what each group reads, the op on these, and all groups' results joined."""
    view, cost = rewrite.view, rewrite.cast.costs[op]
    spec, own, made = view.ops[op], view.graph.ops[op].name, view.makes[op]
    heads = present(_HEADS[spec.key](spec), "the heads of an op")
    attributes = tuple(ir.AttrInt64(name, count // heads.groups) for name, count in heads.counts.items())
    parts: list[tuple[str, ...]] = []
    for group in range(heads.groups):
        reads = list(view.reads[op])
        for place, axis in ((place, axis) for place, axis in heads.axes.items() if spec.has_input(place)):
            part = _Part(rewrite, reads[place], axis, group, heads.groups)
            reads[place] = part.named("group")
            yield part.sliced(op, reads[place])
        if heads.added is not None:
            reads[heads.added] = _added(rewrite, op, heads.added, (heads.groups, group))
        results = tuple(
            _Part(rewrite, name, axis, group, heads.groups).named("made")
            for name, axis in zip(made, MADE_AXES, strict=False)
        )
        name = rewrite.name(f"{own}/group_{group}")
        rewrite.count(name, op, cost.time_ns // heads.groups, cost.workspace_bytes // heads.groups)
        yield Draft(name, spec.key[1], tuple(reads), results, CONTRIB, source=view.nodes[op], changed=attributes)
        parts.append(results)
    for place, result in enumerate(made):
        name = own if place == 0 else rewrite.name(f"{own}/joined_{place}")
        rewrite.count(name, op, 0)
        joined = tuple(results[place] for results in parts)
        yield Draft(name, "Concat", joined, (result,), changed=(ir.AttrInt64("axis", MADE_AXES[place]),))


def _added(rewrite: Rewrite, op: int, place: int, part_of: tuple[int, int]) -> str:
    """A constant: what one of so many groups of heads adds to queries, keys and values."""
    (groups, group), spec, name = part_of, rewrite.view.ops[op], rewrite.view.reads[op][place]
    whole = present(spec.constant(place), "a bias that is a constant")
    width = spec.input_shape(QUERIES)[-1]
    lists = (whole[:width], whole[width : 2 * width], whole[2 * width :])
    part = np.concatenate([np.split(each, groups)[group] for each in lists])
    return rewrite.constant(part, f"{name}/group_{group}")


@dataclass(frozen=True)
class _Part:
    """One of several equal parts of a tensor along an axis."""

    rewrite: Rewrite
    source: str
    axis: int
    at: int
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        """As long as the tensor along other axes."""
        known = self.rewrite.types.get(self.source)
        whole = tuple(self.rewrite.weights[self.source].shape.numpy()) if known is None else known.shape
        return (*whole[: self.axis], whole[self.axis] // self.count, *whole[self.axis + 1 :])

    def named(self, what: str) -> str:
        """A name for it, whose type is known from now on."""
        name = self.rewrite.name(f"{self.source}/{what}_{self.at}")
        self.rewrite.types[name] = TensorType(FLOAT, self.shape)
        self.rewrite.alike[name] = self.source
        return name

    def sliced(self, op: int, result: str) -> Draft:
        """The draft that cuts it out of the tensor."""
        length = self.shape[self.axis]
        bounds = ((self.at * length, "start"), ((self.at + 1) * length, "stop"), (self.axis, "axis"))
        constants = (self.rewrite.constant(np.array([number], np.int64), f"{result}/{what}") for number, what in bounds)
        name = self.rewrite.name(f"{result}/slice")
        self.rewrite.count(name, op, 0)
        return Draft(name, "Slice", (self.source, *constants), (result,))
