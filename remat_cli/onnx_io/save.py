"""Writing a model whole or not at all, large weights in one file beside it."""

import hashlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from remat_cli.base.files import atomic_path, atomic_write
from remat_cli.onnx_io.interface import dims_of

INLINE_LIMIT_BYTES = 3 * 2**29  # 1.5 GiB: protobuf cannot hold 2 GiB
SMALL_BYTES = 1024  # tensors below this stay in the model file
ALIGNMENT = 4096  # lets the runtime map the file instead of reading it


def save(model: ir.Model, path: Path, external: bool | None = None) -> None:
    """Write a model atomically; weights go to `NAME.<hash>.data` beside it when they are large or `external` is True.

    The data file is complete on disk before the model takes its place, and its name comes from its contents, so that
    after a kill at any moment the old model or the new one is there, with its data.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    if external is None:
        external = _weight_bytes(model) > INLINE_LIMIT_BYTES
    path = path.resolve()
    staying = [value for value in _weights(model) if not (external and _is_movable(value))]
    model = _inlined(model, {value.name for value in staying if isinstance(value.const_value, ir.ExternalTensor)})
    data = _write_data(model, path) if external else None
    atomic_write(path, _serialise(model if data is None else _with_external(model, *data)))
    _remove_old_data(path, data[0] if data else None)


def _serialise(model: ir.Model) -> bytes:
    """Bytes of a model, the same ones every time."""
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def _weights(model: ir.Model) -> list[ir.Value]:
    """Initialisers of all graphs that have a value."""
    return [value for graph in model.graphs() for value in graph.initializers.values() if value.const_value is not None]


def _weight_bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in _weights(model) if value.const_value is not None)


def _is_movable(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes >= SMALL_BYTES


def _write_data(model: ir.Model, path: Path) -> tuple[Path, list[int]]:
    """Write the movable weights one behind the other; returns the file and their offsets."""
    movable = [value.const_value for value in _weights(model) if _is_movable(value) and value.const_value is not None]
    digest = hashlib.sha256()
    for piece in _pieces(movable):
        digest.update(piece)
    target = path.with_name(f"{path.name}.{digest.hexdigest()[:8]}.data")
    with atomic_path(target) as temporary, temporary.open("wb") as file:
        for piece in _pieces(movable):
            file.write(piece)
    return target, _offsets(movable)


def _pieces(tensors: list[ir.TensorProtocol]) -> Iterator[bytes]:
    """What the data file consists of: each tensor, filled up to the alignment."""
    for tensor in tensors:
        yield tensor.tobytes()
        yield bytes(-tensor.nbytes % ALIGNMENT)


def _offsets(tensors: list[ir.TensorProtocol]) -> list[int]:
    """Where each tensor starts in the data file."""
    sizes = [tensor.nbytes + -tensor.nbytes % ALIGNMENT for tensor in tensors]
    return list(itertools.accumulate(sizes, initial=0))[:-1]


def _inlined(model: ir.Model, names: set[str | None]) -> ir.Model:
    """A model with these weights in memory, since the data file they came from does not go along."""
    if not names:
        return model
    copy = model.clone()
    for value in _weights(copy):
        if value.name in names and value.const_value is not None:
            value.const_value = ir.external_data.convert_tensors_from_external([value.const_value])[0]
    return copy


def _with_external(model: ir.Model, data: Path, offsets: list[int]) -> ir.Model:
    """A copy of a model whose movable weights point into the data file."""
    copy = model.clone()
    movable = [value for value in _weights(copy) if _is_movable(value)]
    for value, offset in zip(movable, offsets, strict=True):
        assert value.const_value is not None
        tensor, shape = value.const_value, ir.Shape(dims_of(value.const_value))
        value.const_value = ir.ExternalTensor(
            data.name, offset, tensor.nbytes, tensor.dtype, shape=shape, name=value.name or "", base_dir=data.parent
        )
    return copy


def _remove_old_data(path: Path, current: Path | None) -> None:
    """Remove data files of models that were at this path before."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.data")
    for file in path.parent.iterdir():
        if pattern.fullmatch(file.name) and file != current:
            file.unlink(missing_ok=True)
