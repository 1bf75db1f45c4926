"""The guard: one op that fails on processors for which a file was not made, and comes before all others.

The runtime's layout keeps so many channels of a convolution together as fit the processor: 16 with AVX-512, else 8. A
file that holds weights in that layout computes other numbers elsewhere without a word. ReorderOutput takes a tensor of
one block apart and refuses one that is no whole block there; that of 16 channels for one is refused where blocks are 8,
and the other way round. Ops of that domain are computed in no session before its first run, at no level of
optimisation, so that it is the first op of that run which refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.core.graph import TensorType
from remat_cli.core.runs_on import MADE_FOR, guard_name, processor_of
from remat_cli.onnx_io.interface import dims_of
from remat_cli.onnx_io.op_facts import NCHWC
from remat_cli.onnx_io.op_versions import all_nodes

GUARD_OP = "ReorderOutput"
GUARD_ATTRIBUTES = (("channels", 1),)
GUARD_RESULT = TensorType("float", (1, 1, 1, 1))


@dataclass(frozen=True)
class Guard:
    """An op of this name, which wants a block of so many channels."""

    name: str
    block: int

    @property
    def constant(self) -> str:
        """The name of the block that it takes apart."""
        return f"{self.name}/block"

    @property
    def shape(self) -> str:
        """The name of that block's shape, where it is made during the run."""
        return f"{self.name}/shape"

    @property
    def kind(self) -> TensorType:
        """The type of that block."""
        return TensorType("float", (1, self.block, 1, 1))

    @property
    def weights(self) -> Mapping[str, ir.TensorProtocol]:
        """What it may read."""
        return {
            self.constant: ir.tensor(np.zeros(self.kind.shape, np.float32), name=self.constant),
            self.shape: ir.tensor(np.array(self.kind.shape, np.int64), name=self.shape),
        }


def guard_for(machine: str, block: int) -> Guard | None:
    """The guard of a file with blocks of so many channels, made on such a machine; None for one without blocks."""
    return Guard(guard_name(processor_of(machine, block)), block) if block > 1 else None


def guard_in(model: ir.Model) -> Guard | None:
    """The guard that a file has; None for one without."""
    found = (node for node in all_nodes(model) if node.domain == NCHWC and (node.name or "").startswith(MADE_FOR))
    node = next(found, None)
    return None if node is None else Guard(node.name or "", _block_of(node))


def _block_of(guard: ir.Node) -> int:
    """Channels of the block that a guard takes apart; 0 where the file does not say so itself."""
    read = guard.inputs[0]
    if read is not None and read.const_value is not None:
        return dims_of(read.const_value)[1]
    return 0


def with_lone_guards(model: ir.Model, guard: Guard) -> ir.Model:
    """A model that remat cuts into sessions of its own, with a guard for sessions of anybody else's. In place.

    Nothing waits for it, so that the ops stay as a plan knows them: it is both the first and the last op of the file,
    one of which any session runs first.
    """
    graph = model.graph
    block = ir.Value(name=guard.constant, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(guard.kind.shape))
    block.const_value = guard.weights[guard.constant]
    graph.register_initializer(block)
    first, last = (_lone_guard(name, block) for name in (guard.name, f"{guard.name}/again"))
    graph.insert_before(graph[0], first)
    graph.append(last)
    return model


def _lone_guard(name: str, block: ir.Value) -> ir.Node:
    attributes = [ir.AttrInt64(key, value) for key, value in GUARD_ATTRIBUTES]
    return ir.Node(NCHWC, GUARD_OP, [block], attributes, outputs=[ir.Value(name=name)], name=name)
