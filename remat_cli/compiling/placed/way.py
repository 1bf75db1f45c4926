"""What ways of plans that say where ops run have in common: a plan file with budgets of its own, and no one file."""

from pathlib import Path
from typing import Protocol

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.compiling.asked_for import asked_of
from remat_cli.compiling.placed.limits import cap_lines
from remat_cli.compiling.placed.record import load_line, load_snippet
from remat_cli.compiling.ways import P_contra, V, Way
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.curve import TradeOff
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.core.values.promises import Asked


class PlacedWay(Way[P_contra, V], Protocol[P_contra, V]):
    """A kind of plan that runs in sessions which remat opens, each memory under a budget of its own."""

    def snippet(self, read: PlanFile, output: Path, path: Path) -> str:
        """The plan as remat runs it."""
        return load_snippet(path)

    def one_line(self, read: PlanFile, output: Path, path: Path) -> str:
        """The plan as remat runs it."""
        return load_line(path)

    def devices(self, read: PlanFile) -> tuple[DeviceSpec, ...]:
        """All of them."""
        return read.placed().devices

    def refuse_budget(self) -> None:
        """Every memory has its own."""
        raise ConfigError("--budget: a plan for several devices, or one that pages, has its own budgets: leave it out")

    def asked(self, read: PlanFile, curve: TradeOff | None) -> Asked:
        """With the budget of each memory."""
        return msgspec.structs.replace(asked_of(read), memory_budgets=read.placed().budgets)

    def large_lines(self, read: PlanFile) -> tuple[str, ...]:
        """That ops run in tiles for it, and tensors above the cap."""
        return cap_lines(read)

    def only_file(self, read: PlanFile, plan: Path) -> None:
        """None: sessions are cut from it."""
