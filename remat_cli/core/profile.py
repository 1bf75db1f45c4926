"""What ops cost on a device, measured or estimated, and where the figures come from."""

from __future__ import annotations

import msgspec


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
    compiles what it is given, and neither order nor memory can be enforced inside.
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

    @property
    def fixed_bytes(self) -> int:
        """What is held all through a run: weights and model inputs."""
        return self.weight_bytes + self.input_bytes
