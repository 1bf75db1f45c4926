"""What a session is given: the tensors that the caller feeds, with every dimension bound, and the weights."""

from __future__ import annotations

import msgspec


class InputSpec(msgspec.Struct, frozen=True):
    """One tensor that the caller feeds.

    `dtype` is ONNX Runtime's name of the element type (`float`, `int64`, ...); `shape` is in elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class Reader(msgspec.Struct, frozen=True):
    """An op that reads a weight, by domain, type, and the number of the input it reads it as."""

    domain: str
    op_type: str
    input_index: int


class WeightUse(msgspec.Struct, frozen=True):
    """A weight and every op that reads it; `dtype` is the runtime's name of its element type."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    readers: tuple[Reader, ...]
