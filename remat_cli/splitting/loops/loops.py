"""Regions as Loops over tiles: the ops of each are written once, whatever the size, in a body that runs tile by tile.

What crosses into a body is cut by a Slice. Tiles of results are put in a sequence and joined when all are there: so
they are held twice. Where there are no sequences of a Loop, before operator set 13, each is joined to what there is so
far, and since a Loop copies its results in the end they are held three times. Bounds are balanced: of n tiles of a
length, the i-th ends at (i + 1) x length / n, rounded down, so that no tile is shorter than half of the longest that
is allowed. Shapes in a body are named, else nothing there would work in place; tensors that do not share a buffer have
different names, else the runtime would keep dead buffers for later ones.

Sizes for which the whole is no more than a tile of the largest run it whole, in the other branch of an If, and what all
loops make again of one thing is made once for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.schedule.loops import loop_name, zero_of
from remat_cli.core.values.sizes import Dim, SizeBound, number
from remat_cli.onnx_io.read.copies import op_like
from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.onnx_io.read.normalise import fresh_name, names_in
from remat_cli.onnx_io.write.opset import opset_of
from remat_cli.splitting.loops.body_order import in_order, runtime_order, with_idle_late
from remat_cli.splitting.loops.known_numbers import PREFIX as NUMBER
from remat_cli.splitting.loops.known_shapes import PREFIX as WRITTEN_DOWN
from remat_cli.splitting.loops.least_held import WORTH
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_read_whole, unread
from remat_cli.splitting.loops.loop_values import PREFIX, SizeValues
from remat_cli.splitting.loops.short_sizes import cone_of, packs_weights, shared_by, short_sizes, single_sizes
from remat_cli.splitting.loops.tile_bytes import WHOLE, ops_in_order, tile_bytes
from remat_cli.splitting.loops.whole_packets import in_whole_packets
from remat_cli.splitting.loops.windows.window_loops import OPENED, WindowBody, blocked_names, opened_dims
from remat_cli.splitting.rules.recurrent import HandedOn

SEQUENCES_SINCE = 13  # the operator set in which a Loop passes sequences on
MATRIX = 2  # axes


@dataclass(frozen=True)
class Looped:
    """A model with loops, and the dimensions of tensors that it makes for some sizes only."""

    model: ir.Model
    dims: Mapping[str, tuple[Dim, ...]]


def lists_tiles(sized: SizedView, region: LoopRegion) -> bool:
    """Whether a region's tiles are put in sequences: held twice when they are joined, not three times.

    There are no sequences in the main graph, so that all is done in a branch.
    """
    has_sequences = opset_of(sized.view.model) >= SEQUENCES_SINCE
    return has_sequences and bool(region.length.terms) and not packs_weights(sized, region)


def looped(sized: SizedView, regions: Sequence[LoopRegion], tilings: Sequence[Tiling]) -> Looped:
    """The model with each region in a Loop; interface, names and all other nodes stay."""
    new = sized.view.model.clone()
    writer = _Writer(new, sized, regions)
    pairs = list(enumerate(zip(regions, tilings, strict=True)))
    for at, (region, tiling) in sorted(pairs, key=lambda pair: not pair[1][0].copies):
        writer.add(at, region, tiling)  # what makes ops of others again first, while these are there
    writer.drop(unread(sized.view, regions))
    writer.hide()
    new.graph.sort()
    return Looped(new, writer.shared_dims)


@dataclass
class _Loop:
    """One region while it is written.

    Where its names begin, its own name, its length and how many tiles there are; its nodes by op, and the values that
    they make, by the names that these have in the model. `lists`: its tiles go into sequences. `handed` are the states
    that tiles hand on: what the first tile begins with, what a tile reads, and what it makes for the next one. Tiles
    begin at multiples of `together`.
    """

    prefix: str
    name: str
    region: LoopRegion
    length: ir.Value
    tiles: ir.Value
    nodes: dict[int, ir.Node]
    made: dict[str, ir.Value]
    lists: bool = False
    together: int = 1
    handed: list[tuple[ir.Value, ir.Value, ir.Value]] = field(default_factory=list)


class _Writer:
    """Writes loops into a model."""

    def __init__(self, model: ir.Model, sized: SizedView, regions: Sequence[LoopRegion]) -> None:
        self._graph = model.graph
        self._sized = sized
        self._regions = regions
        self._taken = names_in(model)
        self._nodes = {node.name: node for node in model.graph}
        self._values = {value.name: value for node in model.graph for value in node.outputs}
        self._values |= {value.name: value for value in model.graph.inputs}
        self._numbers = SizeValues(model.graph, {**sized.dims, **opened_dims(sized)}, self._taken)
        self._shared: dict[tuple[str, SizeBound], ir.Value] = {}
        self._copied: dict[str | None, str | None] = {}  # by name of a copy that of the node of the model
        self.shared_dims: dict[str, tuple[Dim, ...]] = {}

    def add(self, number: int, region: LoopRegion, tiling: Tiling) -> None:
        """Move a region's ops into a Loop."""
        view, prefix = self._sized.view, f"{PREFIX}{number}/{tiling.rows}/"  # costs depend on rows, and on names
        made = (name for op in sorted(region.own) for name in view.makes[op] if name)
        exits = [name for name in made if self._is_exit(region, name)]
        tiles, count = self._numbers.tiles(region.length, tiling, single_sizes(self._sized, region, tiling))
        own = [self._nodes[view.graph.ops[op].name] for op in sorted(region.own)]
        bound = short_sizes(self._sized, region, tiling)
        whole = None if bound is None else self._whole(prefix, region, exits, (bound, tiling))
        # the names under which dimensions of tensors are known as tiles of them are joined
        opened = blocked_names(self._sized) if region.windows is not None else ()
        starts = [
            self._numbers.empty(f"{name}{OPENED}" if name in opened else name, region.axes[name], self._values[name])
            for name in exits
        ]
        outer = self._move_out(prefix, own, exits)
        lists = lists_tiles(self._sized, region)
        length, inside = self._numbers.length(region.length), self._inside(prefix, region)
        loop = _Loop(prefix, loop_name(own[0].name or ""), region, length, tiles, *inside, lists, tiling.together)
        body = self._body(loop, exits)
        for node in own if region.windows is not None else ():
            node.resize_inputs(0)  # tiles have copies
        for value, result in outer.items():
            self._values[value.name] = result  # what later regions read
            result.name, value.name = value.name, f"{prefix}tile/{value.name}"
            result.shape = self._opaque(result.name or "")
        results = list(outer.values())
        if bound is None or whole is None:
            self._graph.append(self._loop(loop, loop.name, count, starts, body, results))
            return
        joined = self._results(f"{prefix}tiles/", exits)
        if lists:
            tiled = self._listed(loop, count, body, joined, exits)
        else:
            tiled = [self._loop(loop, f"{prefix}tiles", count, starts, body, joined)]
        closed = [
            self._closed(tiled, name, value) if name in opened else value
            for name, value in zip(exits, joined, strict=True)
        ]
        in_tiles = ir.Graph([], closed, nodes=tiled, name=f"{prefix}in_tiles")
        branches = [ir.AttrGraph("then_branch", whole), ir.AttrGraph("else_branch", in_tiles)]
        flag = self._numbers.holds(bound)
        self._graph.append(ir.Node("", "If", [flag], branches, outputs=results, name=loop.name))

    def _move_out(self, prefix: str, own: list[ir.Node], exits: list[str]) -> dict[ir.Value, ir.Value]:
        """Take a region's nodes out of the graph: what is read instead of its exits, by these."""
        old = [self._values[name] for name in exits]
        new_of, inside = dict(zip(old, self._results(f"{prefix}whole/", exits), strict=True)), set(own)
        for value, result in new_of.items():
            for node, at in [use for use in value.uses() if use[0] not in inside]:
                node.replace_input_with(at, result)
        self._graph.outputs[:] = [new_of.get(value, value) for value in self._graph.outputs]
        self._graph.remove(own)
        return new_of

    def _closed(self, tiled: list[ir.Node], name: str, value: ir.Value) -> ir.Value:
        """In its own shape what was joined as it lies in memory, in blocks of channels."""
        shape = self._numbers.constant([0, self._sized.dims[name][1].offset, 0, 0])
        value.shape = None
        closed = self._numbers.op(tiled, f"{value.name}/closed", "Reshape", [value, shape])
        closed.type, closed.shape = value.type, self._opaque(name)
        return closed

    def _listed(
        self, loop: _Loop, count: ir.Value, body: ir.Graph, joined: list[ir.Value], exits: list[str]
    ) -> list[ir.Node]:
        """Nodes that run a loop whose tiles are put in sequences, and join these."""
        nodes: list[ir.Node] = []
        starts, lists = list[ir.Value](), list[ir.Value]()
        for at, value in enumerate(joined):
            kind = present(value.type, f"the type of '{value.name}'")
            dtype = ir.AttrInt64("dtype", kind.dtype)
            starts.append(self._numbers.op(nodes, f"{loop.prefix}none{at}", "SequenceEmpty", [], dtype))
            lists.append(ir.Value(name=f"{loop.prefix}list{at}"))
            starts[-1].type = lists[-1].type = ir.SequenceType(kind)
        nodes.append(self._loop(loop, f"{loop.prefix}tiles", count, starts, body, lists))
        for name, value, tiles in zip(exits, joined, lists, strict=True):
            axis = ir.AttrInt64("axis", loop.region.axes[name])
            node_name = f"{loop.prefix}joined/{name}"
            nodes.append(ir.Node("", "ConcatFromSequence", [tiles], [axis], outputs=[value], name=node_name))
        return nodes

    def _loop(
        self, loop: _Loop, name: str, count: ir.Value, starts: list[ir.Value], body: ir.Graph, results: list[ir.Value]
    ) -> ir.Node:
        go = self._numbers.weight(f"{PREFIX}go", np.array(True))
        begun = [start for start, _, _ in loop.handed]
        ended = [ir.Value(name=f"{made.name}/last", type=made.type) for _, _, made in loop.handed]
        reads, makes = [count, go, *begun, *starts], [*ended, *results]
        return ir.Node("", "Loop", reads, [ir.AttrGraph("body", body)], outputs=makes, name=name)

    def _results(self, prefix: str, names: list[str]) -> list[ir.Value]:
        """New values like these; nothing is said of their shapes but what numbers there are."""
        made = [ir.Value(name=f"{prefix}{name}", type=self._values[name].type) for name in names]
        for value, name in zip(made, names, strict=True):
            value.shape = self._opaque(name)
        return made

    def _whole(self, prefix: str, region: LoopRegion, exits: list[str], short: tuple[SizeBound, Tiling]) -> ir.Graph:
        """The region's own ops as they are; what they read of others' work is made once for all regions.

        What is not shared so is made again here too.
        Like a body of a loop the branch reads the loop's zero, in a view of what it reads first.
        """
        view = self._sized.view
        shared = shared_by(view, region)
        ops = [op for op in ops_in_order(self._sized, region) if not shared or op in region.own]
        made = {name: self._shared_whole(region, name, *short) for name in shared}
        nodes: list[ir.Node] = []
        for op in ops:
            node = self._nodes[view.graph.ops[op].name]
            twin = self._copy(f"{prefix}short/", node)
            for at, value in enumerate(twin.inputs):
                if value is not None and value.name in made:
                    twin.replace_input_with(at, made[value.name])
            made |= {old.name: new for old, new in zip(node.outputs, twin.outputs, strict=True) if old.name}
            nodes.append(twin)
        inside = {name for op in ops for name in view.makes[op]}
        first, at, name = next(
            (node, at, name)
            for node, op in zip(nodes, ops, strict=True)
            for at, name in enumerate(view.reads[op])
            if self._sized.dims.get(name) and name not in inside
        )
        gate = self._waiting(f"{prefix}short/", region, first.inputs[at], name)
        first.replace_input_with(at, gate[-1].outputs[0])
        chains = self._chains(region)
        for op in ops:
            for name in (each for each in view.makes[op] if each):
                self._declare(made[name], name, f"{prefix}short/{chains[name]}")
        return ir.Graph([], [made[name] for name in exits], nodes=[*gate, *nodes], name=f"{prefix}whole")

    def _waiting(self, prefix: str, region: LoopRegion, value: ir.Value | None, name: str) -> list[ir.Node]:
        """Ops that make a view of a value which waits for the zero of the region's loop."""
        assert value is not None
        own = self._sized.view.graph.ops[min(region.own)].name
        zero = self._numbers.weight(zero_of(loop_name(own)), np.array(0, np.int64))
        nodes: list[ir.Node] = []
        number = self._numbers.op(nodes, f"{prefix}number", "Add", [self._numbers.length(region.length), zero])
        labels, rank = (f"{prefix}input", f"{prefix}same"), len(self._sized.dims[name])
        reshaped = self._numbers.behind(nodes, labels, value, rank, number)
        self._declare(reshaped, name, reshaped.name or "")
        return nodes

    def _shared_whole(self, region: LoopRegion, name: str, bound: SizeBound, tiling: Tiling) -> ir.Value:
        """What loops make again, tile by tile: whole, but empty for sizes that are not within the bound."""
        key = (name, bound)
        if key in self._shared:
            return self._shared[key]
        prefix, part = f"{PREFIX}shared{len(self._shared)}/", cone_of(self._sized.view, region, name)
        length = self._numbers.length(region.length)
        tiles, count = self._numbers.tiles(region.length, tiling)
        to_number = ir.AttrInt64("to", ir.DataType.INT64)
        once = self._numbers.op(self._graph, f"{prefix}once", "Cast", [self._numbers.holds(bound)], to_number)
        often = self._numbers.op(self._graph, f"{prefix}count", "Mul", [count, once])
        loop = _Loop(
            prefix, loop_name(prefix), part, length, tiles, *self._inside(prefix, part), together=tiling.together
        )
        start = self._numbers.empty(name, region.axes[name], self._values[name])
        results = self._results(prefix, [name])
        self._graph.append(self._loop(loop, loop.name, often, [start], self._body(loop, [name]), results))
        dims = self._sized.dims[name]
        self.shared_dims[results[0].name or ""] = tuple(
            msgspec.structs.replace(dim, within=bound) if axis == region.axes[name] else dim
            for axis, dim in enumerate(dims)
        )
        self._shared[key] = results[0]
        return results[0]

    def drop(self, ops: Iterable[int]) -> None:
        """Take ops out that loops make again for themselves, and nothing else needs."""
        self._graph.remove([self._nodes[self._sized.view.graph.ops[op].name] for op in ops], safe=True)

    def hide(self) -> None:
        """Make what is known of the shape of a whole tensor known to a run only, where it is known no sooner.

        That is the rank where the runtime would make other ops of some, and what was written down. A pool whose
        channels the runtime knows takes another form, and has other bits. So has a product whose scale it knows.
        """
        view, numbered = self._sized.view, {op.name: at for at, op in enumerate(self._sized.view.graph.ops)}
        for node in list(self._graph.all_nodes()):
            op = numbered.get(self._copied.get(node.name, node.name) or "")
            if op is None:
                continue
            for at in self._sized.recast_if_told(op):
                self._hide_rank(node, at, len(self._sized.dims[view.reads[op][at]]))
            if node.op_type == "Reshape":
                self._hide_numbers(node, view.makes[op][0])
            if node.op_type == "Cast":
                self._hide_length(node)

    def _hide_numbers(self, node: ir.Node, made: str) -> None:
        """Let a Reshape, of what makes this in the model, read late what was written down."""
        shape = node.inputs[1]
        if shape is None or not (shape.name or "").startswith(WRITTEN_DOWN) or made not in self._sized.dims:
            return
        if [not dim.terms for dim in self._sized.dims[made]] != self._sized.may_tell(made):
            node.replace_input_with(1, self._numbers.known_late(shape))

    def _hide_length(self, node: ir.Node) -> None:
        """Let a length that was written down, and is computed with as a float, be read late.

        Attention is scaled by the length of its heads: the runtime makes a factor that it knows part of the product.
        """
        length, to = node.inputs[0], node.attributes.get("to")
        if length is None or to is None or not (length.name or "").startswith(NUMBER):
            return
        kind = None if length.const_value is None else length.const_value.dtype
        if kind == ir.DataType.INT64 and ir.DataType(to.as_int()).is_floating_point():
            node.replace_input_with(0, self._numbers.known_late(length))

    def _hide_rank(self, node: ir.Node, at: int, rank: int) -> None:
        """Let an op of the model read a view of which nothing is known before a run."""
        nodes: list[ir.Node] = []
        self._let_read_unknown(nodes, node, at, rank)
        present(node.graph, f"the graph of '{node.name}'").insert_before(node, nodes)

    def _inside(self, prefix: str, region: LoopRegion) -> tuple[dict[int, ir.Node], dict[str, ir.Value]]:
        """Nodes of a loop by op, copies among them, and what they make, by the names that this has in the model."""
        view = self._sized.view
        made = {name: self._values[name] for op in region.own for name in view.makes[op] if name}
        nodes: dict[int, ir.Node] = {}
        for op in sorted(region.ops):
            node = self._nodes[view.graph.ops[op].name]
            if op in region.copies:
                twin = self._copy(f"{prefix}again/", node)
                made |= {old.name: new for old, new in zip(node.outputs, twin.outputs, strict=True) if old.name}
                node = twin
            for at, value in enumerate(node.inputs):
                if value is not None and made.get(value.name or "", value) is not value:
                    node.replace_input_with(at, made[value.name or ""])
            nodes[op] = node
        return nodes, made

    def _copy(self, prefix: str, node: ir.Node) -> ir.Node:
        """An op that reads what another reads, and makes the same again."""
        copied = op_like(node, fresh_name(f"{prefix}{node.name}", self._taken))
        self._copied[copied.name] = self._copied.get(node.name, node.name)
        for old, new in zip(node.outputs, copied.outputs, strict=True):
            new.type = old.type
            new.name = fresh_name(f"{prefix}{old.name}", self._taken) if old.name else ""
        return copied

    def _is_exit(self, region: LoopRegion, name: str) -> bool:
        """Whether what an op of the region makes is read outside; a copy of a reader elsewhere reads it whole."""
        return name in self._sized.kept or is_read_whole(self._sized.view, self._regions, region, name)

    def _body(self, loop: _Loop, exits: list[str]) -> ir.Graph:
        region, prefix = loop.region, loop.prefix
        number = ir.Value(name=f"{prefix}i", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        going = ir.Value(name=f"{prefix}going", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
        before, tile, after, bounds = self._begun(loop, number)
        if region.windows is not None:
            return self._window_body(loop, (number, going), (before, tile, after), bounds, exits)
        self._cut_reads(loop, before, bounds)
        self._count_on(loop, before, bounds)
        chains = self._chains(region)
        for name, value in loop.made.items():
            self._declare(value, name, chains[name], region.axes[name])
        for op, handed in sorted(region.handed.items()):
            self._hand_on(loop, loop.nodes[op], handed)
        for op in ops_in_order(self._sized, region):
            node = loop.nodes[op]
            if self._would_be_fused(op):
                self._let_read_unknown(before, node, 0, MATRIX)
            if op in self._sized.longer:
                self._run_longer(loop, before, op)
            else:
                before.append(node)
        return self._joining(loop, (number, going), before, exits, [loop.made[name] for name in exits])

    def _run_longer(self, loop: _Loop, before: list[ir.Node], op: int) -> None:
        """Let an op make a tile in whole packets: what reads that reads it cut off."""
        node, (name,) = loop.nodes[op], self._sized.view.makes[op]
        uses = list(node.outputs[0].uses())
        loop.made[name] = in_whole_packets(self._numbers, before, node, self._sized.view.ops[op], loop.tiles)
        for user, at in uses:
            user.replace_input_with(at, loop.made[name])

    def _begun(
        self, loop: _Loop, number: ir.Value
    ) -> tuple[list[ir.Node], ir.Value, ir.Value, tuple[ir.Value, ir.Value]]:
        """Nodes that begin a body; the number of its tile and of the next one, and where the tile begins and ends."""
        region, prefix, before = loop.region, loop.prefix, list[ir.Node]()
        zero = self._numbers.weight(zero_of(loop.name), np.array(0, np.int64))
        tile = self._numbers.op(before, f"{prefix}number", "Add", [number, zero])
        if region.is_backwards:
            last = self._numbers.op(before, f"{prefix}last", "Sub", [loop.tiles, self._numbers.constant([1])])
            tile = self._numbers.op(before, f"{prefix}from_last", "Sub", [last, tile])
        after = self._numbers.op(before, f"{prefix}next", "Add", [tile, self._numbers.constant([1])])
        bounds = [self._bound(loop, before, name, bound) for name, bound in (("start", tile), ("stop", after))]
        return before, tile, after, (bounds[0], bounds[1])

    def _bound(self, loop: _Loop, before: list[ir.Node], name: str, tile: ir.Value) -> ir.Value:
        """Where a tile begins, which is a multiple of what is computed together, or the end of all."""
        label, length, together = f"{loop.prefix}{name}", loop.length, self._numbers.constant([loop.together])
        if loop.together > 1:
            further = self._numbers.constant([loop.together - 1])
            length = self._numbers.op(before, f"{label}_further", "Add", [length, further])
            length = self._numbers.op(before, f"{label}_packets", "Div", [length, together])
        product = self._numbers.op(before, f"{label}_of_all", "Mul", [tile, length])
        if loop.together == 1:
            return self._numbers.op(before, label, "Div", [product, loop.tiles])
        packets = self._numbers.op(before, f"{label}_in_packets", "Div", [product, loop.tiles])
        bound = self._numbers.op(before, f"{label}_of_packets", "Mul", [packets, together])
        return self._numbers.op(before, label, "Min", [bound, loop.length])

    def _cut_reads(self, loop: _Loop, before: list[ir.Node], bounds: tuple[ir.Value, ir.Value]) -> None:
        """Let ops read the tile's part of what is whole outside."""
        region, prefix = loop.region, loop.prefix
        cuts: dict[tuple[str, int], ir.Value] = {}
        inside = set(loop.made.values())
        for op, node in loop.nodes.items():
            for at, value in enumerate(node.inputs):
                axis = region.reads.get((op, at))
                if value is None or axis is None or value in inside:
                    continue
                key = (value.name or "", axis)
                if key not in cuts:
                    cuts[key] = self._numbers.op(
                        before, f"{prefix}part{len(cuts)}", "Slice", [value, *bounds, self._numbers.constant([axis])]
                    )
                    cuts[key].type = value.type
                    self._declare(cuts[key], value.name or "", cuts[key].name or "", axis)
                node.replace_input_with(at, cuts[key])

    def _count_on(self, loop: _Loop, before: list[ir.Node], bounds: tuple[ir.Value, ir.Value]) -> None:
        """Let ops that count places count those of the tile."""
        for op, node in loop.nodes.items():
            for at, bound in enumerate(bounds if self._sized.view.rules[op].counts_places else ()):
                like = present(node.inputs[at], f"a bound of '{node.name}'")
                name = f"{loop.prefix}counted{op}/{at}"
                node.replace_input_with(at, self._numbers.number_like(before, name, bound, like))

    def _would_be_fused(self, op: int) -> bool:
        """Whether the runtime would make one op of a product and what is added, as it does not where it knows no shape.

        That one computes a single row in another way.
        """
        view, told = self._sized.view, self._sized.told
        if view.ops[op].key != ("", "MatMul") or told is None:
            return False
        ranks = [len(shape or ()) for shape in view.ops[op].inputs]
        is_added = any(view.graph.ops[each].op_type == "Add" for each in view.readers[view.makes[op][0]])
        return is_added and ranks == [MATRIX, MATRIX] and len(told.get(view.reads[op][0], ())) != MATRIX

    def _let_read_unknown(self, nodes: list[ir.Node], node: ir.Node, at: int, rank: int) -> None:
        """Let an op read a view of what has so many axes, of which nothing is known before a run."""
        read = present(node.inputs[at], f"what '{node.name}' reads")
        name = fresh_name(f"{node.name}/hidden{at}", self._taken)
        hidden = self._numbers.op(nodes, name, "Reshape", [read, self._numbers.copied(rank)])
        hidden.type = read.type
        node.replace_input_with(at, hidden)

    def _hand_on(self, loop: _Loop, node: ir.Node, handed: HandedOn) -> None:
        """Let an op begin with the states that it ended with in the tile before."""
        name = node.outputs[0].name or ""
        dims = next(self._sized.dims[each] for each, value in loop.made.items() if value is node.outputs[0])[1:]
        places, made_at = zip(*handed.states, strict=True)
        node.resize_inputs(max(len(node.inputs), 1 + max(places)))
        node.resize_outputs(max(len(node.outputs), 1 + max(made_at)))
        for at, (place, made) in enumerate(handed.states):
            prefix, result = f"{loop.prefix}state{at}/{name}", node.outputs[made]
            start = node.inputs[place] or self._numbers.zeros(dims, present(node.outputs[0].type, f"that of '{name}'"))
            inside = ir.Value(name=prefix, type=node.outputs[0].type)
            result.name, result.type = fresh_name(f"{prefix}/next", self._taken), inside.type
            for value in (inside, result):
                value.shape = ir.Shape(
                    [f"{value.name}/{axis}" if dim.terms else dim.offset for axis, dim in enumerate(dims)]
                )
            node.replace_input_with(place, inside)
            loop.handed.append((start, inside, result))

    def _window_body(
        self,
        loop: _Loop,
        carried: tuple[ir.Value, ir.Value],
        begun: tuple[list[ir.Node], ir.Value, ir.Value],
        bounds: tuple[ir.Value, ir.Value],
        exits: list[str],
    ) -> ir.Graph:
        """A body whose tiles are the first, inner ones or the last."""
        region, prefix, (nodes, tile, after) = loop.region, loop.prefix, begun
        first = self._numbers.op(nodes, f"{prefix}is_first", "Equal", [tile, self._numbers.constant([0])])
        last = self._numbers.op(nodes, f"{prefix}is_last", "Equal", [after, loop.tiles])
        zero = self._numbers.weight(zero_of(loop.name), np.array(0, np.int64))
        values, copy = self._values, self._copy
        writer = WindowBody(self._sized, self._numbers, region, prefix, loop.nodes, values, zero, bounds, copy)
        node, made = writer.tile((first, last), exits)
        return self._joining(loop, carried, [*nodes, node], exits, made)

    def _joining(
        self,
        loop: _Loop,
        carried: tuple[ir.Value, ir.Value],
        nodes: list[ir.Node],
        exits: list[str],
        made: list[ir.Value],
    ) -> ir.Graph:
        """A body of these nodes, which joins what it makes of each exit to what there is so far."""
        prefix, (number, going) = loop.prefix, carried
        goes_on = ir.Value(name=f"{prefix}goes_on", type=going.type, shape=going.shape)
        nodes.append(ir.Node("", "Identity", [going], outputs=[goes_on], name=f"{prefix}goes_on"))
        held, results = [inside for _, inside, _ in loop.handed], [goes_on, *(made for _, _, made in loop.handed)]
        backwards = loop.region.is_backwards
        for name, value in zip(exits, made, strict=True):
            sofar = ir.Value(name=f"{prefix}sofar/{name}", type=value.type)
            if loop.lists:
                front = [self._numbers.weight(f"{PREFIX}front", np.array(0, np.int64))] if backwards else []
                joined = self._numbers.op(nodes, f"{prefix}listed/{name}", "SequenceInsert", [sofar, value, *front])
                sofar.type = joined.type = ir.SequenceType(present(value.type, f"the type of '{value.name}'"))
            else:
                axis = ir.AttrInt64("axis", loop.region.axes[name])
                sofar.shape = self._open(value, f"{prefix}s{len(held)}")
                both = [value, sofar] if backwards else [sofar, value]
                joined = self._numbers.op(nodes, f"{prefix}joined/{name}", "Concat", both, axis)
                joined.type, joined.shape = value.type, self._open(value, f"{prefix}j{len(held)}")
            held.append(sofar)
            results.append(joined)
        nodes = nodes if loop.region.windows is not None else self._in_turn(loop, nodes)
        return ir.Graph([number, going, *held], results, nodes=nodes, name=f"{prefix}body")

    def _in_turn(self, loop: _Loop, nodes: list[ir.Node]) -> list[ir.Node]:
        """The nodes of a body, held in their order where the runtime would hold more in its own."""
        ops = {node: op for op, node in loop.nodes.items()}
        idle = [node for node in ops if not any(value.uses() for value in node.outputs)]
        nodes = with_idle_late(self._numbers, loop.prefix, nodes, idle)
        theirs = [op for at in runtime_order(nodes) if (op := ops.get(nodes[at])) is not None]
        ours = ops_in_order(self._sized, loop.region)
        all_bytes, their_bytes = (tile_bytes(self._sized, loop.region, WHOLE, order) for order in (ours, theirs))
        held = set(loop.nodes.values())
        return in_order(self._numbers, loop.prefix, nodes, held) if their_bytes > WORTH * all_bytes else nodes

    def _chains(self, region: LoopRegion) -> dict[str, str]:
        """By tensor of a body the first one whose buffer it takes over."""
        view, order = self._sized.view, ops_in_order(self._sized, region)
        last = {name: op for op in order for name in view.reads[op]}
        first: dict[str, str] = {}
        for op in order:
            for name in (each for each in view.makes[op] if each):
                shared = [] if op in self._sized.longer else sorted(view.in_place)
                before = [a for a, b in shared if b == name and a in first and last[a] == op]
                first[name] = first[before[0]] if before and not self._is_exit(region, before[0]) else name
        return first

    def _declare(self, value: ir.Value, name: str, chain: str, cut: int | None = None) -> None:
        """Say the shape of a value in a body: names of its chain, but for dimensions that are numbers.

        A part along an axis is not as long as the whole, even where that is a number.
        """
        dims = self._sized.dims.get(name)
        if dims is None:  # a weight, of which a part is cut
            weight = self._graph.initializers[name].const_value
            dims = tuple(map(number, dims_of(present(weight, f"the numbers of '{name}'"))))
            tells = [True] * len(dims)
        else:
            tells = self._sized.may_tell(name)
        pairs = enumerate(zip(dims, tells, strict=True))
        named = [dim.offset if is_told and at != cut else f"{chain}/{at}" for at, (dim, is_told) in pairs]
        value.shape = ir.Shape(named)

    def _opaque(self, name: str) -> ir.Shape:
        """The rank and the dimensions that may be known; others have names of their own.

        The runtime knows none of what comes out of a Loop. Were it told which sizes of the model they are, it would
        fuse ops behind the loop that it leaves alone in the user's model, and bits would differ.
        """
        pairs = enumerate(zip(self._sized.dims[name], self._sized.may_tell(name), strict=True))
        return ir.Shape([dim.offset if is_told else f"{PREFIX}{name}/{axis}" for axis, (dim, is_told) in pairs])

    def _open(self, value: ir.Value, name: str) -> ir.Shape:
        rank = len(present(value.shape, f"the shape of '{name}'"))
        return ir.Shape([f"{name}/{axis}" for axis in range(rank)])
