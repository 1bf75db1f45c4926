"""Attention with grouped queries, one group of heads after another: what it takes for itself is that of one group.

Measured with ONNX Runtime 1.32.0: heads that share a key and a value head have the bits of the whole op, 0 of 388
slices of groups differ (1 to 1,024 queries on pasts of 0 to 1,000, heads of 16 to 128, 1, 2, 4 and 8 threads; rotated,
in windows, with capped scores, bias, sinks).
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.op_facts import CONTRIB, ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.rules.attention import BIAS_OF_SCORES, SINKS
from remat_cli.splitting.tiles.view import ModelView

FLOAT, GROUPED = "float", (CONTRIB, "GroupQueryAttention")
QUERIES, SHARED, PASTS = 0, (1, 2), (3, 4)  # inputs
SLICED_SINCE = 10  # opset: bounds of a Slice are inputs
HEADS_LAST, HEADS_SECOND = 2, 1  # axes
MADE_AXES = (HEADS_LAST, HEADS_SECOND, HEADS_SECOND)  # by output


def groups_apart(cast: Recast, least_bytes: int, forbidden: frozenset[str]) -> Recast:
    """The model in which attention that takes so many bytes for itself takes them for one group at a time."""
    view = cast.view
    large = (op for op in cast.order if cast.costs[op].workspace_bytes >= least_bytes)
    taken = {op for op in large if view.graph.ops[op].name not in forbidden and has_groups(view, op)}
    return taken_apart(cast, {op: op for op in taken}, parts_of_groups)


def has_groups(view: ModelView, op: int) -> bool:
    """Whether an op is such attention with several groups, of queries, keys and values that come apart."""
    spec, made = view.ops[op], view.makes[op]
    if spec.key != GROUPED or captured_values(view.nodes[op]) or op in view.of_value_lengths:
        return False
    if view.model.graph.opset_imports.get(ONNX, 1) < SLICED_SINCE or spec.integer("kv_num_heads", 1) < 2:
        return False
    comes_apart = all(map(spec.has_input, (QUERIES, *SHARED)))
    is_measured = not any(map(spec.has_input, range(SINKS + 1, len(spec.inputs)))) and len(made) == len(MADE_AXES)
    return comes_apart and is_measured and all(name and view.tensors[name].dtype == FLOAT for name in made)


def parts_of_groups(rewrite: Rewrite, op: int) -> Generator[Draft]:
    """Slices of what each group reads, the op on these, and all groups' results joined."""
    view, cost = rewrite.view, rewrite.cast.costs[op]
    spec, own, made = view.ops[op], view.graph.ops[op].name, view.makes[op]
    count, heads = spec.integer("kv_num_heads", 1), spec.integer("num_heads", 1)
    attributes = (ir.AttrInt64("num_heads", heads // count), ir.AttrInt64("kv_num_heads", 1))
    # inputs that have something of each head, and the axis along which heads lie
    heads_axes = {**dict.fromkeys((QUERIES, *SHARED), HEADS_LAST), **dict.fromkeys(PASTS, HEADS_SECOND), SINKS: 0}
    if spec.has_input(BIAS_OF_SCORES) and spec.input_shape(BIAS_OF_SCORES)[HEADS_SECOND] > 1:
        heads_axes[BIAS_OF_SCORES] = HEADS_SECOND
    parts: list[tuple[str, ...]] = []
    for group in range(count):
        reads = list(view.reads[op])
        for place, axis in ((place, axis) for place, axis in heads_axes.items() if spec.has_input(place)):
            part = _Part(rewrite, reads[place], axis, group, count)
            reads[place] = part.named("group")
            yield part.sliced(op, reads[place])
        results = tuple(
            _Part(rewrite, name, axis, group, count).named("made") for name, axis in zip(made, MADE_AXES, strict=True)
        )
        name = rewrite.name(f"{own}/group_{group}")
        rewrite.count(name, op, cost.time_ns // count, cost.workspace_bytes // count)
        yield Draft(name, GROUPED[1], tuple(reads), results, CONTRIB, source=view.nodes[op], changed=attributes)
        parts.append(results)
    for place, axis in enumerate(MADE_AXES):
        name = own if place == 0 else rewrite.name(f"{own}/joined_{place}")
        rewrite.count(name, op, 0)
        joined = tuple(results[place] for results in parts)
        yield Draft(name, "Concat", joined, (made[place],), changed=(ir.AttrInt64("axis", axis),))


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
