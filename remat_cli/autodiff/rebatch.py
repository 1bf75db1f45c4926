"""Another batch for a model that was exported with a fixed one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.tape import Tape, known

Inputs = tuple[ir.Value | None, ...]
SHAPE_OPS = frozenset({"Reshape", "Expand"})  # their second input says what shape the first one gets


@dataclass
class Rebatch:
    """Shapes written into the model that begin with the `old` batch get the `new` one; `data` come from its inputs."""

    old: int
    new: int
    data: set[ir.Value] = field(default_factory=set)

    def inputs(self, node: ir.Node, inputs: Inputs, tape: Tape) -> Inputs:
        """What an op reads now."""
        target = known(inputs[1]) if node.op_type in SHAPE_OPS and len(inputs) > 1 else None
        if inputs[0] not in self.data or target is None or target.size == 0 or target[0] != self.old:
            return inputs
        changed = np.array([self.new, *target[1:]], target.dtype)
        return (inputs[0], tape.constant(changed), *inputs[2:])

    def note(self, inputs: Inputs, outputs: Iterable[ir.Value | None]) -> None:
        """What comes from data comes from data."""
        if any(value in self.data for value in inputs):
            self.data.update(value for value in outputs if value is not None)
