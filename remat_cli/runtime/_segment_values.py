"""Tensors that a program's run holds: checked feeds, copies between memories, and who holds how much."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from remat_cli.base.errors import ModelError
from remat_cli.core.device import HOST_MEMORY
from remat_cli.core.interface import InputSpec
from remat_cli.core.program import Program
from remat_cli.runtime._arrays import EXTENDED_NAMES, Array, array_of, numpy_dtype, runtime_dtype
from remat_cli.runtime._ort import import_ort
from remat_cli.runtime._places import placed_value
from remat_cli.runtime._segment_sessions import Place


def check_feeds(inputs: tuple[InputSpec, ...], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """What is fed, by name, as arrays that the runtime can read where they are.

    Raises:
        ModelError: a name, an element type or a shape does not fit; one line.
    """
    wanted = {spec.name: spec for spec in inputs}
    if missing := [name for name in wanted if name not in feeds]:
        raise ModelError(f"input '{missing[0]}' is not fed; the model takes {_listed(wanted)}")
    if extra := [name for name in feeds if name not in wanted]:
        raise ModelError(f"'{extra[0]}' is fed but is no input; the model takes {_listed(wanted)}")
    return {name: _checked(spec, np.asarray(feeds[name])) for name, spec in wanted.items()}


def _checked(spec: InputSpec, array: Array) -> Array:
    if tuple(array.shape) != spec.shape:
        raise ModelError(
            f"input '{spec.name}' has shape {list(array.shape)}, the plan is for {list(spec.shape)}: "
            "compile again for other shapes"
        )
    if spec.dtype == "string" and array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype != numpy_dtype(spec.dtype):
        raise ModelError(f"input '{spec.name}' is of type {runtime_dtype(array)}, the model takes {spec.dtype}")
    return np.ascontiguousarray(array).reshape(spec.shape)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def copied(value: Any, target: Place) -> Any:
    """A new value in another memory with the same contents; between host memories a real copy too."""
    if _is_on_host(value) and target[0] == HOST_MEMORY:
        return placed_value(_host_copy(value), target)
    return placed_value(_host_view(value), target)


def owned(value: Any) -> Any:
    """A bound output in a container of its own: what a binding gives points into the binding, and ends with it."""
    ort = import_ort()
    alone = ort.capi.onnxruntime_pybind11_state.OrtValueVector()
    alone.push_back(value._get_c_value())
    return ort.OrtValue(alone[0])


def as_array(value: Any) -> Array:
    """A copy of a value as an array of the caller's."""
    return array_of(value) if _is_on_host(value) else np.asarray(value.numpy())


def _is_on_host(value: Any) -> bool:
    return bool(value.device_name() == HOST_MEMORY)


def _host_copy(value: Any) -> Array:
    """The copy of a value on the host; copying large ones lets other threads run."""
    view = _host_view(value)
    made = np.empty_like(view)
    np.copyto(made, view)
    return made


def _host_view(value: Any) -> Array:
    """The array over a value on the host, without a copy; from a device it is a copy on the host."""
    dtype = value.data_type().removeprefix("tensor(").removesuffix(")")
    if not _is_on_host(value) or dtype == "string":
        return np.asarray(value.numpy())
    if dtype in EXTENDED_NAMES and not value.shape():
        return array_of(value)
    element, shape = numpy_dtype(dtype), tuple(value.shape())
    size = int(np.prod(shape, dtype=np.int64)) * element.itemsize
    if not size:
        return np.empty(shape, element)
    buffer = memoryview((ctypes.c_char * size).from_address(value.data_ptr()))
    view: Array = np.frombuffer(buffer, element).reshape(shape)
    return view


@dataclass
class Holdings:
    """The values that a run holds. What the caller feeds is not counted.

    `held_bytes` is by memory. A value whose copy is under way is a future.
    """

    program: Program
    values: dict[str, Any]
    held_bytes: list[int] = field(init=False)
    fed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Only what is fed is there yet."""
        self.held_bytes = [0] * len(self.program.memories)
        self.fed = frozenset(self.values)

    def get(self, name: str) -> Any:
        """A value, waited for if it is being copied."""
        value = self.values[name]
        if isinstance(value, Future):
            value = self.values[name] = value.result()
        return value

    def put(self, name: str, value: Any) -> None:
        """Hold a new value."""
        spec = self.program.values[name]
        self.values[name] = value
        self.held_bytes[spec.memory] += spec.size_bytes if isinstance(value, Future) else size_of(value)

    def drop(self, name: str) -> None:
        """Let go of a value; what the caller feeds is the caller's."""
        if name in self.fed:
            return
        size = size_of(self.get(name))
        del self.values[name]
        self.held_bytes[self.program.values[name].memory] -= size


def size_of(value: Any) -> int:
    """Bytes of a value's buffer."""
    return int(value.tensor_size_in_bytes())
