"""Devices as the user names and describes them, and what a plan that spans several holds besides its schedule."""

from __future__ import annotations

import msgspec

from remat_cli.core.profile import LinkCost, Profile

HOST_MEMORY = "cpu"


class LinkSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A link from a device's memory to another memory, by its name, in that direction and back.

    The figures of the way back are those of the way there unless given.
    """

    to: str
    bytes_per_second: float
    latency_ns: int = 0
    back_bytes_per_second: float | None = None
    back_latency_ns: int | None = None


class DeviceSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One device.

    `name` is what users and plans call it (`cpu`, `cpu:1threads`, `cuda:0`, `openvino`); `provider` a key of the table
    of execution providers. `threads` 0 is the runtime's own default. `options` go to the provider. `memory` names what
    it holds tensors in: devices that name the same one share it and its budget. `flops_per_second`,
    `memory_bytes_per_second` and `launch_ns` are for estimates where the device is not at hand; `is_measured` says
    whether these and the links were measured rather than read from a data sheet, `note` where they come from.
    `is_elsewhere`: it is another machine's, and never measured here even where its provider is.
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
    is_measured: bool = False
    is_elsewhere: bool = False
    note: str = ""

    @property
    def session_device(self) -> str:
        """The name by which a session is opened on it; its `options` go to the session beside it."""
        index = f":{self.index}" if self.index else ""
        threads = f":{self.threads}threads" if self.threads else ""
        return f"{self.provider}{index}{threads}"

    @property
    def session_options(self) -> tuple[tuple[str, str], ...]:
        """Its provider options in the form that session settings take."""
        return tuple(sorted(self.options.items()))


class Reference(msgspec.Struct, frozen=True):
    """The best plan that uses one device only, within the same budgets; `time_ns` None: none was found."""

    device: str
    time_ns: int | None


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The several devices of a plan. Steps number devices in the order of `profiles`.

    `budgets` are total bytes by memory; `peak_bytes` is what the cut plan needs of each, `memory_bytes` the same at
    each action of the run. `segments` are how many sessions it is cut into. `single` are the plans on one device, best
    first, for comparison. `energy_nj` is by device, where power is known. `session_bytes` is what sessions were seen to
    hold of weights in each memory beyond what one session on the whole model holds, since each packs its own.
    """

    devices: tuple[DeviceSpec, ...]
    profiles: tuple[Profile, ...]
    links: tuple[LinkCost, ...] = ()
    budgets: dict[str, int]
    overlap: bool = False
    peak_bytes: dict[str, int]
    memory_bytes: dict[str, tuple[int, ...]] = {}
    segments: int = 0
    single: tuple[Reference, ...] = ()
    energy_nj: dict[str, int] = {}
    session_bytes: dict[str, int] = {}
