"""Tensors in the memory that a device uses, as the runtime's own values."""

from __future__ import annotations

from typing import Any

from remat_cli.core.device import HOST_MEMORY
from remat_cli.runtime._arrays import EXTENDED_NAMES, Array, host_value, runtime_dtype
from remat_cli.runtime._ort import import_ort
from remat_cli.runtime.providers import Device


def place_of(device: Device) -> tuple[str, int]:
    """What the runtime calls a device's memory, and its number."""
    kind = device.provider.memory
    return kind, 0 if kind == HOST_MEMORY else device.index


def unowned(value: Any) -> Any:
    """The same buffer as a value that does not own it, which is what sessions take as shared weights.

    It is freed when no value refers to it any more, as before.
    """
    ort = import_ort()
    inner = value._get_c_value()
    is_bool = value.data_type() == "tensor(bool)"
    shared = ort.capi.onnxruntime_pybind11_state.OrtValue.from_dlpack(inner.__dlpack__(), is_bool)
    return ort.OrtValue(shared)


def placed_value(array: Array, place: tuple[str, int]) -> Any:
    """An array as the runtime's value in a memory; on the host it shares the array's buffer.

    Types that numpy lacks, and text, stay on the host, from where the runtime copies them when it runs.
    """
    dtype = runtime_dtype(array)
    if place[0] == HOST_MEMORY or dtype in EXTENDED_NAMES or dtype == "string":
        return host_value(array)
    return import_ort().OrtValue.ortvalue_from_numpy(array, *place)
