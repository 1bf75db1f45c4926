"""A device as data: what runs there, which memory it uses, how it is linked to others, and what it can do at best."""

from __future__ import annotations

import msgspec


class LinkSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A link from a device's memory to another memory, by its name, in that direction and back."""

    to: str
    bytes_per_second: float
    latency_ns: int = 0
    back_bytes_per_second: float | None = None
    back_latency_ns: int | None = None


class DeviceSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device.

    `name` is what users and plans call it (`cpu`, `cpu:1threads`, `cuda:0`, `openvino`); `provider` a key of the table
    of execution providers. `threads` 0 is the runtime's own default. `options` go to the provider. `memory` names what
    it holds tensors in: devices that name the same one share it and its budget. `flops_per_second`,
    `memory_bytes_per_second` and `launch_ns` are for estimates where the device is not at hand.
    """

    name: str
    provider: str
    memory: str = "cpu"
    index: int = 0
    threads: int = 0
    options: dict[str, str] = {}
    budget: str | None = None
    links: tuple[LinkSpec, ...] = ()
    power_watts: float | None = None
    flops_per_second: float | None = None
    memory_bytes_per_second: float | None = None
    launch_ns: int = 0
    note: str = ""
