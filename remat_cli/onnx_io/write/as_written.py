"""Signs a compiled file for other tools, and tells whether it is still the graph that was written.

A tool that simplifies, quantises or converts a compiled file may take away what keeps its promise without a word. So
the file says where tools and people look that it is to be left as it is, and carries a hash of its graph: of its ops
in their order, their attributes, what they read from whom, the contents of weights, and the dimensions that are left
open. Names, declared shapes that say more, metadata and the way it lies in the file do not matter to it.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from remat_cli.onnx_io.read.mapped import model_of, parsed
from remat_cli.onnx_io.read.untrusted import external_files
from remat_cli.onnx_io.write.contents import contents
from remat_cli.onnx_io.write.packed import ENTRY, forget_packed

GRAPH_KEY = "remat.graph_sha256"  # model metadata: the hash of the graph as it was written
PACKED_KEY = "remat.packed_weights"  # model metadata: how many weights have packed copies beside them
NOTE = (
    "Compiled by remat to run within a memory budget. Do not simplify, quantise or convert this file: "
    "do that to the original, and compile last."
)
OPEN_DIM = re.compile(r"r\d+d\d+")  # the name of a dimension that is hidden from the runtime
CHANGED = (
    "is not as remat wrote it: another tool changed its graph, and what it promised of memory, order and bits need not "
    "hold: do that to the original, and compile last"
)
PACKED_LOST = (
    "has lost the packed copies of its weights, as when a tool reads and saves it: it runs as before, but each session "
    "packs weights anew into memory of its own: compile again"
)


@dataclass(frozen=True)
class FileCondition:
    """What became of a compiled file; None of what it does not say. `has_packed`: its packed copies are still there."""

    path: Path
    is_as_written: bool | None = None
    has_packed: bool | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What no longer holds of the file."""
        changed = (f"{self.path} {CHANGED}",) if self.is_as_written is False else ()
        return (*changed, f"{self.path} {PACKED_LOST}") if self.has_packed is False else changed


def signed(model: ir.Model, packed_weights: int = 0) -> ir.Model:
    """A copy that says what it is, and what its graph is; so many of its weights get packed copies."""
    new = model.clone()
    for owner in (new, new.graph):
        own = owner.doc_string or ""
        owner.doc_string = own if NOTE in own else f"{NOTE} {own}".strip()
    new.metadata_props[GRAPH_KEY] = graph_digest(new)
    if packed_weights:
        new.metadata_props[PACKED_KEY] = str(packed_weights)
    return new


def forget_signature(model: ir.Model) -> None:
    """Drop what a compiled file says of its own graph, which is not that of what is made of it. In place."""
    for key in (GRAPH_KEY, PACKED_KEY):
        model.metadata_props.pop(key, None)


def condition_of(path: Path) -> FileCondition:
    """Whether a file is still what was written; nothing is said of one that remat did not write, or that is cut off.

    Raises:
        ModelError: the data of its weights is not there, or lies outside of its folder.
    """
    try:
        proto = parsed(path)
    except DecodeError:
        return FileCondition(path)
    told = {entry.key: entry.value for entry in proto.metadata_props}
    if GRAPH_KEY not in told:
        return FileCondition(path)
    external_files(path, proto)
    found = sum(any(entry.key.startswith(ENTRY) for entry in each.external_data) for each in proto.graph.initializer)
    has_packed = str(found) == told[PACKED_KEY] if PACKED_KEY in told else None
    for tensor in proto.graph.initializer:
        forget_packed(tensor)
    model = model_of(proto, path)
    return FileCondition(path, graph_digest(model) == told[GRAPH_KEY], has_packed)


def graph_digest(model: ir.Model) -> str:
    """The hash of what a model computes and in which order; the same after it was read and saved by other tools."""
    versions = sorted((domain or "ai.onnx", version) for domain, version in model.graph.opset_imports.items())
    functions = [(str(key), *_Walk().lines(model.functions[key].graph)) for key in sorted(model.functions)]
    ports = [(value.name, str(value.type), str(value.shape)) for value in (*model.graph.inputs, *model.graph.outputs)]
    digest = hashlib.sha256()
    for part in (versions, ports, functions, *_Walk().lines(model.graph)):
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()


@dataclass
class _Walk:
    """Lines that say a graph without names; `numbers` are those of its values, `weights` hashes of constants.

    `hidden` are names of dimensions that values hide so far.
    """

    numbers: dict[ir.Value, int] = field(default_factory=dict)
    weights: dict[ir.Value, str] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)

    def lines(self, graph: ir.Graph) -> Iterator[str]:
        """Inputs, then ops in their order, then outputs."""
        yield f"({', '.join(self._made(value) for value in graph.inputs)})"
        for node in graph:
            reads = [self._read(value, graph) for value in node.inputs]
            while reads and not reads[-1]:
                reads.pop()
            yield f"{node.domain or 'ai.onnx'}.{node.op_type}.{node.overload} {reads}"
            for name in sorted(node.attributes):
                yield from (f"{name} {line}" for line in self._attribute(node.attributes[name]))
            yield f"-> {[self._made(value) if value.name else '' for value in node.outputs]}"
        yield f"gives {[self._read(value, graph) for value in graph.outputs]}"

    def _made(self, value: ir.Value) -> str:
        """Number of a value, and its axes whose dimensions are hidden, by names that no value had before.

        A tool that infers shapes says such names of more values, but brings no new ones.
        """
        number = self.numbers.setdefault(value, len(self.numbers))
        names = [str(dim.value) if isinstance(dim, ir.SymbolicDim) else "" for dim in value.shape or ()]
        hidden = [axis for axis, name in enumerate(names) if OPEN_DIM.fullmatch(name) and name not in self.hidden]
        self.hidden.update(names[axis] for axis in hidden)
        return f"{number} hides {hidden}" if hidden else str(number)

    def _read(self, value: ir.Value | None, graph: ir.Graph) -> str:
        """Number of a value; of a constant what it is, and whether it lies in the graph that reads it."""
        if value is None or not value.name:
            return ""
        if value.const_value is None or value.producer() is not None:
            return str(self.numbers.setdefault(value, len(self.numbers)))
        if value not in self.weights:
            self.weights[value] = _digest_of(value.const_value)
        return f"{'own' if value.graph is graph else 'outer'} {self.weights[value]}"

    def _attribute(self, attribute: ir.Attr) -> Iterator[str]:
        """What an attribute says; a graph in it line by line, with the numbers of the values around it."""
        if attribute.is_ref():
            yield f"{attribute.type} of {attribute.ref_attr_name}"
        elif attribute.type == ir.AttributeType.GRAPH:
            yield from self.lines(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            for body in attribute.as_graphs():
                yield from self.lines(body)
        elif attribute.type == ir.AttributeType.TENSOR:
            yield _digest_of(attribute.as_tensor())
        else:
            yield f"{attribute.type} {attribute.value!r}"


def _digest_of(tensor: ir.TensorProtocol) -> str:
    """The hash of a constant's type, shape and contents, wherever it lies."""
    digest = hashlib.sha256(f"{tensor.dtype.name} {[*tensor.shape]} ".encode())
    if tensor.dtype == ir.DataType.STRING:
        digest.update(repr(tensor.numpy().tolist()).encode())
    elif tensor.size:
        for piece in contents(tensor):
            digest.update(piece)
    return digest.hexdigest()
