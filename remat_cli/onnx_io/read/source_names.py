"""Which nodes and tensors of the user's file an optimised model's ops and tensors were made of.

The runtime keeps the names of tensors that it does not fuse away. What it moves into its blocked layout it names after
the result that the op had before, and the tensors there get names of its own, which no user knows.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from remat_cli.core.schedule.graph import Graph, Op
from remat_cli.core.values.told_names import ToldNames

SCOPES_KEY = "pkg.torch.onnx.name_scopes"
BLOCKED = "_nchwc"
MOVES = frozenset({"ReorderInput", "ReorderOutput", "Transpose", "Cast", "Identity"})
"""Ops that the runtime adds around others: their result is what they are given, in another form."""
MOST_FUSED = 64


def told_names(source: ir.Model, graph: Graph) -> ToldNames:
    """What ops and tensors of an optimised model are called for people, where that is another name than their own."""
    return source_names(source, graph).told


def source_names(source: ir.Model, graph: Graph) -> SourceNames:
    """What is found of all ops."""
    made = {value.name or "": node for node in source.graph for value in node.outputs}
    known = {*made, *(value.name or "" for value in source.graph.inputs)}
    names = SourceNames(made, known, {node.name or "": node for node in source.graph})
    for tensor in graph.tensors:
        if tensor.producer is None and tensor.name in known:
            names.tensors[tensor.name] = tensor.name
    for op in graph.ops:
        names.learn(op, graph)
    return names


@dataclass(frozen=True)
class SourceNames:
    """What is known of the file, and what was found of the ops so far, which are learnt in their order."""

    made: Mapping[str, ir.Node]
    known: set[str]
    nodes: Mapping[str, ir.Node]
    ops: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    made_of: dict[str, list[ir.Node]] = field(default_factory=dict)

    @property
    def told(self) -> ToldNames:
        """What ops and tensors are called for people, where that is another name than their own."""
        return ToldNames(
            {name: told for name, told in self.ops.items() if told != name},
            {name: told for name, told in self.tensors.items() if told != name},
        )

    @property
    def source_nodes(self) -> dict[str, tuple[str, ...]]:
        """By op, the names of the file's nodes that it was made of; ops that were added have none."""
        return {op: tuple(node.name for node in nodes if node.name) for op, nodes in self.made_of.items()}

    def learn(self, op: Op, graph: Graph) -> None:
        """Find what one op and its results are called."""
        outputs = [graph.tensors[number].name for number in op.outputs]
        inputs = [self.tensors.get(graph.tensors[number].name, "") for number in op.inputs]
        before = op.name.partition(BLOCKED)[0]
        node = self.nodes.get(op.name)
        own = [] if node is None else [value.name or "" for value in node.outputs if value.name]
        for place, name in enumerate(outputs):
            if name in self.known:
                self.tensors[name] = name
            elif len(own) == len(outputs):
                self.tensors[name] = own[place]
            elif BLOCKED in op.name and before in self.known:
                self.tensors[name] = before
            elif op.op_type in MOVES and inputs and inputs[0]:
                self.tensors[name] = inputs[0]
        results = [self.tensors[name] for name in outputs if self.tensors.get(name) in self.made]
        if op.op_type in MOVES and inputs and inputs[0] and inputs[0] == self.tensors.get(outputs[0]):
            self.ops[op.name] = f"layout of {inputs[0]}"
        elif results:
            self.made_of[op.name] = self._fused(results[0], set(inputs))
            self.ops[op.name] = self._label(op, self.made_of[op.name])
        elif (fused := self.nodes.get(op.name.rpartition("/")[0])) is not None:
            # The runtime calls what it makes of several nodes `NODE/FUSION`, and its results by names of its own.
            self.made_of[op.name] = [fused]
            self.ops[op.name] = self._label(op, [fused])
            told = ((name, f"part {place} of {self.ops[op.name]}") for place, name in enumerate(outputs, 1))
            self.tensors.update((name, part) for name, part in told if name not in self.tensors)

    def _fused(self, result: str, inputs: set[str]) -> list[ir.Node]:
        """The nodes that make a result of what an op reads, the last first."""
        found, ahead = list[ir.Node](), [result]
        while ahead and len(found) < MOST_FUSED:
            node = self.made.get(ahead.pop(0))
            if node is not None and all(node is not other for other in found):
                found.append(node)
                ahead += [value.name or "" for value in node.inputs if value is not None and value.name not in inputs]
        return found

    def _label(self, op: Op, nodes: Sequence[ir.Node]) -> str:
        """By the node that gave an op its type, else the last one; by its module, where the file says that."""
        node = next((node for node in nodes if op.op_type in (node.op_type, f"Fused{node.op_type}")), nodes[0])
        module = module_of(node)
        if module:
            return f"{module} ({node.op_type})"
        return node.name or next((value.name for value in node.outputs if value.name), op.name)


def module_of(node: ir.Node) -> str:
    """The module of a network that a node belongs to, as torch's exporters write it down; empty where none did."""
    scopes: Sequence[str] = scopes_of(node)
    if not scopes and (node.name or "").startswith("/"):
        scopes = (node.name or "").strip("/").split("/")
    path: list[str] = []
    for scope in scopes[:-1]:  # the last one is the node
        if path and scope.startswith(f"{path[-1]}."):
            path[-1] = scope
        elif scope:
            path.append(scope)
    return ".".join(path)


def scopes_of(node: ir.Node) -> tuple[str, ...]:
    """What newer exporters of torch write down: the names of modules around a node, the outermost first, and its own.

    Empty where they did not; a file may hold anything there.
    """
    try:
        found = ast.literal_eval(node.metadata_props.get(SCOPES_KEY, "[]"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()
