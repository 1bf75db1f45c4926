"""From a file to a checked model with bound dimensions; also the way back and the optimised file's way in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.canonical import canonicalise, outputs_by_place
from remat_cli.onnx_io.dimensions import DimBindings, bind_dimensions
from remat_cli.onnx_io.interface import Interface, inputs_of, interface_of, outputs_of
from remat_cli.onnx_io.normalise import (
    drop_trailing_blanks,
    drop_unused_weights,
    lift_constants,
    name_nodes,
    weights_leave_inputs,
)
from remat_cli.onnx_io.save import save

__all__ = ["DimBindings", "SourceModel", "inputs_of", "load", "outputs_of", "prepare_optimized", "save"]

OLDEST_OPSET = 7
OLDEST_IR_VERSION = 8  # the first that the rewritten model's metadata and names are safe in
KNOWN_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"}
    | {"com.microsoft", "com.microsoft.nchwc", "com.microsoft.experimental", "com.ms.internal.nhwc"}
)


@dataclass(frozen=True)
class SourceModel:
    """A model as the user gave it, repaired and with bound dimensions.

    `sha256` is the hash of the file and of its external data. `interface` is what the file declares, symbolic
    dimensions included; the rewritten model keeps it.
    """

    ir: ir.Model
    path: Path
    sha256: str
    bound_dims: dict[str, int]
    interface: Interface


def load(path: Path, dims: DimBindings, *, has_custom_ops: bool = False) -> SourceModel:
    """Read, check and repair a model; its external data stays on disk until needed.

    With `has_custom_ops` ops of any domain are let in: a library of the user's own knows them.

    Raises:
        ModelError: the file is missing, not a valid model, or has dimensions, ops or data that remat cannot use.
    """
    proto = _read(path)
    _check_opset(path, proto)
    if not has_custom_ops:
        _check_domains(path, proto)
    data_files = _external_files(path, proto)
    _check(path, proto)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.resolve().parent)
    _repair(model)
    interface = interface_of(model)
    bound = bind_dimensions(model.graph, dims)
    return SourceModel(model, path, _sha256([path, *data_files]), bound, interface)


def prepare_optimized(path: Path, before: ir.Model | None = None) -> ir.Model:
    """Read a file that ONNX Runtime's offline optimiser saved: the reference model that plans index.

    `before` is the model that was optimised; None where the file is in canonical form already.

    Raises:
        ModelError: the file is missing or not a model.
    """
    model = ir.from_proto(_read(path))
    ir.external_data.set_base_dir(model.graph, path.resolve().parent)
    _repair(model)
    drop_unused_weights(model.graph)
    canonicalise(model, outputs_by_place(before or model))
    return model


def _repair(model: ir.Model) -> None:
    """Names, constants, listed weights and blank inputs: what exporters leave undone. In place."""
    if model.ir_version < 4:
        weights_leave_inputs(model.graph)
    model.ir_version = max(model.ir_version, OLDEST_IR_VERSION)
    name_nodes(model.graph)
    drop_trailing_blanks(model.graph)
    lift_constants(model.graph)


def _read(path: Path) -> onnx.ModelProto:
    """The file's contents, external data left on disk."""
    if not path.exists():
        raise ModelError(f"model {path} does not exist")
    if not path.is_file():
        raise ModelError(f"model {path} is not a file")
    if path.stat().st_size == 0:
        raise ModelError(f"model {path} is empty")
    try:
        proto = onnx.load(str(path), format="protobuf", load_external_data=False)
    except DecodeError:
        raise ModelError(f"model {path} is not an ONNX model, or it is cut off") from None
    except OSError as error:
        raise ModelError(f"model {path} cannot be read: {error.strerror}") from None
    if not proto.graph.node and not proto.graph.output:
        raise ModelError(f"model {path} is not an ONNX model: it has no graph")
    return proto


def _check_opset(path: Path, proto: onnx.ModelProto) -> None:
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    opset = versions.get("", versions.get("ai.onnx"))
    if opset is None:
        raise ModelError(f"model {path} does not say which ONNX opset it uses")
    if opset < OLDEST_OPSET:
        raise ModelError(f"model {path} uses opset {opset}: convert it to {OLDEST_OPSET} or later, such as 17")


def _check_domains(path: Path, proto: onnx.ModelProto) -> None:
    """Refuse ops that stock ONNX Runtime cannot know."""
    known = KNOWN_DOMAINS | {function.domain for function in proto.functions}
    for node in _all_nodes(proto.graph):
        if node.domain not in known:
            raise ModelError(
                f"model {path}: unknown op without shape: '{node.domain}.{node.op_type}' (node '{node.name}'); "
                "name the library that has it: --custom-ops LIB"
            )


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body)


def _external_files(path: Path, proto: onnx.ModelProto) -> list[Path]:
    """Files of external data, each once; all exist and are long enough."""
    files: dict[Path, None] = {}
    for tensor in _all_tensors(proto.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        file = path.parent / entries.get("location", "")
        if not file.is_file():
            raise ModelError(f"model {path}: external data file {file} of tensor '{tensor.name}' does not exist")
        if int(entries.get("offset", 0)) + int(entries.get("length", 0)) > file.stat().st_size:
            raise ModelError(f"model {path}: external data file {file} is cut off: tensor '{tensor.name}' lies beyond")
        files[file] = None
    return list(files)


def _all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for body in (attribute.g, *attribute.graphs):
                yield from _all_tensors(body)


def _check(path: Path, proto: onnx.ModelProto) -> None:
    """Run the ONNX checker on the file, which works above 2 GiB too.

    The checker wants a shape for every input and output; the runtime does not, so where one is missing a copy that
    has them is checked instead.
    """
    ports = (*proto.graph.input, *proto.graph.output)
    lacks = any(p.type.HasField("tensor_type") and not p.type.tensor_type.HasField("shape") for p in ports)
    try:
        onnx.checker.check_model(_with_shapes(proto) if lacks else str(path))
    except onnx.checker.ValidationError as error:
        raise ModelError(f"model {path} is not valid: {_first_line(error)}") from None


def _with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for the checker: all ports have shapes; external weights, whose files it cannot find, are inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph = copy.graph
    for tensor in [t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]:
        graph.initializer.remove(tensor)
        if all(port.name != tensor.name for port in graph.input):
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for port in (*graph.input, *graph.output):
        if port.type.HasField("tensor_type"):
            port.type.tensor_type.shape.SetInParent()
    return copy


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _sha256(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()
