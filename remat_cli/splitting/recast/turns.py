"""Ops that work place by place on a tensor whose axes were turned, and turned back behind, on the tensor as it was.

TensorFlow's and Keras's exporters leave pictures with their channels last between convolutions: rows are another axis
there than a convolution's, so that no loop along rows would go through. Each number is computed from the same ones, so
that bits are the same; what two Transposes copied is not copied at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.sizes import Dim, number
from remat_cli.onnx_io.read.interface import dims_of, fed_inputs
from remat_cli.onnx_io.read.normalise import fresh_name, names_in
from remat_cli.onnx_io.write.weights import weight_in
from remat_cli.splitting.loops.expands import drop_unread
from remat_cli.splitting.loops.open_shapes import Partable
from remat_cli.splitting.rules.record import Scope, WindowKind
from remat_cli.splitting.rules.table import rule_of

PREFIX = "remat/turned/"
Order = tuple[int, ...]
Types = Mapping[str, tuple[TensorType, ...]]


def without_turns(model: ir.Model, dims: Mapping[str, tuple[Dim, ...]], types: Types) -> Partable:
    """The model without such turns; `dims` are those of tensors for all sizes, `types` what ops make at the largest."""
    found = _turned(model, types)
    if not found:
        return Partable(model, {}, {})
    new = model.clone()
    writer = _Writer(new, found, dims, types)
    for node in [each for each in new.graph if each.name in found]:
        writer.turn_back(node)
    for node in list(new.graph):
        value = node.inputs[0] if node.op_type == "Transpose" else None
        if value is not None and value in writer.straight and _is_back(node, writer.orders[value]):
            node.outputs[0].replace_all_uses_with(writer.straight[value])
    drop_unread(new.graph, model.graph)
    return Partable(new, writer.dims, writer.types)


def _turned(model: ir.Model, types: Types) -> dict[str, Order]:
    """Ops that work place by place on turned tensors only, whose results are all turned back; with that order."""
    orders: dict[ir.Value, Order] = {}
    found: dict[ir.Node, Order] = {}
    for node in model.graph:
        order = _order_of(node)
        if order is not None:
            orders[node.outputs[0]] = order
            continue
        read = {orders[value] for value in node.inputs if value in orders}
        if len(read) == 1 and _is_by_place(node, orders, types):
            (found[node],) = read
            orders[node.outputs[0]] = found[node]
    while True:
        kept = {node: order for node, order in found.items() if _is_between_turns(node, found)}
        if len(kept) == len(found):
            return {node.name or "": order for node, order in kept.items()}
        found = kept


def _order_of(node: ir.Node) -> Order | None:
    """In which order a Transpose puts axes, if the op is one that says so."""
    perm = node.attributes.get("perm")
    return tuple(perm.as_ints()) if (node.domain, node.op_type) == ("", "Transpose") and perm is not None else None


def _is_by_place(node: ir.Node, orders: Mapping[ir.Value, Order], types: Types) -> bool:
    """Whether an op makes each number of those at its place, of turned tensors and of constants along one axis."""
    rule, made = rule_of(node.domain, node.op_type), types.get(node.name or "", ())
    if rule.windows is not WindowKind.BESIDE or rule.scope is not Scope.EVERY_SIZE or len(made) != 1:
        return False
    others = [value for value in node.inputs if value is not None and value not in orders]
    constants = [value.const_value for value in others]
    return all(each is not None and sum(size > 1 for size in dims_of(each)) <= 1 for each in constants)


def _is_between_turns(node: ir.Node, found: Mapping[ir.Node, Order]) -> bool:
    """Whether what an op reads is turned, and all that reads its result turns it back, or is another such op.

    What follows a convolution at once the runtime would take as one op with it, if nothing is between.
    """
    made = node.outputs[0]
    makers = [value.producer() for value in node.inputs if value is not None and value.const_value is None]
    is_turned = all(maker in found or (maker is not None and _order_of(maker) == found[node]) for maker in makers)
    users = [user for user, _ in made.uses()]
    is_read_back = all(user in found or _is_back(user, found[node]) for user in users)
    is_alone = len([value for value in node.inputs if value is not None]) == 1
    sources = (maker.inputs[0] for maker in makers if maker is not None and maker.op_type == "Transpose")
    origins = (source.producer() for source in sources if source is not None)
    is_behind_window = any(each is not None and rule_of(each.domain, each.op_type).has_windows for each in origins)
    return is_turned and is_read_back and not made.is_graph_output() and not (is_alone and is_behind_window)


def _is_back(node: ir.Node, order: Order) -> bool:
    """Whether a Transpose undoes another one of this order."""
    back = _order_of(node)
    return back is not None and tuple(order[axis] for axis in back) == tuple(range(len(order)))


@dataclass
class _Writer:
    """Writes ops anew on tensors that are not turned: `straight` are these by what they replace, `orders` its turn."""

    model: ir.Model
    found: Mapping[str, Order]
    known: Mapping[str, tuple[Dim, ...]]
    made: Types
    straight: dict[ir.Value, ir.Value] = field(default_factory=dict)
    orders: dict[ir.Value, Order] = field(default_factory=dict)
    dims: dict[str, tuple[Dim, ...]] = field(default_factory=dict)
    types: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken = names_in(self.model)

    def turn_back(self, node: ir.Node) -> None:
        """Write an op on the tensors before they are turned."""
        order, old = self.found[node.name or ""], node.outputs[0]
        reads = [None if value is None else self._read(value, order, node) for value in node.inputs]
        ((kind,), name) = self.made[node.name or ""], fresh_name(f"{PREFIX}{node.name}", self.taken)
        shape, lengths = [0] * len(order), [number(0)] * len(order)
        for axis, source in enumerate(order):
            shape[source], lengths[source] = kind.shape[axis], self.known[old.name or ""][axis]
        result = self._op(
            node, name, node.op_type, reads, TensorType(kind.dtype, tuple(shape)), *node.attributes.values()
        )
        self.dims[result.name or ""] = tuple(lengths)
        result.type, self.straight[old], self.orders[old] = old.type, result, order

    def _read(self, value: ir.Value, order: Order, near: ir.Node) -> ir.Value:
        """What is read in place of a value: it before the turn, a constant along the axis where it lies there.

        The constant's shape is known to a run only: else the runtime would put it into the weights of a convolution
        before it.
        """
        if value in self.straight:
            return self.straight[value]
        if value.const_value is None:
            maker = value.producer()
            source = None if maker is None else maker.inputs[0]
            return value if source is None else source
        own = tuple(dims_of(value.const_value))
        if prod(own) == 1:
            return value
        sizes = (*[1] * (len(order) - len(own)), *own)
        wanted = [1] * len(order)
        for axis, before in enumerate(order):
            wanted[before] = sizes[axis]
        prefix, whole = fresh_name(f"{PREFIX}{near.name}/{value.name}", self.taken), ("int64", (len(order),))
        said = weight_in(self.model.graph, f"{PREFIX}{'_'.join(map(str, wanted))}", np.array(wanted, np.int64))
        nothing = weight_in(self.model.graph, f"{PREFIX}nothing", np.array([0], np.int64))
        fed = next(iter(fed_inputs(self.model.graph)))
        rank = len(self.known[fed.name or ""])
        read = self._op(near, f"{prefix}/shape", "Shape", [fed], TensorType("int64", (rank,)))
        first = self._op(near, f"{prefix}/first", "Gather", [read, nothing], TensorType("int64", (1,)))
        zero = self._op(near, f"{prefix}/zero", "Mul", [first, nothing], TensorType("int64", (1,)))
        shape = self._op(near, f"{prefix}/late", "Add", [said, zero], TensorType(*whole))
        kind = TensorType(self.made[near.name or ""][0].dtype, tuple(wanted))
        found = self._op(near, prefix, "Reshape", [value, shape], kind)
        found.type = value.type
        return found

    def _op(
        self,
        near: ir.Node,
        name: str,
        op_type: str,
        reads: list[ir.Value | None],
        kind: TensorType,
        *attributes: ir.Attr,
    ) -> ir.Value:
        """An op before another one, with what it makes at the largest sizes."""
        made = ir.Value(name=f"{name}/made")
        domain = near.domain if near.op_type == op_type else ""
        self.model.graph.insert_before(near, ir.Node(domain, op_type, reads, attributes, outputs=[made], name=name))
        self.types[name], self.dims[f"{name}/made"] = (kind,), tuple(map(number, kind.shape))
        return made
