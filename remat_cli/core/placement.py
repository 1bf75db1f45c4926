"""What a plan that spans devices holds besides its schedule: profiles, links, budgets, and how it is cut to be run."""

from __future__ import annotations

import msgspec

from remat_cli.core.device import DeviceSpec
from remat_cli.core.profile import LinkCost, Profile


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
