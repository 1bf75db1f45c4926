"""The guard: one op that fails on processors for which a file was not made, and comes before all others.

The runtime's layout keeps so many channels of a convolution together as fit the processor: 16 with AVX-512, else 8. A
file that holds weights in that layout computes other numbers elsewhere without a word. ReorderOutput takes a tensor of
one block apart and refuses one that is no whole block there; that of 16 channels for one is refused where blocks are 8,
and the other way round. Ops of that domain are computed in no session before its first run, at no level of
optimisation, so that it is the first op of that run which refuses.

It stands in a loop of one round, for the sake of processors without that layout (ARM, browsers): a session that does
not know an op names the op alone, but where it stands in a loop also the loop, when it loads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.runs_on import MADE_FOR, guard_name
from remat_cli.onnx_io.read.default_order import subgraphs
from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.onnx_io.read.op_facts import NCHWC
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.onnx_io.write.op_versions import all_nodes
from remat_cli.ort_rules.runtime import processor_of

GUARD_OP = "Loop"
GUARD_RESULT = TensorType("int64", ())


@dataclass(frozen=True)
class Guard:
    """An op of this name, which wants a block of so many channels."""

    name: str
    block: int

    @property
    def rounds(self) -> str:
        """The name of the number of its rounds, with which it also begins where it waits for nothing."""
        return f"{self.name}/rounds"

    @property
    def constant(self) -> str:
        """The name of the block that it takes apart, which its body reads from outside: as weights are counted."""
        return f"{self.name}/block"

    @property
    def weights(self) -> Mapping[str, ir.TensorProtocol]:
        """What it reads."""
        return {
            self.rounds: ir.tensor(np.array(1, np.int64), name=self.rounds),
            self.constant: ir.tensor(np.zeros((1, self.block, 1, 1), np.float32), name=self.constant),
        }

    def draft(self, name: str, begins_with: str) -> Draft:
        """The guard as a node to be; it waits for the number that it begins with, whatever that is."""
        reads, captured = (self.rounds, "", begins_with), ((self.constant, self.constant),)
        body = self.body(ir.Value(name=self.constant))
        return Draft(name, GUARD_OP, reads, (name,), captured=captured, changed=(body,))

    def body(self, block: ir.Value) -> ir.Attr:
        """One round: take a block apart, and count what came of it."""
        number, last, count = (_scalar(name, ir.DataType.INT64) for name in ("number", "last", "count"))
        go, goes_on = (_scalar(name, ir.DataType.BOOL) for name in ("go", "goes_on"))
        apart, channels = ir.Value(name="apart"), [ir.AttrInt64("channels", 1)]
        nodes = [
            ir.Node("", "Identity", [go], outputs=[goes_on], name=f"{self.name}/goes_on"),
            ir.Node(NCHWC, "ReorderOutput", [block], channels, outputs=[apart], name=f"{self.name}/apart"),
            ir.Node("", "Size", [apart], outputs=[count], name=f"{self.name}/count"),
        ]
        graph = ir.Graph([number, go, last], [goes_on, count], nodes=nodes, name=f"{self.name}/round")
        return ir.AttrGraph("body", graph)


def _scalar(name: str, kind: ir.DataType) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape([]))


def guard_for(machine: str, block: int) -> Guard | None:
    """The guard of a file with blocks of so many channels, made on such a machine; None for one without blocks."""
    return Guard(guard_name(processor_of(machine, block)), block) if block > 1 else None


def guard_in(model: ir.Model) -> Guard | None:
    """The guard that a file has; None for one without."""
    for guard in all_nodes(model):
        if guard.op_type == GUARD_OP and (guard.name or "").startswith(MADE_FOR):
            inner = (node for body in subgraphs(guard) for node in body if node.domain == NCHWC and node.inputs)
            blocks = (value.const_value for node in inner if (value := node.inputs[0]) is not None)
            channels = next((dims_of(block)[1] for block in blocks if block is not None), 0)
            if channels:
                return Guard(guard.name or "", channels)
    return None


def with_lone_guards(model: ir.Model, guard: Guard) -> ir.Model:
    """A model that remat cuts into sessions of its own, with a guard for sessions of anybody else's. In place.

    Nothing waits for it, so that the ops stay as a plan knows them: it is both the first and the last op of the file,
    one of which any session runs first.
    """
    graph = model.graph
    rounds, block = _weight(guard, guard.rounds), _weight(guard, guard.constant)
    for value in (rounds, block):
        graph.register_initializer(value)
    first, last = (
        ir.Node("", GUARD_OP, [rounds, None, rounds], [guard.body(block)], outputs=[ir.Value(name=name)], name=name)
        for name in (guard.name, f"{guard.name}_again")
    )
    graph.insert_before(graph[0], first)
    graph.append(last)
    return model


def _weight(guard: Guard, name: str) -> ir.Value:
    tensor = guard.weights[name]
    shape = ir.Shape(dims_of(tensor))
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
