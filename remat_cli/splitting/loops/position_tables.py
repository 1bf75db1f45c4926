"""Whole numbers that follow from positions, such as the buckets of distances in T5, as a table of all that can come.

Between them lies a logarithm or the like, which the runtime computes in packets of elements: bits depend on where in
its tensor an element lies, so that tiles may differ from the whole. The whole number that is made of it in the end need
not: who uses this has to see so, by running the chain on each number, in packets and alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.values.sizes import Dim
from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.write.weights import new_weight
from remat_cli.splitting.loops.expands import drop_unread
from remat_cli.splitting.rules.record import ElementKind
from remat_cli.splitting.rules.table import rule_of

PREFIX = "remat/table/"
OLDEST_OPSET = 11  # in which Gather counts indices below nought from the end
MOST_ENTRIES = 2**17
WHOLE_NUMBERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
SOURCE, RESULT = "source", "result"
ALONE = 3
"""Numbers in a row that no packet holds: the shortest ones have four."""
Numbers = npt.NDArray[np.generic]


@dataclass(frozen=True)
class NumberChain:
    """Ops that make a whole number of each of a tensor's, which are from `low` to `high`."""

    source: ir.Value
    result: ir.Value
    ops: tuple[ir.Node, ...]
    low: int
    high: int

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """All that the source may hold, in the order of the table: those below nought count from its end."""
        return np.array([*range(self.high + 1), *range(self.low, min(0, self.high + 1))], np.int64)

    def alone(self) -> ir.Model:
        """The chain as a model that reads any number of the source's numbers."""
        nodes, result, weights, source = self._copied()
        return _model((source, ["n"]), (result, ["n"]), nodes, weights, self.ops[0].graph)

    def in_rows(self) -> ir.Model:
        """The chain as a model that reads rows of ALONE numbers and runs on each row by itself."""
        nodes, result, weights, source = self._copied()
        source.shape, result.shape = ir.Shape([ALONE]), ir.Shape([ALONE])
        body = ir.Graph([source], [result], nodes=nodes, name="row")
        rows, made = (ir.Value(name=name, type=value.type) for name, value in ((SOURCE, source), (RESULT, result)))
        source.name, result.name = "row", "made"
        attributes = [ir.AttrInt64("num_scan_inputs", 1), ir.AttrGraph("body", body)]
        scan = ir.Node("", "Scan", [rows], attributes, outputs=[made], name="rows")
        return _model((rows, ["n", ALONE]), (made, ["n", ALONE]), [scan], weights, self.ops[0].graph)

    def _copied(self) -> tuple[list[ir.Node], ir.Value, list[ir.Value], ir.Value]:
        """Nodes of its own like the chain's, their result, the weights that they read, and the source."""
        made = {self.source: ir.Value(name=SOURCE, type=self.source.type, shape=ir.Shape(["n"]))}
        weights: list[ir.Value] = []
        nodes: list[ir.Node] = []
        for op in self.ops:
            for value in op.inputs:
                if value is not None and value not in made:
                    number = present(_constant(value), "a constant that a position is made of")
                    made[value] = new_weight(f"weight{len(weights)}", number.reshape(()))
                    weights.append(made[value])
            reads = [None if value is None else made[value] for value in op.inputs]
            node = ir.Node(op.domain, op.op_type, reads, op.attributes.values(), num_outputs=1, name=op.name)
            node.outputs[0].name, node.outputs[0].type = f"made{len(nodes)}", op.outputs[0].type
            made[op.outputs[0]] = node.outputs[0]
            nodes.append(node)
        return nodes, made[self.result], weights, made[self.source]

    def looked_up(self, table: Numbers, *, in_rows: bool = False) -> ir.Model:
        """A model that reads the table instead, in rows like `in_rows`."""
        shape: list[int | str] = ["n", ALONE] if in_rows else ["n"]
        source = ir.Value(name=SOURCE, type=self.source.type)
        weight = new_weight(PREFIX, table)
        node = _lookup(weight, source, "lookup")
        node.outputs[0].type = self.result.type
        return _model((source, shape), (node.outputs[0], shape), [node], [weight], self.ops[0].graph)


def find_chains(model: ir.Model, dims: Mapping[str, tuple[Dim, ...]], most: Mapping[str, int]) -> list[NumberChain]:
    """Chains with an op that is computed in packets; `dims` are for all sizes, `most` are the largest ones."""
    if model.graph.opset_imports.get("", 0) < OLDEST_OPSET:
        return []
    roots: dict[ir.Value, ir.Value] = {}
    ranges: dict[ir.Value, tuple[int, int]] = {}
    cones: dict[ir.Value, dict[ir.Node, None]] = {}
    for node in model.graph:
        made = node.outputs[0]
        root = _root(node, roots, dims)
        if root is not None:
            roots[made] = root
            cones[made] = dict.fromkeys(each for value in node.inputs if value in cones for each in cones[value])
            cones[made][node] = None
            continue
        found = _range(node, ranges, dims, most)
        if found is not None:
            ranges[made], roots[made] = found, made
    return [
        NumberChain(roots[made], made, tuple(cone), *ranges[roots[made]])
        for made, cone in cones.items()
        if _is_worth_it(made, cone, roots) and sum(map(abs, ranges[roots[made]])) < MOST_ENTRIES
    ]


