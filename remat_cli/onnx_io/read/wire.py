"""Takes the contents of large weights out of a serialised model, and puts contents into one, without holding them.

A model file is one protobuf message, and reading or writing it whole takes its weights several times over. Here it is
walked field by field: what is read of a file that is mapped is the rest, and what is written is made piece by piece.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from types import MappingProxyType
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

LEAST_BYTES: Final = 2**16  # of contents that are worth to be left out
MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR = "model", "graph", "node", "attribute", "tensor"
INNER: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        MODEL: {7: GRAPH},
        GRAPH: {1: NODE, 5: TENSOR},
        NODE: {5: ATTRIBUTE},
        ATTRIBUTE: {6: GRAPH, 11: GRAPH},
    }
)
"""The fields of a message that lead to initialisers, by number, with the kind of message that they hold."""
RAW_DATA: Final = 9
"""The field of a tensor that has its elements as bytes."""
LONGEST_VARINT: Final = 10
DEEPEST: Final = 100  # messages within each other, as protobuf reads them
VARINT, EIGHT_BYTES, LENGTH_DELIMITED, FOUR_BYTES = 0, 1, 2, 5

Data: TypeAlias = bytes | mmap
Refer: TypeAlias = Callable[[bytes, int, int], bytes | None]
"""Takes a tensor without its contents, their offset and how many bytes they are; gives the tensor that refers to them.

None: they stay where they are.
"""


@dataclass(frozen=True)
class _Field:
    """A field of a message: its number and type, where it begins, where its value begins, and where it ends."""

    number: int
    type: int
    begin: int
    value: int
    end: int

    def holding(self, count: int) -> bytes:
        """What stands before the value, if the value were of so many bytes."""
        return _varint(self.number << 3 | LENGTH_DELIMITED) + _varint(count)


def without_contents(model: Data, refer: Refer) -> bytes:
    """A serialised model in which large initialisers, of all graphs, are what `refer` gives for them.

    Raises:
        DecodeError: it is no such message, or is cut off.
    """
    return _without(model, 0, len(model), MODEL, refer, DEEPEST)


def _without(data: Data, start: int, stop: int, kind: str, refer: Refer, deepest: int) -> bytes:
    if deepest == 0:
        raise DecodeError("messages within messages, too deep")
    parts: list[bytes] = []
    kept = start
    for field in _fields(data, start, stop):
        inner = INNER[kind].get(field.number)
        if inner is None or field.type != LENGTH_DELIMITED or field.end - field.value < LEAST_BYTES:
            continue
        if inner != TENSOR:
            new: bytes | None = _without(data, field.value, field.end, inner, refer, deepest - 1)
        else:
            # With its contents left out, unless they are few, or are not bytes.
            raw = [each for each in _fields(data, field.value, field.end) if each.number == RAW_DATA]
            new = None
            if len(raw) == 1 and raw[0].type == LENGTH_DELIMITED and raw[0].end - raw[0].value >= LEAST_BYTES:
                rest = data[field.value : raw[0].begin] + data[raw[0].end : field.end]
                new = refer(rest, raw[0].value, raw[0].end - raw[0].value)
        if new is not None:
            parts += [data[kept : field.begin], field.holding(len(new)), new]
            kept = field.end
    return b"".join([*parts, data[kept:stop]])


def with_contents(model: bytes, mark: bytes, sizes: Sequence[int]) -> Iterator[bytes | int]:
    """The pieces of a serialised model; contents that were left out are numbers, in the order of their sizes.

    In the model there stand, for each of them, the bytes of `mark`, which are nowhere else in it, and of the number.
    """
    return iter(_with(model, 0, len(model), mark, sizes)[0])


MARKED_BYTES: Final = 8  # of the number behind a mark


def marked(mark: bytes, number: int) -> bytes:
    """What stands for contents with this number."""
    return mark + number.to_bytes(MARKED_BYTES, "little")


def _with(data: bytes, start: int, stop: int, mark: bytes, sizes: Sequence[int]) -> tuple[list[bytes | int], int]:
    """The pieces of a message, and how many bytes they come to."""
    parts: list[bytes | int] = []
    kept, count = start, 0
    for field in _fields(data, start, stop):
        if field.type != LENGTH_DELIMITED or data.find(mark, field.value, field.end) < 0:
            continue
        if data.startswith(mark, field.value):
            number = int.from_bytes(data[field.value + len(mark) : field.end], "little")
            inner: list[bytes | int] = [number]
            inner_bytes = sizes[number]
        else:
            inner, inner_bytes = _with(data, field.value, field.end, mark, sizes)
        before = data[kept : field.begin] + field.holding(inner_bytes)
        parts += [before, *inner]
        kept, count = field.end, count + len(before) + inner_bytes
    return [*parts, data[kept:stop]], count + stop - kept


def _fields(data: Data, start: int, stop: int) -> Iterator[_Field]:
    """Those of a message, in the order in which they stand there."""
    at = start
    while at < stop:
        begin = at
        tag, at = _number_at(data, at)
        kind = tag & 7
        if kind == LENGTH_DELIMITED:
            count, at = _number_at(data, at)
            end = at + count
        elif kind == VARINT:
            end = _number_at(data, at)[1]
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            end = at + (8 if kind == EIGHT_BYTES else 4)
        else:
            raise DecodeError(f"a field of type {kind}")
        if end > stop:
            raise DecodeError("a field goes beyond its message")
        yield _Field(tag >> 3, kind, begin, at, end)
        at = end


def _number_at(data: Data, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    number = 0
    for place, byte in enumerate(data[at : at + LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise DecodeError("a number does not end")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
