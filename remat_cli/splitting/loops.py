"""Regions as Loops over tiles: the ops of each are written once, whatever the size, in a body that runs tile by tile.

What crosses into a body is cut by a Slice, results are joined tile after tile. Bounds are balanced: of n tiles of a
length, the i-th ends at (i + 1) x length / n, rounded down, so that no tile is shorter than half of the longest that
is allowed. Shapes in a body are named, else nothing there would work in place; tensors that do not share a buffer have
different names, else the runtime would keep dead buffers for later ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.core.loops import loop_name, zero_of
from remat_cli.core.sizes import Dim, number
from remat_cli.onnx_io.interface import dims_of, fed_inputs
from remat_cli.onnx_io.normalise import fresh_name, names_in
from remat_cli.splitting.loop_bits import Tiling
from remat_cli.splitting.loop_regions import LoopRegion, SizedView, unread

PREFIX = "remat/loop/"
"""Of the names of all that a loop adds to the model."""


def looped(sized: SizedView, regions: Sequence[LoopRegion], tilings: Sequence[Tiling]) -> ir.Model:
    """The model with each region in a Loop; interface, names and all other nodes stay."""
    new = sized.view.model.clone()
    writer = _Writer(new, sized)
    for at, (region, tiling) in enumerate(zip(regions, tilings, strict=True)):
        writer.add(at, region, tiling)
    writer.drop(unread(sized.view, regions))
    new.graph.sort()
    return new


@dataclass
class _Loop:
    """One region while it is written.

    Where its names begin, its own name, its length and how many tiles there are; its nodes by op, and the values that
    they make, by the names that these have in the model.
    """

    prefix: str
    name: str
    region: LoopRegion
    length: ir.Value
    tiles: ir.Value
    nodes: dict[int, ir.Node]
    made: dict[str, ir.Value]


class _Writer:
    """Writes loops into a model."""

    def __init__(self, model: ir.Model, sized: SizedView) -> None:
        self._graph = model.graph
        self._sized = sized
        self._taken = names_in(model)
        self._nodes = {node.name: node for node in model.graph}
        self._values = {value.name: value for node in model.graph for value in node.outputs}
        self._values |= {value.name: value for value in model.graph.inputs}
        self._empty: dict[object, ir.Value] = {}
        self._sizes: dict[str, ir.Value] = {}
        self._lengths: dict[Dim, ir.Value] = {}
        self._counts: dict[tuple[Dim, int], tuple[ir.Value, ir.Value]] = {}

    def add(self, number: int, region: LoopRegion, tiling: Tiling) -> None:
        """Move a region's ops into a Loop."""
        view, prefix = self._sized.view, f"{PREFIX}{number}/{tiling.rows}/"  # costs depend on rows, and on names
        exits = [name for name in self._made(region) if self._is_exit(region, name)]
        length = self._length(region.length)
        tiles, count = self._tiles(region.length, tiling)
        own = [self._nodes[view.graph.ops[op].name] for op in sorted(region.own)]
        starts = [self._start(region, name) for name in exits]
        old = [self._values[name] for name in exits]
        outer = [
            ir.Value(name=f"{prefix}whole/{name}", type=value.type) for name, value in zip(exits, old, strict=True)
        ]
        new_of, inside = dict(zip(old, outer, strict=True)), set(own)
        for value, whole in new_of.items():
            for node, at in [use for use in value.uses() if use[0] not in inside]:
                node.replace_input_with(at, whole)
        self._graph.outputs[:] = [new_of.get(value, value) for value in self._graph.outputs]
        self._graph.remove(own)
        loop = _Loop(prefix, loop_name(own[0].name or ""), region, length, tiles, *self._inside(prefix, region))
        body = self._body(loop, exits)
        for value, whole in new_of.items():
            whole.name, value.name = value.name, f"{prefix}tile/{value.name}"
            whole.shape = self._opaque(whole.name or "")
        go = self._constant_bool()
        bodies = [ir.AttrGraph("body", body)]
        self._graph.append(ir.Node("", "Loop", [count, go, *starts], bodies, outputs=outer, name=loop.name))

    def drop(self, ops: Iterable[int]) -> None:
        """Take ops out that loops make again for themselves, and nothing else needs."""
        self._graph.remove([self._nodes[self._sized.view.graph.ops[op].name] for op in ops], safe=True)

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
        copied = ir.Node(
            node.domain,
            node.op_type,
            node.inputs,
            node.attributes.values(),
            overload=node.overload,
            num_outputs=len(node.outputs),
            version=node.version,
            name=fresh_name(f"{prefix}{node.name}", self._taken),
        )
        for old, new in zip(node.outputs, copied.outputs, strict=True):
            new.type = old.type
            new.name = fresh_name(f"{prefix}{old.name}", self._taken) if old.name else ""
        return copied

    def _made(self, region: LoopRegion) -> list[str]:
        return [name for op in sorted(region.own) for name in self._sized.view.makes[op] if name]

    def _is_exit(self, region: LoopRegion, name: str) -> bool:
        """Whether what an op of the region makes is read outside; a copy of a reader elsewhere reads it whole."""
        readers = self._sized.view.readers[name]
        return name in self._sized.kept or any(reader not in region.own for reader in readers)

    def _body(self, loop: _Loop, exits: list[str]) -> ir.Graph:
        region, prefix = loop.region, loop.prefix
        number = ir.Value(name=f"{prefix}i", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        going = ir.Value(name=f"{prefix}going", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
        before: list[ir.Node] = []
        zero = self._weight(zero_of(loop.name), np.array(0, np.int64))
        tile = self._op(before, f"{prefix}number", "Add", [number, zero])
        after = self._op(before, f"{prefix}next", "Add", [tile, self._constant([1])])
        bounds = [self._bound(before, loop, name, at) for name, at in (("start", tile), ("stop", after))]
        cuts: dict[tuple[str, int], ir.Value] = {}
        inside = set(loop.made.values())
        for op, node in loop.nodes.items():
            for at, value in enumerate(node.inputs):
                axis = region.reads.get((op, at))
                if value is None or axis is None or value in inside:
                    continue
                key = (value.name or "", axis)
                if key not in cuts:
                    cuts[key] = self._op(
                        before, f"{prefix}part{len(cuts)}", "Slice", [value, *bounds, self._constant([axis])]
                    )
                    cuts[key].type = value.type
                    self._declare(cuts[key], value.name or "", cuts[key].name or "")
                node.replace_input_with(at, cuts[key])
        held: list[ir.Value] = []
        results: list[ir.Value] = []
        end: list[ir.Node] = [
            ir.Node(
                "",
                "Identity",
                [going],
                outputs=[ir.Value(name=f"{prefix}goes_on", type=going.type, shape=going.shape)],
                name=f"{prefix}goes_on",
            )
        ]
        chains = self._chains(region)
        for name, value in loop.made.items():
            self._declare(value, name, chains[name])
        for name in exits:
            value = self._values[name]
            axis = region.axes[name]
            sofar = ir.Value(
                name=f"{prefix}sofar/{name}", type=value.type, shape=self._open(value, f"{prefix}s{len(held)}")
            )
            joined = self._op(end, f"{prefix}joined/{name}", "Concat", [sofar, value], ir.AttrInt64("axis", axis))
            joined.type, joined.shape = value.type, self._open(value, f"{prefix}j{len(held)}")
            held.append(sofar)
            results.append(joined)
        nodes = [*before, *loop.nodes.values(), *end]
        return ir.Graph([number, going, *held], [end[0].outputs[0], *results], nodes=nodes, name=f"{prefix}body")

    def _bound(self, nodes: list[ir.Node], loop: _Loop, name: str, tile: ir.Value) -> ir.Value:
        product = self._op(nodes, f"{loop.prefix}{name}_of_all", "Mul", [tile, loop.length])
        return self._op(nodes, f"{loop.prefix}{name}", "Div", [product, loop.tiles])

    def _chains(self, region: LoopRegion) -> dict[str, str]:
        """By tensor of a body the first one whose buffer it takes over."""
        view, order = self._sized.view, sorted(region.ops)
        last = {name: op for op in order for name in view.reads[op]}
        first: dict[str, str] = {}
        for op in order:
            for name in (each for each in view.makes[op] if each):
                before = [a for a, b in sorted(view.in_place) if b == name and a in first and last[a] == op]
                first[name] = first[before[0]] if before and not self._is_exit(region, before[0]) else name
        return first

    def _declare(self, value: ir.Value, name: str, chain: str) -> None:
        """Say the shape of a value in a body: names of its chain, but for dimensions that are numbers."""
        dims = self._sized.dims[name]
        named = [dim.offset if not dim.terms else f"{chain}/{at}" for at, dim in enumerate(dims)]
        value.shape = ir.Shape(named)

    def _opaque(self, name: str) -> ir.Shape:
        """The rank and the dimensions that are numbers; others have names of their own.

        The runtime knows none of what comes out of a Loop. Were it told which sizes of the model they are, it would
        fuse ops behind the loop that it leaves alone in the user's model, and bits would differ.
        """
        dims = enumerate(self._sized.dims[name])
        return ir.Shape([f"{PREFIX}{name}/{axis}" if dim.terms else dim.offset for axis, dim in dims])

    def _open(self, value: ir.Value, name: str) -> ir.Shape:
        assert value.shape is not None
        return ir.Shape([f"{name}/{axis}" for axis in range(len(value.shape))])

    def _start(self, region: LoopRegion, name: str) -> ir.Value:
        """An empty tensor to join tiles to."""
        dims, axis, value = list(self._sized.dims[name]), region.axes[name], self._values[name]
        dims[axis] = number(0)
        assert value.type is not None
        key = (tuple(dims), value.type.dtype)
        if key not in self._empty:
            prefix = f"{PREFIX}empty{len(self._empty)}"
            parts = [self._computed(f"{prefix}/{at}", dim) for at, dim in enumerate(dims)]
            shape = self._op(self._graph, f"{prefix}/shape", "Concat", parts, ir.AttrInt64("axis", 0))
            filling = ir.AttrTensor("value", ir.tensor(np.zeros(1, value.type.dtype.numpy())))
            empty = self._op(self._graph, prefix, "ConstantOfShape", [shape], filling)
            empty.type = value.type
            self._empty[key] = empty
        return self._empty[key]

    def _computed(self, name: str, dim: Dim) -> ir.Value:
        """A dimension as a tensor of one number."""
        if not dim.terms:
            return self._constant([dim.offset])
        total: ir.Value | None = None
        for at, term in enumerate(dim.terms):
            value = self._size(term.names[0])
            for power, other in enumerate(term.names[1:]):
                value = self._op(self._graph, f"{name}/{at}/x{power}", "Mul", [value, self._size(other)])
            if term.factor != 1:
                value = self._op(self._graph, f"{name}/{at}/times", "Mul", [value, self._constant([term.factor])])
            total = value if total is None else self._op(self._graph, f"{name}/{at}/plus", "Add", [total, value])
        assert total is not None
        for op_type, more, neutral in (("Add", dim.offset, 0), ("Div", dim.divisor, 1)):
            if more != neutral:
                total = self._op(self._graph, f"{name}/{op_type}", op_type, [total, self._constant([more])])
        return total

    def _length(self, dim: Dim) -> ir.Value:
        """A length as a tensor of one number, computed once."""
        if dim not in self._lengths:
            self._lengths[dim] = self._computed(f"{PREFIX}length{len(self._lengths)}", dim)
        return self._lengths[dim]

    def _tiles(self, length: Dim, tiling: Tiling) -> tuple[ir.Value, ir.Value]:
        """How many tiles a length has, as a tensor of one number and as a number, computed once for all loops."""
        key = (length, tiling.rows)
        if key not in self._counts:
            name = f"{PREFIX}count{len(self._counts)}/{tiling.rows}/"
            more = self._op(
                self._graph, f"{name}more", "Add", [self._length(length), self._constant([tiling.rows - 1])]
            )
            tiles = self._op(self._graph, f"{name}tiles", "Div", [more, self._constant([tiling.rows])])
            count = self._op(self._graph, f"{name}count", "Reshape", [tiles, self._constant([])])
            self._counts[key] = tiles, count
        return self._counts[key]

    def _size(self, symbol: str) -> ir.Value:
        """A named dimension as a tensor of one number, read from the first input that has it."""
        if symbol not in self._sizes:
            value, axis = next(
                (value, axis)
                for value in fed_inputs(self._graph)
                for axis, dim in enumerate(self._sized.dims[value.name or ""])
                if dim.symbol == symbol
            )
            shape = self._op(self._graph, f"{PREFIX}shape/{symbol}", "Shape", [value])
            self._sizes[symbol] = self._op(
                self._graph, f"{PREFIX}size/{symbol}", "Gather", [shape, self._constant([axis])]
            )
        return self._sizes[symbol]

    def _op(
        self, where: ir.Graph | list[ir.Node], name: str, op_type: str, reads: list[ir.Value], *attributes: ir.Attr
    ) -> ir.Value:
        made = ir.Value(name=fresh_name(name, self._taken))
        where.append(ir.Node("", op_type, reads, attributes, outputs=[made], name=name))
        return made

    def _constant(self, numbers: list[int]) -> ir.Value:
        return self._weight(f"{PREFIX}{'_'.join(map(str, numbers)) or 'scalar'}", np.array(numbers, np.int64))

    def _constant_bool(self) -> ir.Value:
        return self._weight(f"{PREFIX}go", np.array(True))

    def _weight(self, name: str, array: np.ndarray) -> ir.Value:
        if name not in self._graph.initializers:
            tensor = ir.tensor(array, name=name)
            weight = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(dims_of(tensor)))
            weight.const_value = tensor
            self._graph.register_initializer(weight)
        return self._graph.initializers[name]
