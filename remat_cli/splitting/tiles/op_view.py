"""What slicing rules speak of: a slab of a tensor, an op with the shapes around it, and the op cut down to a slab."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.onnx_io.read.interface import fixed_value

MOST_THREADS = 8
SUMMED = -1
"""The axis of a slab of the positions that an op adds up."""
Shape = tuple[int, ...]
Value = int | float | str | tuple[int, ...] | tuple[float, ...]


class Slab(NamedTuple):
    """Positions `start` to `stop` (exclusive) along `axis`; never empty."""

    axis: int
    start: int
    stop: int

    @property
    def extent(self) -> int:
        """How many positions it has."""
        return self.stop - self.start

    def hull(self, other: Slab | None) -> Slab:
        """The smallest slab that contains both; they lie along the same axis."""
        if other is None:
            return self
        return Slab(self.axis, min(self.start, other.start), max(self.stop, other.stop))

    def contains(self, other: Slab) -> bool:
        """Whether all of `other` lies inside."""
        return self.axis == other.axis and self.start <= other.start and other.stop <= self.stop


def hull(slabs: Iterable[Slab]) -> Slab | None:
    """The smallest slab that has all of these; they lie along the same axis."""
    found: Slab | None = None
    for slab in slabs:
        found = slab.hull(found)
    return found


def tile_bounds(extent: int, tiles: int) -> tuple[int, ...]:
    """Bounds that cut an extent into `tiles` parts as equal as can be: `tiles` + 1 rising positions."""
    return tuple(round(tile * extent / tiles) for tile in range(tiles + 1))


@dataclass(frozen=True)
class OpView:
    """A node with the static shapes of its inputs and outputs by position (None: left out).

    `opset` is the version of the node's own domain. `weights` tells by position which inputs are constants, `defaults`
    which of these are inputs of the model too, so that a caller may give others. `threads` is the most threads that may
    share an op: bits hold for any number up to it, but for ops that share out packets of elements, for which they hold
    with `own_threads`. With `may_reassociate` bits need not hold: a slab may add up in another order than the whole,
    and zeros may have the other sign. `at_one_size`: it will run at these sizes only, so that a shape that is computed
    from sizes is as well said. `is_portable`: other kinds of processors than this one will run it too.
    """

    node: ir.Node
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    weights: tuple[bool, ...]
    opset: int
    threads: int = MOST_THREADS
    may_reassociate: bool = False
    own_threads: int = MOST_THREADS
    defaults: tuple[bool, ...] = ()
    at_one_size: bool = False
    is_portable: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Domain and op type, the ONNX domain written as ""."""
        return ("" if self.node.domain == "ai.onnx" else self.node.domain, self.node.op_type)

    @cached_property
    def output_shape(self) -> Shape:
        """Shape of the first output that exists."""
        return next(shape for shape in self.outputs if shape is not None)

    def input_shape(self, position: int) -> Shape:
        """Shape of an input that exists."""
        return present(self.inputs[position], "the shape of an input")

    def has_input(self, position: int) -> bool:
        """Whether an optional input is given."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def is_fixed(self, position: int) -> bool:
        """Whether an input is a constant for which no caller may give another: the runtime may pack it beforehand."""
        return self.weights[position] and not any(self.defaults[position : position + 1])

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_int()

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty when the attribute is not given."""
        attribute = self.node.attributes.get(name)
        return () if attribute is None else tuple(attribute.as_ints())

    def text(self, name: str, default: str) -> str:
        """A text attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_string()

    def constant(self, position: int) -> npt.NDArray[np.generic] | None:
        """Value of an input, None where it is not given or not known before the run."""
        value = self.node.inputs[position] if position < len(self.node.inputs) else None
        tensor = fixed_value(value)
        return None if tensor is None else np.asarray(tensor.numpy())


class SumSoFar(Enum):
    """What becomes of the sum so far where a tile adds up some positions, unless an input takes it."""

    ADDED = "the sum of the tile is added to it"
    FIRST_ROW = "it stands in front of the rows that the tile adds up"


@dataclass(frozen=True)
class Sliced:
    """An op cut down so that it makes a slab of its outputs.

    `needs` gives by input position the slab it then reads, None for all of it. A constant may be cut where each tile
    reads a part of its own (a position embedding), never where all tiles together would hold more than the whole (the
    weight of a convolution). `makes` is what every output then holds, which may be more than was asked for: the rest
    is cut off, and may hold wrong values. `attributes` and `constants` (by input position) replace those of the node.
    Where an op is cut along what it adds up, `so_far` says what becomes of the sum so far, or which input takes it.
    """

    needs: tuple[Slab | None, ...]
    makes: Slab
    attributes: Mapping[str, Value] = field(default_factory=dict)
    constants: Mapping[int, npt.NDArray[np.generic]] = field(default_factory=dict)
    so_far: SumSoFar | int | None = None


def of_first(op: OpView, need: Slab | None, makes: Slab) -> Sliced:
    """A slab of the first input, all of the others."""
    return Sliced((need, *[None] * (len(op.inputs) - 1)), makes)


def broadcast_need(shape: Shape | None, rank: int, extent: int, slab: Slab) -> Slab | None:
    """The part that a slab reads of an input broadcast from the right; None where it has no such axis."""
    axis = slab.axis - (rank - len(shape or ()))
    if shape is None or axis < 0 or shape[axis] != extent or extent == 1:
        return None
    return Slab(axis, slab.start, slab.stop)
