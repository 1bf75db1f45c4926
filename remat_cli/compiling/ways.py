"""What each kind of plan does in its own way; the road of a compile asks the way of a plan, and never its kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from remat_cli.base.errors import ConfigError
from remat_cli.base.named import named
from remat_cli.compiling.kinds import WAYS, kind_of
from remat_cli.core.values.profile import Kind

if TYPE_CHECKING:
    from remat_cli.base.progress import Progress
    from remat_cli.compiling.ask import CompileRequest
    from remat_cli.compiling.learn.settle import AnySettled, Settled, Settling
    from remat_cli.compiling.planned import Answered, PlannedModel, PlannedRun, PlanSubject, Refused
    from remat_cli.compiling.platform import Platform
    from remat_cli.compiling.prepare import Prepared
    from remat_cli.core.files.plan_file import PlanFile
    from remat_cli.core.schedule.program import Program
    from remat_cli.core.values.conditions import Conditions
    from remat_cli.core.values.curve import TradeOff
    from remat_cli.core.values.profile import DeviceSpec
    from remat_cli.core.values.promises import Asked
    from remat_cli.core.values.runs_on import RunsOn
    from remat_cli.core.values.verification import Checks, Verification
    from remat_cli.report.compile import CompileReport, VerifyReport
    from remat_cli.report.inspection import InspectReport

P_contra = TypeVar("P_contra", bound="Answered", contravariant=True)
V = TypeVar("V", bound="Verification")


class Way(Protocol[P_contra, V]):
    """A kind of plan: how one is made (`P`), written down, run, verified (`V`) and told of."""

    def refuse(self, request: CompileRequest) -> None:
        """Refuse what such plans cannot do.

        Raises:
            ConfigError: it was asked for.
        """

    def subject(self, prepared: Prepared, request: CompileRequest, work: Path, progress: Progress) -> PlanSubject:
        """What is planned: the model with what it costs, cut up first where devices cannot hold its tensors."""

    def profile(self, prepared: Prepared, conditions: Conditions, progress: Progress) -> Platform:
        """What the model costs where such a plan runs it."""

    def plan(
        self, prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
    ) -> PlannedModel:
        """The best plan found; it may be of another kind, where that is better."""

    def settle(self, planned: P_contra, how: Settling) -> AnySettled:
        """The plan as it is to be written: verified, or mended and verified."""

    def record(self, planned: P_contra, request: CompileRequest) -> PlanFile:
        """Everything needed to rebuild, draw, run and verify it; `written_at` adds the files it speaks of."""

    def save(self, planned: P_contra, path: Path, request: CompileRequest) -> RunsOn:
        """Write the model that stands beside the plan file; where it runs."""

    def save_more(
        self, report: CompileReport, settled: Settled[P_contra, V | None], path: Path, work: Path, progress: Progress
    ) -> CompileReport:
        """The report of a plan that was written, once what else users may run of it is written to a path."""

    def report(self, settled: Settled[P_contra | Refused, V | None]) -> CompileReport:
        """What a compile that asked for such a plan found, before anything is written."""

    def told(self, planned: PlannedModel) -> tuple[str, ...]:
        """What a user is told who asked for such a plan, of what was found."""

    def run(self, read: PlanFile, model: Path, folder: Path) -> Program:
        """What a plan file needs to be run, written into a folder."""

    def snippet(self, read: PlanFile, output: Path, path: Path) -> str:
        """Python that runs the result, ready to paste."""

    def one_line(self, read: PlanFile, output: Path, path: Path) -> str:
        """The same in a line."""

    def refuse_cap(self, plan: Path) -> None:
        """Refuse to run it with the arenas of its sessions capped, where they have none.

        Raises:
            ConfigError: they have none.
        """

    def devices(self, read: PlanFile) -> tuple[DeviceSpec, ...]:
        """The devices that a plan file is for."""

    def refuse_budget(self) -> None:
        """Refuse to look at a plan file under another budget, where it has budgets of its own.

        Raises:
            ConfigError: it has.
        """

    def asked(self, read: PlanFile, curve: TradeOff | None) -> Asked:
        """What was asked for beside live bytes; cheaper budgets are looked up on the curve of its model."""

    def large_lines(self, read: PlanFile) -> tuple[str, ...]:
        """What a cap on tensors did, and which are larger all the same."""

    def verify(self, run: PlannedRun, whole: Prepared, work: Path, checks: Checks, progress: Progress) -> V:
        """Run what a plan file speaks of beside the original, in fresh processes."""

    def verified(self, report: VerifyReport) -> VerifyReport:
        """What verifying a plan file found, as such plans tell it."""

    def only_file(self, read: PlanFile, plan: Path) -> Path | None:
        """The one file that runs without the plan; None: there is none, as remat cuts sessions from it to run them."""

    def inspect(self, path: Path, read: PlanFile, warnings: tuple[str, ...]) -> InspectReport:
        """Where the memory goes."""


def way(kind: Kind) -> Way[Any, Any]:
    """The way of a kind of plan.

    Raises:
        ConfigError: it is not known here: a plan file speaks of another version's.
    """
    if kind not in WAYS:
        raise ConfigError(f"plans of kind '{kind}' are not known here; there are {', '.join(WAYS)}: update remat")
    found: Way[Any, Any] = named(WAYS[kind].way)()
    return found


def way_asked(conditions: Conditions) -> Way[Any, Any]:
    """The way of the plan that is asked for."""
    return way(kind_of(conditions.devices, is_spilled=conditions.spill is not None))
