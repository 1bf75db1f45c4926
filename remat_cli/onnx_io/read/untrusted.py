"""Checks what a model file says before anybody relies on it: its texts, its types, its data files."""

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.checking import all_bodies
from remat_cli.onnx_io.read.mapped import KNOWN_TYPES, bytes_wanted, is_inside

LONGEST_TEXT = 200
"""Of what is repeated in a message."""


def check_texts(path: Path, proto: onnx.ModelProto) -> None:
    """Every name and comment in the file is UTF-8, as ONNX says; protobuf does not look.

    Raises:
        ModelError: one is not.
    """
    wrong = next(_undecodable(proto), None)
    if wrong is not None:
        raise ModelError(f"model {path} is damaged: the text {_shown(wrong)} is not UTF-8; export the model again")


def _undecodable(message: Message) -> Iterator[bytes]:
    """Texts that protobuf hands out as bytes, since they cannot be decoded."""
    for entry, found in message.ListFields():
        if entry.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in (found,) if isinstance(found, Message) else found:
                yield from _undecodable(inner)
        elif entry.type == FieldDescriptor.TYPE_STRING:
            texts = (found,) if isinstance(found, str | bytes) else found
            yield from (text for text in texts if isinstance(text, bytes))


def check_types(path: Path, proto: onnx.ModelProto) -> None:
    """Element types of weights, inputs, outputs and declared tensors are those of ONNX; no dimension is negative.

    Raises:
        ModelError: one is not known, or a value is a map, as classifiers of tables make of their classes.
    """
    for tensor in all_tensors(proto.graph):
        if tensor.data_type not in KNOWN_TYPES:
            raise ModelError(f"model {path}: tensor '{tensor.name}' has the unknown element type {tensor.data_type}")
        if any(size < 0 for size in tensor.dims):
            raise ModelError(f"model {path}: tensor '{tensor.name}' has the shape {list(tensor.dims)}")
    for graph in (proto.graph, *all_bodies(proto.graph)):
        for port in (*graph.input, *graph.output, *graph.value_info):
            if port.type.HasField("tensor_type") and port.type.tensor_type.elem_type not in KNOWN_TYPES:
                number = port.type.tensor_type.elem_type
                raise ModelError(f"model {path}: tensor '{port.name}' has the unknown element type {number}")
            if _holds_map(port.type):
                raise ModelError(
                    f"model {path}: '{port.name}' is a map or a sequence of maps: remat plans tensors only; export the "
                    "model without op ZipMap (skl2onnx and onnxmltools: options={'zipmap': False}), or cut it off"
                )


def _holds_map(kind: onnx.TypeProto) -> bool:
    """Whether values of a type are maps, or sequences or optionals of them."""
    if kind.HasField("map_type"):
        return True
    inner = (getattr(kind, field).elem_type for field in ("sequence_type", "optional_type") if kind.HasField(field))
    return any(map(_holds_map, inner))


def external_files(path: Path, proto: onnx.ModelProto) -> list[Path]:
    """Files of external data, each once; all lie in the model's folder and are long enough. None is opened.

    The model's own file is none of them, though `parsed` says of large weights inside that they lie there.

    Raises:
        ModelError: one is not there, lies elsewhere or is too short, or where it is said to lie makes no sense.
    """
    files: dict[Path, None] = {}
    for tensor in all_tensors(proto.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        file_named = f"model {path}: external data file {_shown(location)[1:-1]}"
        named = f"{file_named} of tensor '{tensor.name}'"
        file: Path = path.parent / location
        inside = is_inside(path, tensor)
        if not inside and _is_outside(path.parent, location):
            raise ModelError(
                f"{named} lies outside the model's folder {path.parent}: nothing was read; put it beside the model"
            )
        if not os.path.isfile(file):  # False for a name that is too long, too, at which Path.is_file raises
            raise ModelError(f"{named} does not exist in {path.parent}")
        wanted = bytes_wanted(tensor)
        if wanted is None:
            raise ModelError(f"{named} cannot hold its elements, which are no numbers")
        offset, length = _number(named, entries, "offset"), _number(named, entries, "length")
        if length is not None and length != wanted:
            raise ModelError(f"{named} is said to hold {length} bytes of it, of its {wanted}: export the model again")
        if (offset or 0) + wanted > file.stat().st_size:
            there = file.stat().st_size
            raise ModelError(f"{file_named} is cut off: tensor '{tensor.name}' lies beyond its {there} bytes")
        if not inside:
            files[file] = None
    return list(files)


def _is_outside(folder: Path, location: str) -> bool:
    """Whether a location leads out of a folder: by itself, or through links."""
    if os.path.isabs(location) or ".." in Path(location).parts:
        return True
    try:
        return not (folder / location).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # too long, with a zero byte, links in a circle: no file
        return False


def _number(named: str, entries: dict[str, str], key: str) -> int | None:
    """An entry that counts bytes; None where it is not given."""
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 19:
        raise ModelError(f"{named} has the {key} {_shown(text)}, which is no number of bytes")
    return int(text)


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= LONGEST_TEXT else f"{shown[:LONGEST_TEXT]}...{shown[-1]}"


def all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Tensors that a graph and all graphs inside it hold: weights, and constants in attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for body in (attribute.g, *attribute.graphs):
                yield from all_tensors(body)
