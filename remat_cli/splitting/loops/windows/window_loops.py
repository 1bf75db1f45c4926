"""The body of a loop over tiles of windowed ops: the first, an inner or the last tile, each a branch of its own.

Tensors in blocks of channels are cut and joined in the shape in which they lie in memory, with an axis for the block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.values.sizes import Dim, number
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView
from remat_cli.splitting.loops.loop_values import SizeValues
from remat_cli.splitting.loops.whole_packets import in_whole_packets
from remat_cli.splitting.loops.windows.forms import BLOCKED_RANK, Edge, Part, PartOp, TileForm

KINDS = ("first", "inner", "last")
TO_END = np.iinfo(np.int64).max
OPENED = "/opened"
"""Behind a tensor's name: its dimensions with an axis for the block."""
Copier = Callable[[str, ir.Node], ir.Node]


def opened_dims(sized: SizedView) -> dict[str, tuple[Dim, ...]]:
    """Dimensions of tensors in blocks as they lie in memory, under names of their own."""
    view = sized.view
    return {f"{name}{OPENED}": _opened(sized.dims[name], view.channel_block) for name in blocked_names(sized)}


def blocked_names(sized: SizedView) -> frozenset[str]:
    """Tensors in blocks of channels whose shape does not say so."""
    return frozenset(name for name in sized.view.blocked if len(sized.dims.get(name, ())) == BLOCKED_RANK)


