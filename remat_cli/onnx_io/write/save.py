"""Writes a model whole or not at all, large weights in one file beside it.

A session maps a data file instead of copying it. Model and data are two files, and no system replaces two files at
once; so the old model goes away before its data does, and the new one comes last. After a kill at any moment there is
the old pair, no model at all, or the new pair.
"""

import hashlib
import itertools
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from remat_cli.base.files import INLINE_LIMIT_BYTES, atomic_path, check_room, sha256
from remat_cli.base.present import present
from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.onnx_io.read.mapped import parsed
from remat_cli.onnx_io.write.contents import Piece, contents, file_pieces, inline, tensors_of, weights_of
from remat_cli.onnx_io.write.packed import ENTRY, NOTHING_PACKED, PackedWeights

DATA_FILE_BYTES = 2**25  # 32 MiB: copies of fewer weights at load matter less than a second file to carry around
SMALL_BYTES = 1024  # weights up to this stay in the model file
ALIGNMENT = 4096  # lets the runtime map the file instead of reading it


def save(
    model: ir.Model,
    path: Path,
    external: bool = False,
    packed: PackedWeights = NOTHING_PACKED,
    *,
    outlasts: bool = True,
) -> None:
    """Write a model atomically; with `external`, and where protobuf cannot hold them, its weights go to `data_path`.

    `packed` are copies of weights that are then put beside them. Weights that lie in files are streamed, also from the
    file that is replaced; the model can be read afterwards as before. What outlasts this command is on the disk then,
    and the model file says the checksum of the data, so that its own hash stands for both.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    path = path.resolve()
    moving = _movable(model)
    if not moving or not (external or _bytes_of(moving) > INLINE_LIMIT_BYTES):
        # Write a model with its weights inside, and remove data files that the model it replaces had for itself.
        unused = {data_path(path)} if reads_its_data(path) else set()
        with atomic_path(path, outlasts=outlasts) as temporary:
            _write(temporary, inline(model), outlasts=outlasts)
            _keep_open(model, {path})
        _remove(unused | _old_style_data(path), model)
    else:
        # Write a model and its data file. All is on disk, under other names, before anything that was there changes.
        data = data_path(path)
        is_signed = outlasts or _bytes_of(moving) > INLINE_LIMIT_BYTES  # whose hash is that of the model file alone
        checksum = _checksum(_pieces(moving, packed)) if is_signed else None
        with atomic_path(path, outlasts=outlasts) as temporary:
            _write(temporary, [_with_data(model, data, packed, checksum)], outlasts=outlasts)
            if not _has_checksum(data, checksum):
                with atomic_path(data, outlasts=outlasts) as beside:
                    _write(beside, _pieces(moving, packed), outlasts=outlasts)
                    _keep_open(model, {data, path})
                    # Remove the old model, whose data is about to change; the new one inherits its mode.
                    if path.exists():
                        shutil.copymode(path, temporary)
                        path.unlink()
            _keep_open(model, {path})
        _remove(_old_style_data(path), model)


def save_work(model: ir.Model, path: Path) -> None:
    """Write a model for sessions of our own, its weights beside it where they are many: sessions map them.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    save(model, path, external=wants_data_file(model), outlasts=False)


