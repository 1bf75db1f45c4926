"""Gives the contents of weights, and model files that have them inside, piece by piece: none is held whole."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from remat_cli.base.errors import RematError
from remat_cli.base.present import present
from remat_cli.onnx_io.read.checking import all_bodies
from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.wire import LEAST_BYTES, marked, with_contents

PIECE_BYTES: Final = 2**20
MARK_BYTES: Final = 16
Piece: TypeAlias = "bytes | memoryview"


def contents(tensor: ir.TensorProtocol) -> Iterator[Piece]:
    """The bytes of a tensor as a file has them; of one that lies in a file, and is not mapped, it is read in pieces.

    Raises:
        RematError: the file is shorter than it was.
    """
    if isinstance(tensor, ir.ExternalTensor):
        start, stop = tensor.offset or 0, (tensor.offset or 0) + tensor.nbytes
        if tensor.raw is None:
            yield from file_pieces(Path(tensor.path), start, tensor.nbytes)
        else:
            yield from (tensor.raw[at : min(stop, at + PIECE_BYTES)] for at in range(start, stop, PIECE_BYTES))
        return
    array = tensor.numpy() if isinstance(tensor, ir.Tensor) and tensor.dtype.bitwidth >= 8 else None
    if array is not None and array.flags.c_contiguous and array.dtype.byteorder != ">" and array.size:
        yield array.reshape(-1).view(np.uint8).data
    else:
        yield tensor.tobytes()


def file_pieces(path: Path, offset: int, count: int) -> Iterator[bytes]:
    """So many bytes of a file.

    Raises:
        RematError: it is shorter.
    """
    with path.open("rb") as file:
        file.seek(offset)
        while count:
            piece = file.read(min(count, PIECE_BYTES))
            if not piece:
                raise RematError(f"{path} was cut off while it was read: compile again")
            yield piece
            count -= len(piece)


def inline(model: ir.Model) -> Iterator[Piece]:
    """The bytes of a model file that has all weights inside, the same ones every time."""
    large: list[ir.TensorProtocol] = []
    light = model
    if any(_is_left_out(value.const_value) for value in weights_of(model)):
        light = copy_of(model)
        for value in weights_of(light):
            tensor = present(value.const_value, f"weight '{value.name}'")
            if _is_left_out(tensor):
                value.const_value = ir.ExternalTensor(
                    "",
                    len(large),
                    tensor.nbytes,
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=tensor.name or "",
                    doc_string=tensor.doc_string,
                    metadata_props=dict(tensor.metadata_props),
                )
                large.append(tensor)
    proto, mark = ir.to_proto(light), secrets.token_bytes(MARK_BYTES)
    for weight in tensors_of(proto.graph) if large else ():
        if weight.data_location == onnx.TensorProto.EXTERNAL:
            number = next(int(entry.value) for entry in weight.external_data if entry.key == "offset")
            weight.ClearField("external_data")
            weight.ClearField("data_location")
            weight.raw_data = marked(mark, number)
    serialised = proto.SerializeToString(deterministic=True)
    for piece in with_contents(serialised, mark, [tensor.nbytes for tensor in large]):
        if isinstance(piece, int):
            yield from contents(large[piece])
        else:
            yield piece


def _is_left_out(tensor: ir.TensorProtocol | None) -> bool:
    """Whether a tensor is not to be held with the rest of the file; what was read as a message is in memory already."""
    if tensor is None or isinstance(tensor, ir.serde.TensorProtoTensor):
        return False
    is_large = tensor.dtype != ir.DataType.STRING and tensor.nbytes >= LEAST_BYTES
    return isinstance(tensor, ir.ExternalTensor) or is_large


def weights_of(model: ir.Model) -> list[ir.Value]:
    """Initialisers of all graphs that have a value."""
    return [value for graph in model.graphs() for value in graph.initializers.values() if value.const_value is not None]


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Initialisers of a graph and of all graphs in it."""
    for each in (graph, *all_bodies(graph)):
        yield from each.initializer