def _opened(dims: Sequence[Dim], block: int) -> tuple[Dim, ...]:
    items, channels, *rest = dims
    return (items, number(channels.offset // block), *rest, number(block))


@dataclass(frozen=True)
class WindowBody:
    """What the branches of one region's loop are written of.

    `nodes` are the region's nodes by op, `values` those of the model by name, `zero` the loop's, `units` the bounds of
    a tile.
    """

    sized: SizedView
    numbers: SizeValues
    region: LoopRegion
    prefix: str
    nodes: Mapping[int, ir.Node]
    values: Mapping[str | None, ir.Value]
    zero: ir.Value
    units: tuple[ir.Value, ir.Value]
    copy: Copier

    def tile(self, flags: tuple[ir.Value, ir.Value], exits: Sequence[str]) -> tuple[ir.Node, list[ir.Value]]:
        """A node that makes a tile of each exit, as it lies in memory; `flags`: whether it is the first, the last."""
        windows = present(self.region.windows, "the windows of a loop")
        graphs = []
        for kind, form in zip(KINDS, windows.forms, strict=True):
            writer = _Branch(self, f"{self.prefix}{kind}/", form)
            for work in form.ops:
                writer.run(work)
            joinable = [writer.joinable(name) for name in exits]
            graphs.append(ir.Graph([], joinable, nodes=writer.nodes, name=writer.prefix))
        first, inner, last = graphs
        rest, made = self._choice("rest", flags[1], (last, inner), exits)
        middle = ir.Graph([], made, nodes=[rest], name=f"{self.prefix}rest")
        return self._choice("tile", flags[0], (first, middle), exits)

    def _choice(
        self, name: str, flag: ir.Value, graphs: tuple[ir.Graph, ir.Graph], exits: Sequence[str]
    ) -> tuple[ir.Node, list[ir.Value]]:
        made = []
        for each in exits:  # a tile of an exit, of which only numbers are known
            tile, dims = f"{self.prefix}{name}/{each}", memory_dims(self.sized, each)
            shape = ir.Shape([f"{tile}/{axis}" if dim.terms else dim.offset for axis, dim in enumerate(dims)])
            made.append(ir.Value(name=tile, type=self.values[each].type, shape=shape))
        branches = [ir.AttrGraph("then_branch", graphs[0]), ir.AttrGraph("else_branch", graphs[1])]
        return ir.Node("", "If", [flag], branches, outputs=made, name=f"{self.prefix}{name}"), made


def memory_dims(sized: SizedView, name: str) -> tuple[Dim, ...]:
    """The dimensions of a tensor as it lies in memory."""
    dims = sized.dims[name]
    return _opened(dims, sized.view.channel_block) if name in blocked_names(sized) else tuple(dims)


@dataclass
class _Branch:
    """One kind of tile while it is written: its nodes, what they hold of tensors, and what was cut already.

    Values that share a buffer have one label, which names their dimensions.
    """

    body: WindowBody
    prefix: str
    form: TileForm
    nodes: list[ir.Node] = field(default_factory=list)
    held: dict[str, ir.Value] = field(default_factory=dict)
    cuts: dict[object, ir.Value] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def run(self, work: PartOp) -> None:
        """An op on the parts that it reads, and of what it makes the part that is asked for."""
        body, view = self.body, self.body.sized.view
        node = body.nodes[work.op]
        reads = [self._read(work, at, value) for at, value in enumerate(node.inputs)]
        if view.rules[work.op].counts_places:
            reads = [*self._counted(work, node), *reads[2:]]
        twin = body.copy(self.prefix, node)
        for at, value in enumerate(reads):
            twin.replace_input_with(at, value)
        for each in work.constants:
            name = f"{body.prefix}constant/{each.position}/{each.dtype[1:]}/{'_'.join(map(str, each.array.ravel()))}"
            twin.replace_input_with(each.position, body.numbers.weight(name, each.array))
        twin.attributes.update({each.name: each for each in ir.convenience.convert_attributes(dict(work.attributes))})
        is_longer, results = work.op in body.sized.longer, list(twin.outputs)
        if is_longer:
            results = [in_whole_packets(body.numbers, self.nodes, twin, view.ops[work.op])]
        else:
            self.nodes.append(twin)
        for name, made in zip(view.makes[work.op], results, strict=True):
            if name:
                self._declare(made, name, (None if is_longer else self._buffer_of(work, name, reads)) or name)
                self.held[name] = made
                if work.makes != work.asked:
                    inside = self._inside(work.makes, work.asked)
                    self.held[name] = self._cut(name, made, inside, (work.asked, "asked"))
                self._cut_for_readers(name)

    def _buffer_of(self, work: PartOp, name: str, reads: Sequence[ir.Value | None]) -> str | None:
        """The label of what an op may write its result over: as many rows, that nothing reads later."""
        view, later = self.body.sized.view, self.form.ops[self.form.ops.index(work) + 1 :]
        pieces = {(view.reads[each.op][at], need) for each in later for at, need in each.needs.items()}
        for at, need in work.needs.items():
            source, value = view.reads[work.op][at], reads[at]
            may_be = (source, name) in view.in_place and need == work.makes and (source, need) not in pieces
            if may_be and value is not None and value.name in self.labels:
                return self.labels[value.name]
        return None

    def _cut_for_readers(self, name: str) -> None:
        """Cut at once what others read in part, so that the rows around it need not wait for them.

        What reads all of it waits for that, whatever order the runtime would choose.
        """
        holds, reads = self.form.holds[name], self.body.sized.view.reads
        needs = (need for work in self.form.ops for at, need in work.needs.items() if reads[work.op][at] == name)
        for need in dict.fromkeys(needs):
            if need != holds:
                cut = self._cut(name, self.held[name], self._inside(holds, need), need)
                self.held[name] = self._waiting(name, self.held[name], cut)

    def _waiting(self, name: str, value: ir.Value, cut: ir.Value) -> ir.Value:
        """A view of a value that exists once another one does."""
        reshaped = self.body.numbers.waiting(self.nodes, f"{self.prefix}wait{len(self.nodes)}", value, cut)
        self._declare(reshaped, name, reshaped.name or "")
        return reshaped

    def joinable(self, name: str) -> ir.Value:
        """The tile's own rows of an exit, as it lies in memory."""
        value, holds, own = self.held[name], self.form.holds[name], self.form.exits[name]
        if own != holds:
            value = self._cut(name, value, self._inside(holds, own), (own, "exit"))
        return self._opened(value, name) if name in blocked_names(self.body.sized) else value

    def _read(self, work: PartOp, at: int, value: ir.Value | None) -> ir.Value | None:
        name = self.body.sized.view.reads[work.op][at]
        need = work.needs.get(at)
        if value is None or need is None:
            return value
        if name not in self.held:
            start, stop = (self._edge(edge, at) for at, edge in enumerate((need.start, need.stop)))
            numbers = self.body.numbers
            bounds = start or numbers.constant([0]), stop or numbers.constant([TO_END])
            return self._cut(name, self.body.values[name], bounds, need)
        holds = self.form.holds[name]
        return self.held[name] if need == holds else self.cuts[name, need]

    def _counted(self, work: PartOp, node: ir.Node) -> list[ir.Value | None]:
        """Where an op begins and ends that counts places: with the tile, at the ends of the tensor as it is."""
        found = list(node.inputs[:2])
        for at, edge in enumerate((work.makes.start, work.makes.stop)):
            bound, like = self._edge(edge, at), node.inputs[at]
            if bound is not None and like is not None:
                label = f"{self.prefix}counted{work.op}/{at}"
                found[at] = self.body.numbers.number_like(self.nodes, label, bound, like)
        return found

    def _edge(self, edge: Edge | None, at: int) -> ir.Value | None:
        if edge is None or (edge, at) in self.cuts:
            return self.cuts.get((edge, at))
        numbers, name = self.body.numbers, f"{self.prefix}edge{len(self.cuts)}"
        if at not in self.cuts:
            unit = f"{self.prefix}unit{at}"
            self.cuts[at] = numbers.op(self.nodes, unit, "Add", [self.body.units[at], self.body.zero])
        value = self.cuts[at]
        for op_type, amount, neutral in (("Mul", edge.per_unit, 1), ("Add", edge.offset, 0)):
            if amount != neutral:
                value = numbers.op(self.nodes, f"{name}/{op_type}", op_type, [value, numbers.constant([amount])])
        self.cuts[edge, at] = value
        return value

    def _inside(self, holds: Part, need: Part) -> tuple[ir.Value, ir.Value]:
        """Where a part begins and ends in another one that has it."""
        after = 0 if need.start is None or holds.start is None else need.start.offset - holds.start.offset
        less = 0 if need.stop is None or holds.stop is None else need.stop.offset - holds.stop.offset
        return self.body.numbers.constant([after]), self.body.numbers.constant([less or TO_END])

    def _cut(self, name: str, value: ir.Value, bounds: tuple[ir.Value, ir.Value], part: object) -> ir.Value:
        key = (name, part)
        if key not in self.cuts:
            is_blocked = name in blocked_names(self.body.sized)
            source = self._opened(value, name) if is_blocked else value
            axes = present(self.body.region.windows, "the windows of a loop").axes
            axis = self.body.numbers.constant([axes[name]])
            label = f"{self.prefix}part{len(self.cuts)}"
            cut = self.body.numbers.op(self.nodes, label, "Slice", [source, *bounds, axis])
            cut.type = value.type
            self._declare(cut, f"{name}{OPENED}" if is_blocked else name, cut.name or "")
            closed = [0, self.body.sized.dims[name][1].offset, 0, 0]
            self.cuts[key] = self._reshaped(cut, name, closed) if is_blocked else cut
        return self.cuts[key]

    def _opened(self, value: ir.Value, name: str) -> ir.Value:
        """A tensor in blocks as it lies in memory."""
        block = self.body.sized.view.channel_block
        return self._reshaped(value, f"{name}{OPENED}", [0, -1, 0, 0, block])

    def _reshaped(self, value: ir.Value, name: str, shape: list[int]) -> ir.Value:
        key = (value.name, tuple(shape))
        if key not in self.cuts:
            numbers = self.body.numbers
            reshaped = numbers.op(self.nodes, f"{value.name}/seen", "Reshape", [value, numbers.constant(shape)])
            reshaped.type = value.type
            self._declare(reshaped, name, reshaped.name or "")
            self.cuts[key] = reshaped
        return self.cuts[key]

    def _declare(self, value: ir.Value, name: str, label: str) -> None:
        """Say the shape of a value: names of its label, but for dimensions that are numbers."""
        tensor = name.removesuffix(OPENED)
        dims = self.body.sized.dims[tensor] if tensor == name else memory_dims(self.body.sized, tensor)
        is_plain = tensor == name and name not in blocked_names(self.body.sized)
        tells = self.body.sized.may_tell(name) if is_plain else [not dim.terms for dim in dims]
        self.labels[value.name or ""] = label
        value.shape = ir.Shape(
            [
                dim.offset if is_told else f"{self.prefix}{label}/{axis}"
                for axis, (dim, is_told) in enumerate(zip(dims, tells, strict=True))
            ]
        )
