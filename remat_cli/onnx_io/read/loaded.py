"""Compares a written model with the graph that the runtime makes of it: which ops its optimiser touched.

The reference model is optimised until nothing changes, but recomputation, tiles and gates make graphs that were never
optimised, and the runtime weighs some rewrites anew there: above all where a Transpose would be cheapest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from remat_cli.onnx_io.read.mapped import parsed
from remat_cli.onnx_io.write.steady import seen_through

MOST_ELEMENTS = 64
"""Of a constant that steers an op, or is so small that hiding it does not change how the op computes."""


@dataclass(frozen=True)
class Touched:
    """What differs: nodes of the written model that are gone or run otherwise, and those that are new."""

    gone: tuple[str, ...]
    changed: tuple[str, ...]
    new: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.gone or self.changed or self.new)


def touched(written: ir.Model, loaded: Path) -> Touched:
    """What the optimiser changed, node by node, in the file that it saved. Constants may be joined to equal ones.

    `written` is the model without the steady form, which the file may have.
    """
    # The file's nodes; names of dimensions, two or more a tensor, take longer to read than all else.
    proto = parsed(loaded)
    del proto.graph.value_info[:]
    without_shapes = ir.from_proto(proto)
    before, after = _nodes(written), _nodes(seen_through(without_shapes))
    return Touched(
        gone=tuple(name for name in before if name not in after),
        changed=tuple(name for name, node in before.items() if name in after and after[name] != node),
        new=tuple(name for name in after if name not in before),
    )


def held_back(written: ir.Model, found: Touched, hidden: frozenset[str]) -> frozenset[str]:
    """More values than those `hidden` that a gate must hide from their readers, so that the optimiser finds less to do.

    Those are the values inside what it touched: made by a node that it removed, or, where that says nothing, by one
    that it changed, and read by another such node. A gate there is opaque to every rewrite of several nodes. A node
    that is removed for what it does alone (an Expand to the shape that is there) is kept by hiding its constants. What
    is left to hide else is what the touched nodes read.
    """
    gone = set(found.gone)
    reached = gone | set(found.changed)
    readers: dict[str, set[str]] = {}
    for node in written.graph:
        for value in node.inputs:
            if value is not None and value.name:
                readers.setdefault(value.name, set()).add(node.name or "")
    made = {value.name: node.name for node in written.graph for value in node.outputs if value.name}
    outputs = {value.name for value in written.graph.outputs if value.name}
    small = {
        name
        for name, value in written.graph.initializers.items()
        if (0 if value.const_value is None else value.const_value.size) <= MOST_ELEMENTS
    }
    levels = (
        {name for name, maker in made.items() if maker in gone and readers.get(name, set()) & reached},
        {name for name, maker in made.items() if maker in reached and readers.get(name, set()) & reached},
        {name for name in small if readers.get(name, set()) & gone},
        {name for name in made if readers.get(name, set()) & reached},
    )
    fresh = (frozenset(level - outputs - hidden) for level in levels)
    return next((level for level in fresh if level), frozenset())


GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
Node = tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]


def _nodes(model: ir.Model) -> Mapping[str, Node]:
    """Each node without the names of constants, by its own name."""
    constants = set(model.graph.initializers)
    return {
        node.name or "": (
            "" if node.domain == "ai.onnx" else node.domain,
            node.op_type,
            tuple("" if value is None or value.name in constants else value.name or "" for value in node.inputs),
            tuple(value.name or "" for value in node.outputs),
            tuple(sorted((name, str(each)) for name, each in node.attributes.items() if each.type not in GRAPHS)),
        )
        for node in model.graph
    }