def with_tables(model: ir.Model, found: Sequence[tuple[NumberChain, Numbers]]) -> ir.Model:
    """The model with a Gather from a table for each chain; ops that nothing reads any more are left out."""
    if not found:
        return model
    new = model.clone()
    values = {value.name: value for value in new.graph.inputs}
    values |= {value.name: value for node in new.graph for value in node.outputs}
    for at, (chain, table) in enumerate(found):
        old, weight = values[chain.result.name], new_weight(f"{PREFIX}{at}", table)
        new.graph.register_initializer(weight)
        maker = present(old.producer(), "the op that makes a position")
        node = _lookup(weight, values[chain.source.name], maker.name or "")
        made = node.outputs[0]
        made.type, made.shape = old.type, old.shape
        new.graph.insert_before(maker, node)
        old.replace_all_uses_with(made)
        old.name, made.name = f"{PREFIX}{at}/{old.name}", old.name
        new.graph.remove(maker, safe=True)
    drop_unread(new.graph, model.graph)
    return new


def _root(node: ir.Node, roots: Mapping[ir.Value, ir.Value], dims: Mapping[str, tuple[Dim, ...]]) -> ir.Value | None:
    """The tensor of whose numbers an op makes its own, one by one, beside constants of one element."""
    rule = rule_of(node.domain, node.op_type)
    if len(node.outputs) != 1 or rule.elements is None:
        return None
    read = [value for value in node.inputs if value is not None and _constant(value) is None]
    found = {roots.get(value) for value in read}
    root = found.pop() if len(found) == 1 else None
    shape = dims.get(node.outputs[0].name or "")
    return root if root is not None and shape is not None and shape == dims.get(root.name or "") else None


def _range(
    node: ir.Node,
    ranges: Mapping[ir.Value, tuple[int, int]],
    dims: Mapping[str, tuple[Dim, ...]],
    most: Mapping[str, int],
) -> tuple[int, int] | None:
    """The least and the most that an op makes of whole numbers, for all sizes."""
    if node.domain or len(node.outputs) != 1 or node.outputs[0].dtype not in WHOLE_NUMBERS:
        return None
    if node.op_type == "Range":
        return _positions(node, dims, most)
    constants = [(value, _constant(value)) for value in node.inputs]
    known = [
        (int(number.item()), int(number.item())) if number is not None else None if value is None else ranges.get(value)
        for value, number in constants
    ]
    first = known[0] if known else None
    if first is None or rule_of(node.domain, node.op_type).moves_numbers:
        return first
    second = known[1] if len(known) == 2 else None
    if second is None or node.op_type not in ("Add", "Sub"):
        return None
    sign = 1 if node.op_type == "Add" else -1
    ends = [one + sign * other for one in first for other in second]
    return min(ends), max(ends)


def _positions(node: ir.Node, dims: Mapping[str, tuple[Dim, ...]], most: Mapping[str, int]) -> tuple[int, int] | None:
    start, _, step = (None if value is None else _constant(value) for value in node.inputs)
    shape = dims.get(node.outputs[0].name or "")
    if start is None or step is None or shape is None:
        return None
    last = int(start.item()) + int(step.item()) * (shape[0].at(most) - 1)
    return min(int(start.item()), last), max(int(start.item()), last)


def _is_worth_it(made: ir.Value, cone: Mapping[ir.Node, None], roots: Mapping[ir.Value, ir.Value]) -> bool:
    """Whether a chain ends here, in a whole number, and has an op in it that tiles must not run."""
    if made.dtype not in WHOLE_NUMBERS or roots[made].dtype not in WHOLE_NUMBERS:
        return False
    goes_on = [roots.get(user.outputs[0]) is roots[made] for user, _ in made.uses()]
    return not all(goes_on) and any(rule_of(node.domain, node.op_type).elements is ElementKind.PACKETS for node in cone)


def _constant(value: ir.Value | None) -> Numbers | None:
    """A constant of one element."""
    tensor = fixed_value(value)
    return np.asarray(tensor.numpy()) if tensor is not None and tensor.size == 1 else None


def _lookup(table: ir.Value, source: ir.Value, name: str) -> ir.Node:
    return ir.Node("", "Gather", [table, source], [ir.AttrInt64("axis", 0)], num_outputs=1, name=name)


Port = tuple[ir.Value, list[int | str]]


def _model(source: Port, result: Port, nodes: Sequence[ir.Node], weights: Sequence[ir.Value], like: object) -> ir.Model:
    """A model of one input and one output, each of a shape."""
    assert isinstance(like, ir.Graph)
    for name, (value, shape) in ((SOURCE, source), (RESULT, result)):
        value.name, value.shape = name, ir.Shape(shape)
    imports = dict(like.opset_imports)
    graph = ir.Graph([source[0]], [result[0]], nodes=nodes, initializers=weights, name="chain", opset_imports=imports)
    return ir.Model(graph, ir_version=8)
