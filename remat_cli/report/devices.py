"""Devices, links, memories and placements in reports, as plain values that become JSON. None means not known."""

from __future__ import annotations

from typing import Literal

import msgspec

from remat_cli.report.explain import LiveTensor


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan asks of one device, and what was seen there.

    Bytes are those of its `memory`, which other devices may share. `is_measured` is False where its costs come from a
    description. `ops` counts computes, repeats included; `time_ns` is what they take as planned, with changes to this
    device. `measured_peak_bytes` is None where the provider hides it. `unsupported` counts ops that it cannot run.
    """

    name: str
    provider: str
    memory: str
    is_measured: bool
    budget_bytes: int
    baseline_peak_bytes: int
    predicted_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    ops: int = 0
    time_ns: int = 0
    measured_time_ns: int | None = None
    energy_nj: int | None = None
    unsupported: int = 0


class LinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan copies from one memory to another; `is_measured` as in a device."""

    source: str
    target: str
    copies: int
    bytes: int
    time_ns: int
    is_measured: bool


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one of several memories holds, and the devices that use it.

    `memory_bytes` is the total during each step of the schedule, fullest at `peak_step`, where `alive` are held.
    `run_memory_bytes` is the total during each session and copy that the plan is cut into to be run, where that is
    known, and `peak_bytes` its largest: it may be above what the schedule alone needs.
    """

    name: str
    devices: tuple[str, ...]
    budget_bytes: int
    fixed_bytes: int
    peak_bytes: int
    peak_step: int
    peak_op: str
    memory_bytes: tuple[int, ...]
    run_memory_bytes: tuple[int, ...] = ()
    alive: tuple[LiveTensor, ...] = ()
    workspace_bytes: int = 0


StepKind = Literal["given", "compute", "recompute", "copy"]


class PlacedStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a placement, at its planned time: what is computed, or copied to the memory of device `target`.

    `row` is the op, or the op that makes the tensor; `given` is a model input, which the caller holds.
    """

    kind: StepKind
    row: int
    device: int
    start_ns: int
    end_ns: int
    target: int | None = None


class PlacedLife(msgspec.Struct, frozen=True):
    """A result of the op `row` is in a memory from one step to another, both inclusive."""

    row: int
    memory: int
    first: int
    last: int


class PlacementMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when every op is computed, copied and kept: the matrices R and S of XEngine, one pair per device.

    `rows` are names of ops in baseline order, those of model inputs in front where they may have to be copied.
    `memory_of[d]` is the memory of device d, an index into `memories`.
    """

    rows: tuple[str, ...]
    devices: tuple[str, ...]
    memories: tuple[str, ...]
    memory_of: tuple[int, ...]
    steps: tuple[PlacedStep, ...]
    lives: tuple[PlacedLife, ...]
