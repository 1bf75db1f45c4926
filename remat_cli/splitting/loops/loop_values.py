"""Numbers that a model with loops computes of its sizes: lengths, counts of tiles, empty tensors, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.values.sizes import Dim, SizeBound, number
from remat_cli.onnx_io.read.interface import fed_inputs, runtime_name
from remat_cli.onnx_io.read.normalise import fresh_name
from remat_cli.onnx_io.write.gate_helpers import COUNTED_TYPES
from remat_cli.onnx_io.write.weights import weight_in
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.rules.record import COPIED

PREFIX = "remat/loop/"
"""Of the names of all that a loop adds to the model."""


class SizeValues:
    """Writes ops that compute numbers of sizes; `dims` are those of tensors, `taken` the names of the model."""

    def __init__(
        self, graph: ir.Graph, dims: Mapping[str, tuple[Dim, ...]], taken: set[str], prefix: str = PREFIX
    ) -> None:
        self._graph = graph
        self._dims = dims
        self._taken = taken
        self._prefix = prefix
        self._empty: dict[object, ir.Value] = {}
        self._sizes: dict[str, ir.Value] = {}
        self._lengths: dict[Dim, ir.Value] = {}
        self._counts: dict[tuple[Dim, int, SizeBound | None], tuple[ir.Value, ir.Value]] = {}
        self._holds: dict[SizeBound, ir.Value] = {}
        self._late: dict[ir.Value, ir.Value] = {}

    def empty(self, name: str, axis: int, value: ir.Value) -> ir.Value:
        """A tensor like a value, whose dimensions are those of a name, with nothing along an axis."""
        dims = list(self._dims[name])
        dims[axis] = number(0)
        kind = present(value.type, f"the type of '{value.name}'")
        key = (tuple(dims), kind.dtype)
        if key not in self._empty:
            self._empty[key] = self._filled(f"{self._prefix}empty{len(self._empty)}", dims, kind)
        return self._empty[key]

    def zeros(self, dims: Sequence[Dim], kind: ir.TypeProtocol) -> ir.Value:
        """Zeros of these dimensions."""
        key = (tuple(dims), kind.dtype, "zeros")
        if key not in self._empty:
            self._empty[key] = self._filled(f"{self._prefix}zeros{len(self._empty)}", dims, kind)
        return self._empty[key]

    def _filled(self, prefix: str, dims: Sequence[Dim], kind: ir.TypeProtocol) -> ir.Value:
        parts = [self.computed(f"{prefix}/{at}", dim) for at, dim in enumerate(dims)]
        shape = self.op(self._graph, f"{prefix}/shape", "Concat", parts, ir.AttrInt64("axis", 0))
        filling = ir.AttrTensor("value", ir.tensor(np.zeros(1, kind.dtype.numpy())))
        filled = self.op(self._graph, prefix, "ConstantOfShape", [shape], filling)
        filled.type = kind
        return filled

    def computed(self, name: str, dim: Dim) -> ir.Value:
        """A dimension as a tensor of one number."""
        if not dim.terms:
            return self.constant([dim.offset])
        total: ir.Value | None = None
        for at, term in enumerate(dim.terms):
            value = self.size(term.names[0])
            for power, other in enumerate(term.names[1:]):
                value = self.op(self._graph, f"{name}/{at}/x{power}", "Mul", [value, self.size(other)])
            if term.factor != 1:
                value = self.op(self._graph, f"{name}/{at}/times", "Mul", [value, self.constant([term.factor])])
            total = value if total is None else self.op(self._graph, f"{name}/{at}/plus", "Add", [total, value])
        assert total is not None
        steps = [("Add", dim.offset, 0), ("Div", dim.divisor, 1), ("Mul", dim.times, 1), ("Add", dim.plus, 0)]
        for at, (op_type, more, neutral) in enumerate(steps):
            if more != neutral:
                label = f"{name}/{op_type}{'' if at < 2 else '/after'}"
                total = self.op(self._graph, label, op_type, [total, self.constant([more])])
        return total

    def length(self, dim: Dim) -> ir.Value:
        """A length as a tensor of one number, computed once."""
        if dim not in self._lengths:
            self._lengths[dim] = self.computed(f"{self._prefix}length{len(self._lengths)}", dim)
        return self._lengths[dim]

    def tiles(self, length: Dim, tiling: Tiling, single: SizeBound | None = None) -> tuple[ir.Value, ir.Value]:
        """How many tiles a length has, as a tensor of one number and as a number, computed once for all loops.

        Within the bound `single` it is one.
        """
        key = (length, tiling.rows, single)
        if not length.terms:
            known = tiling.count(length.offset)
            return self.constant([known]), self.weight(f"{self._prefix}count/{known}", np.array(known, np.int64))
        if key not in self._counts:
            name = f"{self._prefix}count{len(self._counts)}/{tiling.rows}/"
            tiles = self.length(length)
            if tiling.rows > 1:  # the runtime takes ops that change nothing out, and warns of what reads them inside
                more = self.op(self._graph, f"{name}more", "Add", [tiles, self.constant([tiling.rows - 1])])
                tiles = self.op(self._graph, f"{name}tiles", "Div", [more, self.constant([tiling.rows])])
            if single is not None:
                to_number = ir.AttrInt64("to", ir.DataType.INT64)
                is_one = self.op(self._graph, f"{name}is_one", "Cast", [self.holds(single)], to_number)
                further = self.op(self._graph, f"{name}further", "Sub", [self.constant([1]), is_one])
                several = self.op(self._graph, f"{name}several", "Mul", [tiles, further])
                tiles = self.op(self._graph, f"{name}one_or_more", "Add", [several, is_one])
            count = self.op(self._graph, f"{name}count", "Reshape", [tiles, self.constant([])])
            self._counts[key] = tiles, count
        return self._counts[key]

    def size(self, symbol: str) -> ir.Value:
        """A named dimension as a tensor of one number, read from the first input that has it."""
        if symbol not in self._sizes:
            value, axis = next(
                (value, axis)
                for value in fed_inputs(self._graph)
                for axis, dim in enumerate(self._dims[value.name or ""])
                if dim.symbol == symbol
            )
            shape = self.op(self._graph, f"{self._prefix}shape/{symbol}", "Shape", [value])
            self._sizes[symbol] = self.op(
                self._graph, f"{self._prefix}size/{symbol}", "Gather", [shape, self.constant([axis])]
            )
        return self._sizes[symbol]

    def known_late(self, shape: ir.Value) -> ir.Value:
        """The same numbers, computed in each run: nothing knows them before."""
        if shape not in self._late:
            symbols = (dim.symbol for value in fed_inputs(self._graph) for dim in self._dims[value.name or ""])
            size = self.size(present(next(filter(None, symbols), None), "a length that varies"))
            nothing = self.op(self._graph, f"{shape.name}/nothing", "Mul", [size, self.constant([0])])
            self._late[shape] = self.op(self._graph, f"{shape.name}/late", "Add", [shape, nothing])
        return self._late[shape]

    def copied(self, rank: int) -> ir.Value:
        """A shape that copies so many lengths; how many is known to a run only."""
        name = f"{self._prefix}copied/{rank}"
        if name not in self._sizes:
            parts = [self.constant([COPIED] * rank), self.constant([0]), self.known_late(self.constant([rank]))]
            self._sizes[name] = self.op(self._graph, name, "Slice", parts)
        return self._sizes[name]

    def op(
        self, where: ir.Graph | list[ir.Node], name: str, op_type: str, reads: list[ir.Value], *attributes: ir.Attr
    ) -> ir.Value:
        """Append an op of one result."""
        made = ir.Value(name=fresh_name(name, self._taken))
        where.append(ir.Node("", op_type, reads, attributes, outputs=[made], name=name))
        return made

    def waiting(self, nodes: list[ir.Node], label: str, value: ir.Value, token: ir.Value) -> ir.Value:
        """A view of a value that exists once another one does."""
        rank = len(present(value.shape, f"the shape of '{value.name}'"))
        if token.type is not None and runtime_name(present(token.dtype, "a type")) not in COUNTED_TYPES:
            # The runtime would convert all of it to count it: no element of it is converted here.
            token = self.op(nodes, f"{label}/nothing", "Gather", [token, self.constant([])])
            to_int64 = ir.AttrInt64("to", int(ir.DataType.INT64))
            token = self.op(nodes, f"{label}/cast", "Cast", [token], to_int64)
        size = self.op(nodes, f"{label}/size", "Size", [token])
        view = self.behind(nodes, (label, f"{label}/same"), value, rank, size)
        view.shape = value.shape
        return view

    def behind(
        self, nodes: list[ir.Node], labels: tuple[str, str], value: ir.Value, rank: int, token: ir.Value
    ) -> ir.Value:
        """A view of a value of this rank that exists once a number does; labels of the view and of its shape."""
        label, shape_label = labels
        same = self.op(nodes, shape_label, "Mul", [token, self.constant([0] * rank)])
        view = self.op(nodes, label, "Reshape", [value, same])
        view.type = value.type
        return view

    def number_like(self, nodes: list[ir.Node], name: str, value: ir.Value, like: ir.Value) -> ir.Value:
        """A tensor of one whole number as a number of another one's type."""
        number = self.op(nodes, name, "Reshape", [value, self.constant([])])
        if like.dtype not in (None, ir.DataType.INT64):
            number = self.op(nodes, f"{name}/cast", "Cast", [number], ir.AttrInt64("to", int(like.dtype)))
        return number

    def constant(self, numbers: list[int]) -> ir.Value:
        """Whole numbers as a weight, one for all that are alike."""
        return self.weight(f"{self._prefix}{'_'.join(map(str, numbers)) or 'scalar'}", np.array(numbers, np.int64))

    def weight(self, name: str, array: np.ndarray) -> ir.Value:
        """A weight of the main graph, one for each name."""
        return weight_in(self._graph, name, array)

    def holds(self, bound: SizeBound) -> ir.Value:
        """Whether sizes are within a bound, as a tensor of one flag."""
        if bound not in self._holds:
            name = f"{self._prefix}bound{len(self._holds)}"
            value: ir.Value | None = None
            for at, dim in enumerate(bound.factors):
                length = self.length(dim)
                value = length if value is None else self.op(self._graph, f"{name}/x{at}", "Mul", [value, length])
            assert value is not None
            flag = self.op(self._graph, f"{name}/holds", "Less", [value, self.constant([bound.most + 1])])
            flag.type = ir.TensorType(ir.DataType.BOOL)
            self._holds[bound] = self.op(self._graph, f"{name}/flag", "Reshape", [flag, self.constant([])])
        return self._holds[bound]
