"""A written model beside the graph that the runtime makes of it when it loads it: what the optimiser touched.

The reference model is optimised until nothing changes, but recomputation, tiles and gates make graphs that were never
optimised, and the runtime weighs some rewrites anew there: above all where a Transpose would be cheapest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir


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
    """What the optimiser changed, node by node, in the file that it saved. Constants may be joined to equal ones."""
    before, after = _nodes(written), _nodes(ir.load(loaded))
    return Touched(
        gone=tuple(name for name in before if name not in after),
        changed=tuple(name for name, node in before.items() if name in after and after[name] != node),
        new=tuple(name for name in after if name not in before),
    )


def held_back(written: ir.Model, found: Touched) -> frozenset[str]:
    """Values that a gate must hide from their readers, so that the optimiser finds nothing to do.

    Those are the values inside what it touched: made by a node that it removed, or, where that says nothing, by one
    that it changed, and read by another such node. A gate there is opaque to every rewrite.
    """
    gone = set(found.gone)
    reached = gone | set(found.changed)
    readers: dict[str, set[str]] = {}
    for node in written.graph:
        for value in node.inputs:
            if value is not None and value.name:
                readers.setdefault(value.name, set()).add(node.name or "")
    made = {value.name: node.name for node in written.graph for value in node.outputs if value.name}
    outputs = {value.name for value in written.graph.outputs}
    for makers in (gone, reached):
        inside = frozenset(
            name for name, maker in made.items() if maker in makers and readers.get(name, set()) & reached
        )
        if inside - outputs:
            return inside - outputs
    ends = {value.name or "" for node in written.graph if node.name in reached for value in node.inputs if value}
    return frozenset(name for name in ends if name in made and name not in outputs)


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
            tuple(sorted((name, str(value)) for name, value in node.attributes.items() if not _is_graph(value))),
        )
        for node in model.graph
    }


def _is_graph(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
