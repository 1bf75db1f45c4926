"""Models that are broken on purpose: bytes of a file changed, or fields of the protobuf. The seed decides all."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor

from tests.fuzz.node_models import ACTIONS, words_for
from tests.fuzz.outcomes import Case
from tests.torch_like.model import torch_like_proto

COUNT = 1000
TORCH_LIKE = (9, 10, 17, 28)
CHAIN = Path(__file__).resolve().parents[2] / "sample_models" / "chain.onnx"
MOST_CHANGES = 4
WHOLE_NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
LONG_NAME = 50_000

ByteChange = Callable[[random.Random, bytearray], None]
Place = tuple[Any, FieldDescriptor]


def mutant_cases() -> list[Case]:
    """Every second one is broken as bytes, the others as protobuf; what is asked of them changes too."""
    return [
        Case("model", f"{'proto' if seed % 2 else 'bytes'} {seed}", ACTIONS[seed // 2 % len(ACTIONS)])
        for seed in range(COUNT)
    ]


def prepare_mutant(case: Case, work: Path, materials: Path) -> list[str]:
    """The broken model as a file."""
    del materials
    path = work / "model.onnx"
    path.write_bytes(mutant(case.name))
    return words_for(case.action, path, work)


def mutant(name: str) -> bytes:
    """The broken model of a name."""
    kind, _, seed = name.partition(" ")
    rng = random.Random(name)
    content = originals()[int(seed) // 2 % len(originals())]
    return broken_bytes(rng, content) if kind == "bytes" else broken_proto(rng, content)


@functools.cache
def originals() -> tuple[bytes, ...]:
    """The models that are broken."""
    return (CHAIN.read_bytes(), *(torch_like_proto(seed).SerializeToString() for seed in TORCH_LIKE))


def broken_bytes(rng: random.Random, content: bytes) -> bytes:
    """A file with a few changes; most of them where the structure is, not in the weights."""
    data = bytearray(content)
    for _ in range(rng.randint(1, MOST_CHANGES)):
        rng.choice(BYTE_CHANGES)(rng, data)
    return bytes(data)


def _at(rng: random.Random, data: bytearray) -> int:
    """A position; half of them in the first or last kilobytes, where the nodes and the ports are."""
    size = max(len(data), 1)
    near = min(size, 4096)
    return rng.choice((rng.randrange(size), rng.randrange(near), size - 1 - rng.randrange(near)))


def flip(rng: random.Random, data: bytearray) -> None:
    """One bit."""
    if data:
        data[_at(rng, data)] ^= 1 << rng.randrange(8)


def overwrite(rng: random.Random, data: bytearray) -> None:
    """A few bytes."""
    start, count = _at(rng, data), rng.randint(1, 8)
    data[start : start + count] = rng.randbytes(count)


def cut(rng: random.Random, data: bytearray) -> None:
    """A piece goes."""
    start = _at(rng, data)
    del data[start : start + rng.randint(1, 64)]


def repeat(rng: random.Random, data: bytearray) -> None:
    """A piece comes twice."""
    start = _at(rng, data)
    data[start:start] = data[start : start + rng.randint(1, 64)]


def truncate(rng: random.Random, data: bytearray) -> None:
    """The end goes."""
    del data[_at(rng, data) :]


BYTE_CHANGES: tuple[ByteChange, ...] = (flip, flip, overwrite, cut, repeat, truncate)


def broken_proto(rng: random.Random, content: bytes) -> bytes:
    """A model that protobuf reads, with a few fields that say something else."""
    model = onnx.load_from_string(content)
    names = sorted({name for node in model.graph.node for name in (*node.input, *node.output)})
    for _ in range(rng.randint(1, MOST_CHANGES)):
        message, field = rng.choice(list(places(model)))
        change(rng, message, field, names)
    return model.SerializeToString()


def places(message: Any) -> Iterator[Place]:
    """Every field that is set, however deep."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                yield from places(part)


def change(rng: random.Random, message: Any, field: FieldDescriptor, names: list[str]) -> None:
    """One field: gone, or with elements dropped, doubled and shuffled, or with another value."""
    value = getattr(message, field.name)
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.is_repeated:
        change_elements(rng, message, field, names)
    elif field.type != FieldDescriptor.TYPE_MESSAGE:
        setattr(message, field.name, other_value(rng, field, value, names))


def change_elements(rng: random.Random, message: Any, field: FieldDescriptor, names: list[str]) -> None:
    """Elements of a field: one dropped, one doubled, all shuffled, or one replaced."""
    elements = list(getattr(message, field.name))
    index = rng.randrange(len(elements))
    way = rng.choice(("drop", "double", "shuffle", "replace"))
    if way == "drop":
        del elements[index]
    elif way == "double":
        elements.append(elements[index])
    elif way == "shuffle":
        rng.shuffle(elements)
    elif field.type != FieldDescriptor.TYPE_MESSAGE:
        elements[index] = other_value(rng, field, elements[index], names)
    copies = (
        [type(element).FromString(element.SerializeToString()) for element in elements] if _is_tree(field) else elements
    )
    message.ClearField(field.name)
    getattr(message, field.name).extend(copies)


def _is_tree(field: FieldDescriptor) -> bool:
    return bool(field.type == FieldDescriptor.TYPE_MESSAGE)


def other_value(rng: random.Random, field: FieldDescriptor, value: Any, names: list[str]) -> Any:
    """A value of the field's type."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice((rng.choice(names), "", "é\n\x00'\"", value + "x", "n" * LONG_NAME, "../" + value, "Relu"))
    if field.type == FieldDescriptor.TYPE_BYTES:
        data = bytearray(value)
        rng.choice(BYTE_CHANGES)(rng, data)
        return bytes(data)
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e-45, 1e38))
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice([item.number for item in field.enum_type.values])
    return _whole_number(rng, field)


def _whole_number(rng: random.Random, field: FieldDescriptor) -> int:
    narrow = {FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1), FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1)}
    least, most = narrow.get(field.type, (-(2**63), 2**63 - 1))
    return rng.choice([number for number in (*WHOLE_NUMBERS, rng.randint(-30, 30)) if least <= number <= most])
