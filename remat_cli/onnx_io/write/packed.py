"""Weights as kernels pack them, saved beside the weights: a session maps such a copy and drops the one it has made.

The runtime writes the copies of a model that it saves, and says of each weight where they are: entries
`prepacked_0`, `prepacked_1` ... of its external data, each `KEY|OFFSET;LENGTH;CHECKSUM|...`, one part per buffer. A
session packs all the same and compares the key, which is a hash of what it made: a copy that another processor's
kernels would make otherwise is not taken. Runtimes before 1.21 do not know these entries and refuse the file.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import onnx
import onnx_ir as ir

from remat_cli.onnx_io.read.mapped import parsed

ENTRY = "prepacked_"
CHECKSUM = "0"  # of a buffer: the runtime writes and reads none


@dataclass(frozen=True)
class Buffer:
    """A part of a packed copy, in a file."""

    offset: int
    bytes: int


@dataclass(frozen=True)
class PackedCopy:
    """What a kernel made of a weight; `key` tells the runtime whether it would make the same."""

    key: str
    buffers: tuple[Buffer, ...]

    def at(self, offsets: Iterable[int]) -> str:
        """The entry that says where it is."""
        places = (f"{offset};{buffer.bytes};{CHECKSUM}" for offset, buffer in zip(offsets, self.buffers, strict=True))
        return "|".join((self.key, *places))


@dataclass(frozen=True)
class PackedWeights:
    """Packed copies by the name of the weight, all in one file."""

    file: Path
    copies: Mapping[str, tuple[PackedCopy, ...]]

    @property
    def total_bytes(self) -> int:
        """Of all copies."""
        return sum(buffer.bytes for buffer in self.buffers)

    @property
    def largest_bytes(self) -> int:
        """Of the largest copy, which a session makes before it drops it."""
        return max((sum(each.bytes for each in copy.buffers) for copy in self._all), default=0)

    @property
    def buffers(self) -> list[Buffer]:
        """Those of all copies, in order."""
        return [buffer for copy in self._all for buffer in copy.buffers]

    def without(self, prefix: str) -> "PackedWeights":
        """Those of weights whose names begin otherwise."""
        kept = {name: copies for name, copies in self.copies.items() if not name.startswith(prefix)}
        return PackedWeights(self.file, kept)

    @property
    def _all(self) -> list[PackedCopy]:
        return [copy for copies in self.copies.values() for copy in copies]


NOTHING_PACKED = PackedWeights(Path(), MappingProxyType({}))


def packed_weights(path: Path) -> PackedWeights:
    """The packed copies that a model file speaks of."""
    proto = parsed(path)
    copies: dict[str, tuple[PackedCopy, ...]] = {}
    files: set[str] = set()
    for tensor in proto.graph.initializer:
        found: list[PackedCopy] = []
        for entry in tensor.external_data:
            if entry.key == "location":
                files.add(entry.value)
            elif entry.key.startswith(ENTRY):
                key, *parts = entry.value.split("|")
                fields = (part.split(";") for part in parts)
                found.append(PackedCopy(key, tuple(Buffer(int(offset), int(size)) for offset, size, *_ in fields)))
        if found:
            copies[tensor.name] = tuple(found)
    return PackedWeights(path.parent / min(files, default=""), copies)


def packing_signature(model: ir.Model) -> str:
    """The same text for models whose kernels would pack the same weights in the same way."""
    plain = (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
    readers: set[tuple[object, ...]] = set()
    for node in (node for graph in model.graphs() for node in graph):
        attributes = sorted(f"{name}={each.value}" for name, each in node.attributes.items() if each.type in plain)
        for place, value in enumerate(node.inputs):
            if value is not None and value.is_initializer():
                readers.add((value.name, node.domain, node.op_type, place, *attributes))
    return hashlib.sha256(repr(sorted(readers)).encode()).hexdigest()[:16]


def forget_packed(tensor: onnx.TensorProto) -> bool:
    """Drop what a weight says of packed copies, which readers other than the runtime do not know; whether it did."""
    kept = [entry for entry in tensor.external_data if not entry.key.startswith(ENTRY)]
    if len(kept) < len(tensor.external_data):
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
        return True
    return False
