"""What each command found out: everything a reader or a script may want, as plain values that become JSON.

Bytes are totals, fixed part included, unless a name says otherwise. Times are integers in nanoseconds, or in cost units
for abstract instances. None means not known.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from remat_cli.core.placement import Reference
from remat_cli.core.profile import LinkCost, Profile
from remat_cli.report.devices import DeviceReport, LinkReport, PlacementMatrix
from remat_cli.report.regions import RegionReport
from remat_cli.report.solution import EXIT_DONE, SolutionReport


class LiveTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that is held at some step. `shares_with` names the tensor whose storage it uses (bytes then 0)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    producer: str | None
    shares_with: str | None = None


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """An op that runs more than once, and why.

    `runs` is how often it runs in all, `time` what the repeats add. `tensor` is the largest result whose life was cut:
    absent from step `dropped_after` + 1 to `made_again_at` - 1. `freed_bytes` is what that frees there, and
    `peak_without_bytes` what the fullest of these steps would hold if the tensor had stayed. With several devices,
    `memory` is where it was absent and `devices` is where each run takes place; `freed_bytes` is 0 where nothing was
    dropped, so that running again only saves a copy.
    """

    op: str
    op_type: str
    runs: int
    time: int
    tensor: str
    freed_bytes: int
    dropped_after: int
    made_again_at: int
    peak_without_bytes: int
    memory: str | None = None
    devices: tuple[str, ...] = ()


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


class SolveReport(msgspec.Struct, frozen=True, kw_only=True):
    """An abstract instance solved. Its JSON is the solution's fields with `instance`, `ops` and `budget` in front."""

    instance: str
    ops: int
    budget: str
    solution: SolutionReport

    @property
    def exit_code(self) -> int:
        """The solution's."""
        return self.solution.exit_code


class InspectReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory of a model or a plan goes.

    `memory_bytes` is the total during each step, `baseline_memory_bytes` the original's (plans only). `alive` are the
    tensors held at `peak_step`, largest first; `workspace_bytes` is what the op there takes for itself, `gate_bytes`
    what gates hold then. `floor_bytes` is the floor of whole ops. `regions` run in tiles, or would (`is_estimate`);
    `split_obstacle` says in one line why splitting cannot help. `step_times_ns` and `baseline_step_times_ns` are how
    long each step takes (plans with splits only, where steps before and after cannot be compared by number).
    Plans that span devices have `devices`, `links`, `memories` and `placement`; other bytes are then those of the
    first memory, and the baseline is the best single device, `baseline_device`.
    """

    path: str
    kind: Literal["model", "plan"]
    device: str
    ops: int
    fixed_bytes: int
    floor_bytes: int
    peak_bytes: int
    peak_step: int
    peak_op: str
    memory_bytes: tuple[int, ...]
    alive: tuple[LiveTensor, ...]
    workspace_bytes: int = 0
    gate_bytes: int = 0
    time: int | None = None
    budget: str | None = None
    budget_bytes: int | None = None
    baseline_memory_bytes: tuple[int, ...] = ()
    baseline_peak_bytes: int | None = None
    blocking_op: str | None = None
    recomputes: tuple[Recompute, ...] = ()
    overhead_percent: float | None = None
    lower_bound_percent: float | None = None
    gap_percent: float | None = None
    space: str | None = None
    floor_with_splitting_bytes: int | None = None
    regions: tuple[RegionReport, ...] = ()
    split_obstacle: str | None = None
    step_times_ns: tuple[int, ...] = ()
    baseline_step_times_ns: tuple[int, ...] = ()
    devices: tuple[DeviceReport, ...] = ()
    links: tuple[LinkReport, ...] = ()
    memories: tuple[MemoryReport, ...] = ()
    placement: PlacementMatrix | None = None
    single: tuple[Reference, ...] = ()
    segments: int = 0
    baseline_device: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether the peak is within the budget, in every memory; None without a budget."""
        if self.memories:
            return all(memory.peak_bytes <= memory.budget_bytes for memory in self.memories)
        return None if self.budget_bytes is None else self.peak_bytes <= self.budget_bytes

    @property
    def exit_code(self) -> int:
        """Always 0: inspecting is a question."""
        return EXIT_DONE


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One model's costs on each device asked for, and what copies between their memories cost."""

    model: str
    profiles: tuple[Profile, ...]
    links: tuple[LinkCost, ...] = ()
    output: str | None = None

    @property
    def exit_code(self) -> int:
        """Always 0: it measured or raised."""
        return EXIT_DONE


class CacheReport(msgspec.Struct, frozen=True):
    """How many cached measurements were removed, and from where."""

    cache_dir: str
    removed: int

    @property
    def exit_code(self) -> int:
        """Always 0."""
        return EXIT_DONE


class OptionEntry(msgspec.Struct, frozen=True):
    """One option of a solver: name, type as text, and default."""

    name: str
    type: str
    default: Any


class SolverEntry(msgspec.Struct, frozen=True):
    """One solver of the registry. `supports` and `proves` are sentences."""

    name: str
    summary: str
    supports: str
    proves: str
    options: tuple[OptionEntry, ...]


class SolversReport(msgspec.Struct, frozen=True):
    """The registry of solvers."""

    solvers: tuple[SolverEntry, ...]

    @property
    def exit_code(self) -> int:
        """Always 0."""
        return EXIT_DONE