def save_hashed(model: ir.Model, path: Path) -> str:
    """`save_work`, and the hash of the file with all weights inside, as long as protobuf could hold them there.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    save_work(model, path)
    if not wants_data_file(model) or _bytes_of(_movable(model)) > INLINE_LIMIT_BYTES:
        return sha256(path)
    digest = hashlib.sha256()
    for piece in inline(model):
        digest.update(piece)
    return digest.hexdigest()


def wants_data_file(model: ir.Model) -> bool:
    """Whether the weights are so many that a session should map them from a file of their own."""
    return _bytes_of(_movable(model)) >= DATA_FILE_BYTES


def has_data_file(model: ir.Model, external: bool | None) -> bool:
    """Whether `save` is to put weights into a data file, and will; None: where they are many."""
    moving = _movable(model)
    chosen = wants_data_file(model) if external is None else external
    return bool(moving) and (chosen or _bytes_of(moving) > INLINE_LIMIT_BYTES)


def data_path(path: Path) -> Path:
    """Where the weights of the model at `path` are when they do not lie inside it."""
    return path.with_name(f"{path.name}.data")


def check_room_for(model: ir.Model, path: Path) -> None:
    """Check that the disk has room for the weights of a model that is to be written to `path`, which are most of it.

    A data file that is there already may be the one that is needed.

    Raises:
        RematError: it has not.
    """
    count = _bytes_of(_movable(model)) - _size(data_path(path))
    check_room(path, count, count)


def check_room_as(written: Path, path: Path, beside: Mapping[Path, int]) -> None:
    """Check that the disk has room at `path` for files such as those of the model that was `written` elsewhere.

    On the same disk there must be room for files `beside` it too, which are so large.

    Raises:
        RematError: there is not.
    """
    sizes = [_size(written)]
    if reads_its_data(written):
        sizes.append(_size(data_path(written)) - _size(data_path(path)))
    disk = path.resolve().parent.stat().st_dev
    sizes += [count for other, count in beside.items() if other.resolve().parent.stat().st_dev == disk]
    check_room(path, max(sizes), sum(sizes))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _movable(model: ir.Model) -> list[ir.TensorProtocol]:
    """Weights that a data file can hold, in the order in which they lie there."""
    tensors = [value.const_value for value in weights_of(model)]
    return [tensor for tensor in tensors if tensor is not None and _is_movable(tensor)]


def _is_movable(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING and tensor.nbytes > SMALL_BYTES


def _bytes_of(tensors: list[ir.TensorProtocol]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _pieces(tensors: list[ir.TensorProtocol], packed: PackedWeights) -> Iterator[Piece]:
    """What the data file consists of: each tensor, then each packed copy, filled up to the alignment."""
    for tensor in tensors:
        yield from contents(tensor)
        yield bytes(-tensor.nbytes % ALIGNMENT)
    for buffer in packed.buffers:
        yield from file_pieces(packed.file, buffer.offset, buffer.bytes)
        yield bytes(-buffer.bytes % ALIGNMENT)


def _with_data(model: ir.Model, data: Path, packed: PackedWeights, checksum: str | None) -> bytes:
    """Bytes of the model, the same ones every time: movable weights point into the data file, others are inside.

    Each of the former says the checksum of the file, if that is known, and where in it packed copies of the weight are.
    """
    copy = copy_of(model)
    sizes = [*(tensor.nbytes for tensor in _movable(copy)), *(buffer.bytes for buffer in packed.buffers)]
    offsets = itertools.accumulate((size + -size % ALIGNMENT for size in sizes), initial=0)
    for value in weights_of(copy):
        tensor = present(value.const_value, f"weight '{value.name}'")
        if _is_movable(tensor):
            name, shape = value.name or "", ir.Shape(dims_of(tensor))
            value.const_value = ir.ExternalTensor(
                data.name, next(offsets), tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=data.parent
            )
        elif isinstance(tensor, ir.ExternalTensor):
            is_closed = tensor.raw is None
            value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
            if is_closed:
                tensor.release()
    known = {} if checksum is None else {"checksum": checksum}
    entries = defaultdict[str, dict[str, str]](known.copy)
    for name, copies in packed.copies.items():
        places = (each.at(itertools.islice(offsets, len(each.buffers))) for each in copies)
        entries[name] = {**known, **{f"{ENTRY}{at}": place for at, place in enumerate(places)}}
    proto = ir.to_proto(copy)
    for tensor in tensors_of(proto.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            for key, text in entries[tensor.name].items():
                tensor.external_data.add(key=key, value=text)
    return bytes(proto.SerializeToString(deterministic=True))


def _checksum(pieces: Iterable[Piece]) -> str:
    """SHA-1, as ONNX wants it."""
    digest = hashlib.sha1(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _has_checksum(data: Path, checksum: str | None) -> bool:
    """Whether a data file is there and is this one."""
    if checksum is None or not data.is_file():
        return False
    with data.open("rb") as file:
        return _checksum(iter(lambda: file.read(2**20), b"")) == checksum


def _write(path: Path, pieces: Iterable[Piece], *, outlasts: bool) -> None:
    """Write a file through to the disk, which may be full: better now than when the old files are gone."""
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        if outlasts:
            os.fsync(file.fileno())


def reads_its_data(path: Path) -> bool:
    """Whether there is a model at `path` that has weights in the file of `data_path`."""
    if not path.is_file() or not data_path(path).is_file():
        return False
    try:
        proto = parsed(path)
    except (DecodeError, OSError):
        return False
    entries = (entry for tensor in tensors_of(proto.graph) for entry in tensor.external_data)
    return any(entry.key == "location" and Path(entry.value) == Path(data_path(path).name) for entry in entries)


def _old_style_data(path: Path) -> set[Path]:
    """Data files that earlier versions wrote for models at this path, named by their contents."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.data")
    return {file for file in path.parent.iterdir() if pattern.fullmatch(file.name)}


def _remove(files: Set[Path], model: ir.Model) -> None:
    _keep_open(model, files)
    for file in files:
        file.unlink(missing_ok=True)


def _keep_open(model: ir.Model, files: Set[Path]) -> None:
    """Map the weights that the model has in these files, so that it can be read when the files are gone."""
    places = {file.resolve() for file in files}
    for value in weights_of(model) if places else ():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and Path(tensor.path).resolve() in places:
            tensor.numpy()
