"""Arrays of every element type the runtime knows: names, numpy types, bytes, and running a session on them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from remat_cli.base.errors import ModelError
from remat_cli.runtime._ort import import_ort

Array: TypeAlias = npt.NDArray[Any]

NUMPY_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "float": "float32",
        "double": "float64",
        "float16": "float16",
        "bool": "bool",
        "string": "object",
        **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    }
)
"""ONNX Runtime's name of an element type -> numpy's."""

EXTENDED_NAMES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "bfloat16": ("bfloat16", 16),
        "float8e4m3fn": ("float8_e4m3fn", 17),
        "float8e4m3fnuz": ("float8_e4m3fnuz", 18),
        "float8e5m2": ("float8_e5m2", 19),
        "float8e5m2fnuz": ("float8_e5m2fnuz", 20),
    }
)
"""Element types that numpy lacks: the runtime's name -> name in ml_dtypes and number in ONNX's TensorProto."""


class PackedArray(msgspec.Struct, frozen=True):
    """An array as plain bytes, for the way to another process and for comparing bit by bit."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy element type of a runtime element type.

    Raises:
        ModelError: remat cannot feed that type.
    """
    if dtype in NUMPY_NAMES:
        return np.dtype(NUMPY_NAMES[dtype])
    if dtype in EXTENDED_NAMES:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, EXTENDED_NAMES[dtype][0]))
        return extended
    raise ModelError(f"element type '{dtype}' cannot be fed; use a model with inputs of another type")


def runtime_dtype(array: Array) -> str:
    """The runtime's name of an array's element type; numpy's own name where the runtime has none."""
    names = {numpy: runtime for runtime, numpy in NUMPY_NAMES.items()}
    names |= {extended: runtime for runtime, (extended, _) in EXTENDED_NAMES.items()}
    return names.get(array.dtype.name, array.dtype.name)


def pack(name: str, array: Array) -> PackedArray:
    """An array as bytes; strings are stored as a list, since their bytes are pointers."""
    dtype = runtime_dtype(array)
    data = msgspec.msgpack.encode(array.ravel().tolist()) if dtype == "string" else array.tobytes()
    return PackedArray(name, dtype, tuple(int(size) for size in array.shape), data)


def unpack(packed: PackedArray) -> Array:
    """The array that was packed."""
    if packed.dtype == "string":
        return np.array(msgspec.msgpack.decode(packed.data), dtype=object).reshape(packed.shape)
    return np.frombuffer(packed.data, numpy_dtype(packed.dtype)).reshape(packed.shape)


def pack_all(arrays: Mapping[str, Array]) -> tuple[PackedArray, ...]:
    """Named arrays as bytes."""
    return tuple(pack(name, array) for name, array in arrays.items())


def run_session(session: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run once and return the outputs by name.

    Plain numpy types are fed directly and stay outside the runtime's arena. The types numpy lacks go through
    OrtValue, which the Python interface cannot turn back into numpy: their bytes are read from the buffer.
    """
    names = [output.name for output in session.get_outputs()]
    types = [*(i.type for i in session.get_inputs()), *(o.type for o in session.get_outputs())]
    if not any(_element(text) in EXTENDED_NAMES for text in types):
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))
    values = session.run_with_ort_values(names, {name: host_value(array) for name, array in feeds.items()})
    return {name: array_of(value) for name, value in zip(names, values, strict=True)}


def _element(type_text: str) -> str:
    return type_text.removeprefix("tensor(").removesuffix(")")


def host_value(array: Array) -> Any:
    """An array of any element type as the runtime's value, on the host."""
    ort_value = import_ort().OrtValue
    dtype = runtime_dtype(array)
    if dtype not in EXTENDED_NAMES:
        return ort_value.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view(np.uint16 if array.itemsize == 2 else np.uint8)
    return ort_value.ortvalue_from_numpy_with_onnx_type(bits, EXTENDED_NAMES[dtype][1])


def array_of(value: Any) -> Array:
    """A copy of a value on the host as an array, of any element type."""
    dtype = _element(value.data_type())
    if dtype not in EXTENDED_NAMES:
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    element = numpy_dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    data = ctypes.string_at(value.data_ptr(), count * element.itemsize) if count else b""
    return np.frombuffer(data, element).reshape(shape)
