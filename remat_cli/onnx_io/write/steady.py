"""Puts a model into a form in which every run takes as much memory as the first one, and takes it out again.

The runtime makes no pattern for a graph that captures a sequence. So the graph moves into a branch of an If, where a
first op reads an empty sequence from outside; large weights stay outside. Workspaces of some bytes in a branch of
another If before it, each freed at once, make the arena take regions of the right sizes (ballasts). They are those of
LSTMs over many steps of which the sequence has one: the kernel asks for room for all and writes one.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.schedule.loops import is_loop, is_zero, zero_of
from remat_cli.onnx_io.read.default_order import subgraphs
from remat_cli.onnx_io.read.interface import dims_of, fed_inputs, port_of, runtime_name
from remat_cli.onnx_io.read.normalise import fresh_name, names_in
from remat_cli.onnx_io.write.gate_helpers import COUNTED_TYPES
from remat_cli.ort_rules.steady import BODY, NUMBER_BYTES, PREFIX, Ballast, SteadyForm

FORM_KEY = "remat.steady"  # model metadata: bytes of each ballast
EARLY_KEY = "remat.steady_early"  # model metadata: numbers of outputs whose shape the body says
INNER = f"{PREFIX}inner/"  # of the body's own outputs
OLDEST_OPSET = 11  # the first with sequences
INLINE_BYTES = 1024  # smaller weights go into the body, where shapes that they say stay known
FILLED_TYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BOOL}
    | {ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64}
    | {ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}
)
"""What ConstantOfShape makes at every opset."""


def can_be_steady(model: ir.Model) -> bool:
    """Whether a model can be put into the form: it has an input to begin with, and outputs that an op fills."""
    graph = model.graph
    opset = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", 0))
    if opset < OLDEST_OPSET or waiting_input(model) is None or not graph.outputs:
        return False
    kinds = [None if value.producer() is None else value.type for value in graph.outputs]
    return all(isinstance(kind, ir.TensorType) and kind.dtype in FILLED_TYPES for kind in kinds)


def waiting_input(model: ir.Model) -> ir.Value | None:
    """The input whose readers wait for the sequence: the first that an op reads and whose rank is known."""
    return next((value for value in fed_inputs(model.graph) if value.uses() and value.shape is not None), None)


def steady(model: ir.Model, form: SteadyForm, outside: Collection[str] = (), inside: Collection[str] = ()) -> ir.Model:
    """The model in this form; `can_be_steady` must hold. Interface, nodes, their order and names stay.

    Outputs of the body leave their shapes open, so that they are made when the op that fills them runs; those that are
    `early` do not, and the runtime makes them before the body begins. Weights named in `outside` stay there, however
    small: those of which kernels keep packed copies alone, since a branch keeps the original of its own ones too.
    Those named in `inside` go into the branch, however large: those that kernels in bodies of its ops pack, which they
    do with weights that their own graph or the one right outside has, and products with others have other bits.
    Weights that are inputs too, whose values a caller may replace, stay outside in any case.
    """
    new = model.clone()
    graph = new.graph
    gated = present(waiting_input(new), "an input that ops wait for")
    writer = _Writer(graph, gated, names_in(new))
    nodes = list(graph)
    graph.remove(nodes)
    sequence = writer.op(writer.main, "seq", "SequenceEmpty", [])
    sequence.type = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    start = writer.count(writer.main, "size")
    if form.ballasts:
        start = writer.ballasts(sequence, start, form.ballasts)
    condition = writer.op(writer.main, "go", "Greater", [start, writer.constant("least", -1)])
    outputs = list(graph.outputs)
    graph.outputs.clear()
    body = writer.body(sequence, nodes, outputs, (outside, inside))
    branches = [ir.AttrGraph("then_branch", body), ir.AttrGraph("else_branch", writer.filled(outputs))]
    ports = [port_of(value) for value in outputs]
    made = [ir.Value(name=port.name, type=port.type, shape=port.shape) for port in ports]
    whole = ir.Node("", "If", [condition], branches, outputs=made, name=BODY)
    for value, inner in zip(outputs, body.outputs, strict=True):
        assert value is inner
        if value.name not in form.early:
            value.shape = _open_shape(value)
        value.name = f"{INNER}{value.name}"
    graph.outputs.extend(made)
    graph.extend([*writer.main, whole])
    new.metadata_props[FORM_KEY] = ",".join(map(str, form.ballast_bytes))
    if form.early:
        numbers = (str(number) for number, value in enumerate(made) if value.name in form.early)
        new.metadata_props[EARLY_KEY] = ",".join(numbers)
    return new


def _open_shape(value: ir.Value) -> ir.Shape | None:
    """A shape of the same rank that says nothing; a scalar has none to hide."""
    if value.shape is None:
        return None
    return ir.Shape([f"{value.name}/{axis}" for axis in range(len(value.shape))])


class _Writer:
    """Writes the nodes of the form around a graph."""

    def __init__(self, graph: ir.Graph, gated: ir.Value, taken: set[str]) -> None:
        self._graph = graph
        self._gated = gated
        self._taken = taken
        self.main: list[ir.Node] = []

    def op(self, nodes: list[ir.Node], name: str, op_type: str, reads: list[ir.Value]) -> ir.Value:
        """Append an op of one result."""
        made = ir.Value(name=fresh_name(f"{PREFIX}{name}", self._taken))
        nodes.append(ir.Node("", op_type, reads, outputs=[made], name=f"{PREFIX}{name}"))
        return made

    def count(self, nodes: list[ir.Node], name: str) -> ir.Value:
        """A number that exists with the gated input.

        Of types that the runtime's Size does not take it would convert the whole input; so of these no element counts.
        """
        counted, kind = self._gated, self._gated.type
        if kind is not None and runtime_name(kind.dtype) not in COUNTED_TYPES:
            if self._gated.shape:
                counted = self.op(nodes, f"{name}/nothing", "Gather", [counted, self.constant("nothing", [])])
            counted = self.op(nodes, f"{name}/cast", "Cast", [counted])
            nodes[-1].attributes["to"] = ir.AttrInt64("to", int(ir.DataType.INT64))
        return self.op(nodes, name, "Size", [counted])

    def constant(self, name: str, value: int | list[int], kind: type[np.integer[Any]] = np.int64) -> ir.Value:
        """A weight in the main graph, one for each name."""
        name = f"{PREFIX}{name}"
        if name not in self._graph.initializers:
            tensor = ir.tensor(np.array(value, kind), name=name)
            weight = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(dims_of(tensor)))
            weight.const_value = tensor
            self._graph.register_initializer(weight)
        return self._graph.initializers[name]

    def ballasts(self, sequence: ir.Value, start: ir.Value, ballasts: Sequence[Ballast]) -> ir.Value:
        """A number that exists once workspaces of so many bytes were had and freed in a branch, one by one."""
        nodes: list[ir.Node] = []
        count, known = self.op(nodes, "length", "SequenceLength", [sequence]), 0
        for number, ballast in enumerate(ballasts):
            # Its own shapes wait for the number that exists by then, which is known.
            name, reads = f"ballast{number}", list[ir.Value | None]()
            for kind, dims in zip(("steps", "weights", "recurrence"), ballast.shapes, strict=True):
                rest = self.constant(f"{name}/{kind}_dims", [size - known for size in dims])
                shape = self.op(nodes, f"{name}/{kind}_shape", "Add", [count, rest])
                reads.append(self.op(nodes, f"{name}/{kind}", "ConstantOfShape", [shape]))
            one_step = self.constant("one_step", [1], np.int32)
            hidden = ir.Value(name=fresh_name(f"{PREFIX}{name}/hidden", self._taken))
            size = [ir.AttrInt64("hidden_size", ballast.hidden)]
            results = [ir.Value(name=""), hidden]
            nodes.append(ir.Node("", "LSTM", [*reads, None, one_step], size, outputs=results, name=f"{PREFIX}{name}"))
            count, known = self.op(nodes, f"{name}/count", "Size", [hidden]), ballast.hidden
        other: list[ir.Node] = []
        otherwise = self.count(other, "none")
        for value in (count, otherwise):
            value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        condition = self.op(self.main, "first", "Greater", [start, self.constant("least", -1)])
        made = ir.Value(name=fresh_name(f"{PREFIX}token", self._taken))
        branches = [
            ir.AttrGraph("then_branch", ir.Graph([], [count], nodes=nodes, name=f"{PREFIX}with_ballast")),
            ir.AttrGraph("else_branch", ir.Graph([], [otherwise], nodes=other, name=f"{PREFIX}without")),
        ]
        self.main.append(ir.Node("", "If", [condition], branches, outputs=[made], name=f"{PREFIX}token"))
        return made

    def body(
        self,
        sequence: ir.Value,
        nodes: list[ir.Node],
        outputs: list[ir.Value],
        weights: tuple[Collection[str], Collection[str]],
    ) -> ir.Graph:
        """The branch that holds the nodes, behind a view of an input that waits for the sequence.

        `weights` are names of those that stay outside, and of those that do not.
        """
        gated, gate = self._gated, list[ir.Node]()
        for node in nodes:
            if is_loop(node.name):  # tiles run without a memory pattern too
                for body in _bodies(node):
                    reads = [value for each in body for value in each.inputs if value is not None]
                    for value in dict.fromkeys(reads):
                        if is_zero(value.name or ""):
                            self._instead_of_zero(value, node, body, sequence)
                self._graph.initializers.pop(zero_of(node.name), None)
        readers = [(node, at) for node in nodes for at, value in enumerate(node.inputs) if value is gated]
        assert gated.shape is not None
        length = self.op(gate, "waits", "SequenceLength", [sequence])
        zeros = self.constant("zeros", [0] * len(gated.shape))
        view = self.op(gate, "input", "Reshape", [gated, self.op(gate, "same", "Mul", [length, zeros])])
        view.type = gated.type
        for node, at in readers:
            node.replace_input_with(at, view)
        outside, inside = weights
        own = [
            value
            for name, value in self._graph.initializers.items()
            if value.const_value is not None and not name.startswith(PREFIX) and value not in self._graph.inputs
            if name in inside or (value.const_value.nbytes <= INLINE_BYTES and name not in outside)
        ]
        for value in own:
            del self._graph.initializers[value.name or ""]
        return ir.Graph([], outputs, nodes=[*gate, *nodes], initializers=own, name=f"{PREFIX}graph")

    def _instead_of_zero(self, zero: ir.Value, loop: ir.Node, body: ir.Graph, sequence: ir.Value) -> None:
        """Let a body take the length of the sequence for the zero of its loop."""
        made: list[ir.Node] = []
        count = self.op(made, f"loop/{body.name}/{loop.name}", "SequenceLength", [sequence])
        readers = [(use.node, use.idx) for use in zero.uses() if use.node.graph is body]
        body.insert_before(body[0], made[0])
        for reader, at in readers:
            reader.replace_input_with(at, count)

    def filled(self, outputs: list[ir.Value]) -> ir.Graph:
        """The branch that never runs: outputs of the same types, of shapes that are computed in it."""
        nodes: list[ir.Node] = []
        size = self.count(nodes, "other")
        results: list[ir.Value] = []
        for number, value in enumerate(outputs):
            rank = 0 if value.shape is None else len(value.shape)
            ones = self.constant(f"ones{rank}", [1] * rank)
            shape = self.op(nodes, f"shape{number}", "Mul", [size, ones])
            result = self.op(nodes, f"filled{number}", "ConstantOfShape", [shape])
            kind = present(value.type, f"the type of '{value.name}'")
            filling = ir.tensor(np.zeros(1, kind.dtype.numpy()))
            nodes[-1].attributes["value"] = ir.AttrTensor("value", filling)
            result.type = value.type
            result.shape = ir.Shape([f"{PREFIX}any{number}_{axis}" for axis in range(rank)])
            results.append(result)
        return ir.Graph([], results, nodes=nodes, name=f"{PREFIX}never")


def weight_bytes_of(model: ir.Model, form: SteadyForm) -> int:
    """Bytes of the constants that a model gets with the form, less those of loops, which need their zero no more."""
    waiting = present(waiting_input(model), "an input that ops wait for")
    ranks = {len(value.shape or ()) for value in model.graph.outputs}
    zeros = sum(map(is_zero, model.graph.initializers))
    numbers = 1 + len(waiting.shape or ()) + sum(ranks) - zeros
    return NUMBER_BYTES * numbers + form.constant_bytes


def form_of(model: ir.Model) -> SteadyForm | None:
    """The form that a model has; None for every other one."""
    sizes = model.metadata_props.get(FORM_KEY)
    if sizes is None or _body_of(model) is None or not all(size.isdigit() for size in _listed(sizes)):
        return None
    numbers = _listed(model.metadata_props.get(EARLY_KEY, ""))
    early = (value.name or "" for number, value in enumerate(model.graph.outputs) if str(number) in numbers)
    return SteadyForm(tuple(map(int, _listed(sizes))), tuple(early))


def lost_metadata(model: ir.Model) -> bool:
    """Whether a model has the form, and nothing is left of what its file said of that."""
    return _body_of(model) is not None and FORM_KEY not in model.metadata_props


def _listed(sizes: str) -> list[str]:
    return sizes.split(",") if sizes else []


def _body_of(model: ir.Model) -> ir.Node | None:
    node = next((node for node in model.graph if node.name == BODY and node.op_type == "If"), None)
    return node if node is not None and "then_branch" in node.attributes else None


def seen_through(model: ir.Model) -> ir.Model:
    """The model without the form, as it was put into it; any other model is given back as it is. In place.

    A session that saves what it made of a file keeps the form, whatever it did inside.
    """
    whole = _body_of(model)
    if whole is None or FORM_KEY not in model.metadata_props:
        return model
    graph = model.graph
    body = whole.attributes["then_branch"].as_graph()
    nodes, inner, outer = list(body), list(body.outputs), list(graph.outputs)
    weights = list(body.initializers.values())
    made = dict(zip(whole.outputs, inner, strict=True))
    body.outputs.clear()
    graph.outputs[:] = [made[value] for value in outer]
    graph.remove([node for node in graph if (node.name or "").startswith(PREFIX)])
    body.remove(nodes)
    body.initializers.clear()
    for value in weights:
        graph.register_initializer(value)
    for node in nodes:
        if is_loop(node.name):
            _out_of_loop(graph, node)
    # Let all that read the view of an input read the input.
    gate = next(node for node in nodes if node.name == f"{PREFIX}input")
    gated = present(gate.inputs[0], "the input of the form's gate")
    gate.outputs[0].replace_all_uses_with(gated, replace_graph_outputs=True)
    graph.extend([node for node in nodes if not (node.name or "").startswith(PREFIX)])
    for value, now in zip(outer, graph.outputs, strict=True):
        now.name, now.shape, now.type = value.name, value.shape, value.type
    for name in [name for name in graph.initializers if name.startswith(PREFIX)]:
        del graph.initializers[name]
    del model.metadata_props[FORM_KEY]
    model.metadata_props.pop(EARLY_KEY, None)
    return model


def _bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs of a node, and of the nodes in them."""
    graphs = subgraphs(node)
    return [*graphs, *(deep for graph in graphs for inner in graph for deep in _bodies(inner))]


def _out_of_loop(graph: ir.Graph, node: ir.Node) -> None:
    """Give back to the graph what its weights were, and to a loop the number that it took from the sequence."""
    for body in _bodies(node):
        weights = list(body.initializers.values())
        body.initializers.clear()
        for value in weights:
            graph.register_initializer(value)
        for own in [each for each in body if (each.name or "").startswith(PREFIX)]:
            name = zero_of(node.name)
            if name not in graph.initializers:
                tensor = ir.tensor(np.array(0, np.int64), name=name)
                zero = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([]), const_value=tensor)
                graph.register_initializer(zero)
            own.outputs[0].replace_all_uses_with(graph.initializers[name])
            body.remove(own)


def as_in_branch(model: ir.Model, early: Sequence[str] = ()) -> ir.Model:
    """The graph as the branch will have it: no shape is said of the input that waits, nor of outputs made late."""
    new = model.clone()
    gated = waiting_input(new)
    late = [value for value in new.graph.outputs if value.name not in early]
    for value in (*([] if gated is None else [gated]), *late):
        value.shape = _open_shape(value)
    return new
