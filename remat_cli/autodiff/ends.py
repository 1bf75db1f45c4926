"""What a training step takes and gives, while it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.tape import Array, Tape, element_type, shape_of

LOSS = "loss"
TARGET = "target"
RATE = "learning_rate"
COUNT = "step_count"
NEXT = ".next"
GRADIENT = ".gradient"


@dataclass
class Ends:
    """Inputs and outputs in order; `state` maps outputs to the inputs they become, `first` holds their first values.

    `moved` are the weights that the step gives something for; `target` is the name of what outputs are compared with.
    """

    tape: Tape
    inputs: list[ir.Value]
    outputs: list[ir.Value] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    first: dict[str, Array] = field(default_factory=dict)
    moved: set[ir.Value] = field(default_factory=set)
    target: str | None = None

    def take(self, value: ir.Value, first: Array) -> None:
        """An input that the caller keeps from step to step."""
        self.inputs.append(value)
        self.first[value.name or ""] = first

    def give(self, value: ir.Value, name: str) -> ir.Value:
        """An output under a name; a copy where the value is an input, a constant or an output already."""
        if value.producer() is None or value in self.outputs:
            value = self.tape.op("Identity", value)
        value.name = self.tape.fresh(name)
        self.outputs.append(value)
        return value

    def give_next(self, old: ir.Value, new: ir.Value) -> None:
        """What an input is in the next step."""
        self.moved.add(old)
        self.state[self.give(new, f"{old.name}{NEXT}").name or ""] = old.name or ""

    def give_gradient(self, weight: ir.Value, grad: ir.Value) -> None:
        """A gradient as an output."""
        self.moved.add(weight)
        self.give(grad, f"{weight.name}{GRADIENT}")

    def number(self, name: str) -> ir.Value:
        """A real input of rank 0 that the caller chooses anew each time."""
        value = self._input(name, ir.DataType.FLOAT, ())
        self.inputs.append(value)
        return value

    def counted(self) -> ir.Value:
        """How many steps there were, this one included."""
        before = self._input(COUNT, ir.DataType.FLOAT, ())
        self.take(before, np.zeros((), np.float32))
        with self.tape.within("update", "update"):
            after = self.tape.op("Add", before, self.tape.scalar(1.0, before))
        self.give_next(before, after)
        return after

    def memory(self, weight: ir.Value, suffix: str) -> ir.Value:
        """What an optimizer remembers of a weight; zeros at first."""
        kind = memory_type(weight)
        value = self._input(f"{weight.name}.{suffix}", kind, shape_of(weight))
        self.take(value, np.zeros(shape_of(weight), kind.numpy()))
        return value

    def add_target(self, kind: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
        """The input that outputs are compared with."""
        value = self._input(TARGET, kind, shape)
        self.inputs.append(value)
        self.target = value.name
        return value

    def _input(self, name: str, kind: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
        return ir.Value(name=self.tape.fresh(name), type=ir.TensorType(kind), shape=ir.Shape(shape))


def memory_type(weight: ir.Value) -> ir.DataType:
    """In which an update is computed: 16 bits are too few for averages of small squares."""
    kind = element_type(weight)
    return ir.DataType.FLOAT if kind.itemsize < 4 else kind
