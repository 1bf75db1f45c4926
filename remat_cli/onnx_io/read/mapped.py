"""Reads a model file without the contents of its weights: those stay in the file, and are mapped where they are read.

What ONNX calls external data, weights in a file of their own, does that already. A large weight inside the model file
becomes the same here: a reference to the file itself, with an offset and a length.
"""

import mmap
from functools import partial
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir

from remat_cli.onnx_io.read.wire import without_contents

KNOWN_TYPES: Final = frozenset(kind.value for kind in ir.DataType)
NO_NUMBERS: Final = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
LEAST_FILE_BYTES: Final = 2**25  # 32 MiB: smaller files are read whole, which is faster


def parsed(path: Path, *, whole: bool = False) -> onnx.ModelProto:
    """What a model file says; large weights inside are references to it, under its own absolute path, unless `whole`.

    No file of external data can have such a name. Contents that are not what their tensor's shape takes stay inside.

    Raises:
        DecodeError: it is no model, or is cut off.
        OSError: it cannot be read.
    """
    if whole or path.stat().st_size < LEAST_FILE_BYTES:
        return onnx.load(str(path), format="protobuf", load_external_data=False)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        proto = onnx.ModelProto()
        proto.ParseFromString(without_contents(data, partial(_reference, str(path.resolve()))))
        return proto


def _reference(location: str, head: bytes, offset: int, count: int) -> bytes | None:
    """A tensor whose contents lie in the model file."""
    tensor = onnx.TensorProto.FromString(head)
    if tensor.data_location == onnx.TensorProto.EXTERNAL or count != bytes_wanted(tensor):
        return None
    for key, value in (("location", location), ("offset", offset), ("length", count)):
        tensor.external_data.add(key=key, value=str(value))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    return bytes(tensor.SerializeToString())


def bytes_wanted(tensor: onnx.TensorProto) -> int | None:
    """What the elements of a tensor take, several of fewer than 8 bits in a byte; None: they are no numbers."""
    if tensor.data_type not in KNOWN_TYPES or tensor.data_type in NO_NUMBERS:
        return None
    bits = ir.DataType(tensor.data_type).bitwidth
    for size in tensor.dims:
        bits *= size
    return -(-bits // 8)


def is_inside(path: Path, tensor: onnx.TensorProto) -> bool:
    """Whether what `parsed` gave for a tensor is a reference to the model file at `path` itself."""
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    return tensor.data_location == onnx.TensorProto.EXTERNAL and location == str(path.resolve())


def model_of(proto: onnx.ModelProto, path: Path) -> ir.Model:
    """The model of what `parsed` gave, whose weights are found where they lie: in `path`, or in files beside it."""
    model, own = ir.from_proto(proto), path.resolve()
    ir.external_data.set_base_dir(model.graph, own.parent)
    for value in (value for graph in model.graphs() for value in graph.initializers.values()):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and tensor.location == str(own):
            value.const_value = ir.ExternalTensor(
                own,
                tensor.offset,
                tensor.length,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=tensor.name,
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
            )  # without a folder that it must lie in: the file may be a link to another one, or have several names
    return model
