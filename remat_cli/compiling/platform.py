"""What a model costs on the devices at hand: one device is several with one entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.problem import NO_BUDGET, Problem, make_device_problem
from remat_cli.core.values.profile import DeviceSpec, LinkCost, Profile
from remat_cli.core.values.spill import SpillMemory


@dataclass(frozen=True)
class Platform:
    """Devices with what a model costs on them; `session_bytes` as in a placement, `spill` a memory to page to."""

    graph: Graph
    specs: tuple[DeviceSpec, ...]
    profiles: tuple[Profile, ...]
    links: tuple[LinkCost, ...] = ()
    session_bytes: Mapping[str, int] = field(default_factory=dict)
    spill: SpillMemory | None = None

    @property
    def profile(self) -> Profile:
        """The costs on the first device."""
        return self.profiles[0]

    @property
    def opaque(self) -> frozenset[int]:
        """Devices that compile what they are given."""
        return frozenset(d for d, profile in enumerate(self.profiles) if profile.is_opaque)

    def of_model(self, graph: Graph, profile: Profile) -> Platform:
        """The only device, with what another model costs on it."""
        return replace(self, graph=graph, profiles=(profile,))

    def with_session_bytes(self, more: Mapping[str, int]) -> Platform:
        """The same platform, whose sessions hold so many bytes more of weights."""
        known = self.session_bytes
        return replace(self, session_bytes={n: known.get(n, 0) + more.get(n, 0) for n in {**known, **more}})

    def problem(self, budgets: Mapping[str, int] | None = None, overlap: bool = False) -> Problem:
        """The problem on these devices; without budgets, with all the memory there could be."""
        roomy = {profile.memory: NO_BUDGET for profile in self.profiles}
        return make_device_problem(self.graph, self.profiles, self.links, budgets or roomy, overlap, self.session_bytes)
