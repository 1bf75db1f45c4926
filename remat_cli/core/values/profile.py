"""Devices as the user names and describes them, what ops cost on each, and what a plan that spans several holds."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from remat_cli.core.values.spill import SpillSpec


class Provenance(msgspec.Struct, frozen=True):
    """Where a profile's figures come from; a plan made elsewhere gets a warning that names what differs.

    `intra_op_threads` is 0 for the runtime's own default. `optimization` is `all`, `extended` or `basic`.
    """

    cpu: str
    os: str
    runtime: str
    runtime_version: str
    provider: str
    intra_op_threads: int
    optimization: str
    runs: int
    warmups: int
    measured: bool = True


class OpCost(msgspec.Struct, frozen=True):
    """Cost of one op, by op name: least time over the runs, workspace, and noise.

    `noise_percent` is how far the second-least run lies above the least.
    """

    name: str
    time_ns: int
    workspace_bytes: int = 0
    noise_percent: float = 0.0


class Unsupported(msgspec.Struct, frozen=True):
    """An op that a device cannot run, by name, and why."""

    name: str
    reason: str


class LinkCost(msgspec.Struct, frozen=True):
    """What a copy from one memory to another costs: `latency_ns` and then `bytes_per_second`.

    `measured` is False where the figures come from a device's description; `noise_percent` is how far the second-least
    times of copies lie above the least.
    """

    source: str
    target: str
    latency_ns: int
    bytes_per_second: float
    measured: bool = True
    noise_percent: float = 0.0

    def time_ns(self, size_bytes: int) -> int:
        """Time to copy so many bytes."""
        return self.latency_ns + round(1e9 * size_bytes / self.bytes_per_second)


class Profile(msgspec.Struct, frozen=True):
    """Costs of all ops of one optimised model on one device.

    `weight_bytes` are the weights in the form the runtime keeps (packed ones replace their originals),
    `input_bytes` the model inputs, owned by the caller; together they are the fixed part. `packed_bytes` is the part
    of `weight_bytes` that the runtime packed into its arena. `run_ns` is the least time of a whole run.
    `loading_peak_bytes` is the transient need while the session loads (None when not measured).
    `model_sha256` is the hash of the optimised model it belongs to. `unsupported` are the ops that the device cannot
    run; every other op is in `ops`. `memory` names the memory that the device uses, `power_watts` what it draws while
    it computes, `call_ns` what a session on it costs beside its ops. `is_opaque`: its provider
    compiles what it is given, and neither order nor memory can be enforced inside. `bodies` says, by op that runs a
    body, what kernels in it ask for (bytes) and give back (-1: the oldest that is still held, and so on), in order.
    `extrapolated_from` are the sizes at which it was measured, the largest first, where the machine could not run the
    model at its own.
    """

    device: str
    model_sha256: str
    provenance: Provenance
    ops: tuple[OpCost, ...]
    weight_bytes: int
    input_bytes: int
    packed_bytes: int = 0
    run_ns: int | None = None
    loading_peak_bytes: int | None = None
    unsupported: tuple[Unsupported, ...] = ()
    memory: str = "cpu"
    power_watts: float | None = None
    call_ns: int = 0
    is_opaque: bool = False
    bodies: dict[str, tuple[int, ...]] = {}
    extrapolated_from: tuple[dict[str, int], ...] | UnsetType = UNSET

    @property
    def fixed_bytes(self) -> int:
        """What is held all through a run: weights and model inputs."""
        return self.weight_bytes + self.input_bytes


def without_costs(ops: Iterable[str]) -> Profile:
    """A profile for questions of memory only: ops, by name, that take no time and no workspace."""
    nowhere = Provenance("", "", "", "", "", 0, "", 0, 0, measured=False)
    return Profile("any", "", nowhere, tuple(OpCost(name, 0) for name in ops), 0, 0)


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
    `is_elsewhere`: it is another machine's, and never measured here even where its provider is. `spill` is a folder for
    what its memory has no room for.
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
    spill: SpillSpec | None = None

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


Kind: TypeAlias = str
"""The name of a kind of plan: `one_model`, `sessions` with copies between them, `paged`, or another row of `WAYS`."""
SessionForm = Literal["sessions", "one_session"]
"""How a plan on several devices is run: a session wherever the device changes, or one that holds all ops."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The several devices of a plan. Steps number devices in the order of `profiles`.

    `budgets` are total bytes by memory; `peak_bytes` is what the cut plan needs of each, `memory_bytes` the same at
    each action of the run. `segments` are how many sessions it is cut into. `single` are the plans on one device, best
    first, for comparison. `energy_nj` is by device, where power is known. `session_bytes` is what sessions were seen to
    hold of weights in each memory beyond what one session on the whole model holds, since each packs its own. `way` is
    how it is run: in `one_session` the schedule is in the order in which the runtime runs that, copies its own.
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
    way: SessionForm = "sessions"

    @property
    def session_devices(self) -> tuple[str, ...]:
        """The names by which sessions are opened on the devices."""
        return tuple(spec.session_device for spec in self.devices)
