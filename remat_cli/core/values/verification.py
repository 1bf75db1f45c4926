"""What running a plan showed, beside what it promised: a type for each kind of plan, and what all of them answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from remat_cli.core.values.family import FamilySeen
from remat_cli.core.values.learning import Learnt
from remat_cli.core.values.noise import TimeNoise
from remat_cli.core.values.promises import Check, MeasuredPromise, broken_lines, fits, judged, told_lines, worst
from remat_cli.core.values.resident import ProcessSeen

VerifyMode = Literal["off", "fast", "on", "thorough"]
"""How much verification does: nothing; outputs, order and peaks; time and a capped run too; smallest caps too."""


class Checks(msgspec.Struct, frozen=True):
    """How much verification does, whether it may run models under memory caps, and notes resident memory over time."""

    mode: VerifyMode = "on"
    capped_run: bool = True
    traced: bool = False


class PagedResident(msgspec.Struct, frozen=True):
    """Resident bytes of a process above an idle runtime: once its sessions are open, and the most in any run."""

    opened_bytes: int
    peak_bytes: int


class PagingSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What a paged plan's runs showed: time in which nothing was computed in the fastest run, beside the planned one.

    `planned_run_bytes` is what the plan holds beyond weights and inputs, `resident` what a process was measured to hold
    (None: not measured) beside the `input_bytes` of its caller. All of it counts against `budget_bytes`.
    """

    planned_stall_ns: int
    measured_stall_ns: int
    written_bytes: int
    read_bytes: int
    planned_run_bytes: int
    resident: PagedResident | None
    input_bytes: int = 0
    budget_bytes: int = 0

    @property
    def process_bytes(self) -> int | None:
        """What a process was measured to hold at most, inputs included, above an idle runtime; None: not measured."""
        return None if self.resident is None else self.resident.peak_bytes + self.input_bytes

    @property
    def excess_bytes(self) -> int:
        """How far that is above the budget; 0 where it is within, or was not measured."""
        held = self.process_bytes or 0
        return 0 if not self.budget_bytes or fits(held, self.budget_bytes) else held - self.budget_bytes


class Learning(msgspec.Struct, frozen=True):
    """Where runs left the prediction, how often the plan was made again, and the room that was then left free."""

    learnt: tuple[Learnt, ...] = ()
    rounds: int = 0
    room_bytes: int = 0


class Verification:
    """Figures of one verification, a type for each kind of plan; `None` means not measured, never "fine".

    `outputs_identical`: the outputs are the same bits; where they need not be and are not, `outputs_close` says whether
    they are within the tolerance for sums in another order. `inferences` is how many runs of either model verification
    took, failed ones included. `notes` are lines for people: what was not checked and why, slack between live bytes and
    the smallest cap. `how_checked` are those of them that say only how it was checked.
    """

    __slots__ = ()

    outputs_identical: bool
    within_budget: bool
    outputs_close: bool | None
    runtime_version: str
    inferences: int | UnsetType
    notes: tuple[str, ...]

    @property
    def how_checked(self) -> tuple[str, ...]:
        """Those of the notes that weaken nothing."""
        return ()

    @property
    def checks(self) -> tuple[Check, ...]:
        """All that is promised, with the verdict on each, and a line for people where it is broken."""
        raise NotImplementedError

    @property
    def are_outputs_kept(self) -> bool:
        """Whether the outputs are identical, or need not be and are close."""
        return self.outputs_identical or self.outputs_close is True

    @property
    def is_compared_everywhere(self) -> bool:
        """Whether there was something to compare the outputs of every run with."""
        return True

    @property
    def promises(self) -> tuple[MeasuredPromise, ...]:
        """All that is promised, with the verdict on each."""
        return tuple(check.promise for check in self.checks)

    @property
    def failures(self) -> tuple[str, ...]:
        """One line per broken promise of bits, order, or memory that was asked for; empty when all of them hold."""
        return broken_lines(self.checks)

    @property
    def warned(self) -> tuple[str, ...]:
        """One line per prediction that was not kept, of what nobody asked to be kept."""
        return told_lines(self.checks)

    @property
    def passed(self) -> bool:
        """Whether every promise that was checked holds, but for predictions of what nobody asked to be kept."""
        return not self.failures

    @property
    def is_broken(self) -> bool:
        """Whether outputs differ or the order was not kept, which no other plan of the same kind would mend."""
        return worst(self.promises) == "broken"

    @property
    def is_worse_under_cap(self) -> bool:
        """Whether capped runs were made and did not tell the rewritten model from the original."""
        return False

    @property
    def process_seen(self) -> ProcessSeen | None:
        """What processes that load and run either model were measured to hold, where that was measured."""
        return None

    @property
    def learning(self) -> Learning:
        """What runs taught before the plan that these figures are of."""
        return Learning()

    @property
    def extra_time_percent(self) -> float | None:
        """Extra time, where it was measured against the original."""
        return None

    @property
    def noise_told(self) -> str:
        """How far times may be off, where that is worth telling; else empty."""
        return ""

    @property
    def noise_percent(self) -> float:
        """Within what a difference of measured times decides nothing."""
        return 0.0


class OneModelSeen(Verification, msgspec.Struct, frozen=True, kw_only=True):
    """What runs of a plan that is one model showed. What JSON leaves out was not looked at, or is older than the field.

    `predicted_peak_bytes` and `measured_peak_bytes` count live tensors under the exact options, so that they can be
    compared to the byte. The two default-session peaks come from one counter, first run, default options.
    `later_runs_block_bytes` is the block that later runs of a default session allocate (0: none). A cap is a limit on
    the runtime's arena in bytes; the smallest is the least under which three runs in a fresh process succeed, with the
    session options that `cap_options` names; `notes_on_caps` are those of the notes that are about it.
    `outputs_max_relative_error` is the largest difference of outputs relative to the largest magnitude in its tensor.

    `within_budget` is about a default session's first run; `budget_bytes` is the budget of live bytes, which a portable
    model keeps under exact options only.

    `time_noise` says how far times may be off (None: nothing was timed). `process` is what resident memory of fresh
    processes showed (None: not measured), `family` what runs at other sizes showed of a model that is compiled for
    many. `reference` names what outputs are compared with: which file in which session, at which sizes. Where the
    machine cannot run the original at the largest, `original_default_session_peak_bytes` is None.

    `first_op_out_of_order` is the first op of the plan that did not run in its turn. `learnt` is where runs left the
    prediction, and why; the plan was then made again, in so many `rounds_of_learning`. `first_predicted_peak_bytes` is
    what was predicted before anything was learnt from runs of this model, `room_bytes` what of the budget is left over
    for what could not be put right otherwise.
    """

    outputs_identical: bool
    within_budget: bool
    outputs_close: bool | None = None
    predicted_peak_bytes: int
    measured_peak_bytes: int
    runtime_version: str = ""
    inferences: int | UnsetType = UNSET
    notes: tuple[str, ...] = ()

    notes_on_caps: tuple[str, ...] | UnsetType = UNSET
    order_honoured: bool
    first_op_out_of_order: str | UnsetType | None = UNSET
    first_predicted_peak_bytes: int | UnsetType = UNSET
    learnt: tuple[Learnt, ...] | UnsetType = UNSET
    rounds_of_learning: int | UnsetType = UNSET
    room_bytes: int | UnsetType = UNSET
    budget_bytes: int | UnsetType = UNSET
    is_portable: bool | UnsetType = UNSET
    measured_peak_default_session_bytes: int
    original_default_session_peak_bytes: int | None
    smallest_cap_bytes: int | None = None
    original_smallest_cap_bytes: int | None = None
    capped_run_ok: bool | None = None
    capped_run_bytes: int | None = None
    cap_options: Literal["default", "exact"] | None = None
    later_runs_block_bytes: int | None = None
    measured_workspace_bytes: int | None = None
    predicted_workspace_bytes: int | None = None
    outputs_max_relative_error: float | None = None
    process: ProcessSeen | UnsetType | None = UNSET
    family: FamilySeen | UnsetType = UNSET
    predicted_overhead_percent: float | None = None
    measured_overhead_percent: float | None = None
    time_noise: TimeNoise | UnsetType | None = UNSET
    reference: str | UnsetType = UNSET

    @property
    def checks(self) -> tuple[Check, ...]:
        """What one rewritten model promises."""
        predicted, measured = self.predicted_peak_bytes, self.measured_peak_bytes
        too_far = "" if self.outputs_close is None else " by more than sums in another order explain"
        budget = None if self.budget_bytes is UNSET else self.budget_bytes  # older versions wrote none
        # of a portable model that is bounded in default sessions too those may be what needs more
        is_exact = self.within_budget or (budget is not None and self.bounded_bytes > budget)
        needed = self.bounded_bytes if is_exact else self.most_measured_bytes
        return (
            Check(judged("outputs", True, self.are_outputs_kept), f"the outputs differ from the original's{too_far}"),
            Check(
                judged("order", True, self.order_honoured),
                "the runtime did not run the ops in the plan's order: "
                f"not '{self.first_op_out_of_order or None}' in its turn",
            ),
            Check(
                judged("live", predicted, measured),
                f"the measured peak is {measured} bytes, not the predicted {predicted}",
            ),
            Check(
                MeasuredPromise("default_session", budget, needed, self.within_budget),
                f"a session needs {needed:,} bytes, more than the budget",
            ),
            *(self.family.checks if self.family else ()),
            *(self.process.checks if self.process else ()),
        )

    @property
    def how_checked(self) -> tuple[str, ...]:
        """Those of the notes that are about runs under caps."""
        return self.notes_on_caps or ()

    @property
    def is_peak_exact(self) -> bool:
        """Whether the measured live-tensor peak equals the prediction to the byte."""
        return self.measured_peak_bytes == self.predicted_peak_bytes

    @property
    def is_worse_under_cap(self) -> bool:
        """Whether capped runs were made and did not tell the rewritten model from the original."""
        return self.capped_run_ok is False

    @property
    def is_compared_everywhere(self) -> bool:
        """Whether there was something to compare with at every size that was run."""
        return not self.family or all(run.compared_with is not None for run in self.family.runs)

    @property
    def process_seen(self) -> ProcessSeen | None:
        """What processes that load and run either model were measured to hold, where that was measured."""
        return self.process or None

    @property
    def learning(self) -> Learning:
        """What runs taught before the plan that these figures are of."""
        return Learning(self.learnt or (), self.rounds_of_learning or 0, self.room_bytes or 0)

    @property
    def extra_time_percent(self) -> float | None:
        """Extra time, where it was measured against the original."""
        return self.measured_overhead_percent

    @property
    def noise_told(self) -> str:
        """How far times may be off, where that is worth telling; else empty."""
        return self.time_noise.told if self.time_noise else ""

    @property
    def noise_percent(self) -> float:
        """Within what a difference of measured times decides nothing."""
        return self.time_noise.margin_percent if self.time_noise else 0.0

    @property
    def bounded_bytes(self) -> int:
        """What a budget of live bytes bounds: of a portable model, which default sessions change, exact ones alone."""
        return self.measured_peak_bytes if self.is_portable else self.most_measured_bytes

    @property
    def most_measured_bytes(self) -> int:
        """The larger of what the two sessions need."""
        return max(self.measured_peak_default_session_bytes, self.measured_peak_bytes)


class SessionsSeen(Verification, msgspec.Struct, frozen=True, kw_only=True):
    """What runs of a plan showed that is cut into sessions.

    Outputs are compared with those of the user's file where all sessions are on the CPU, else with those of the
    optimised model in one session on one device, as `reference` says; they must be the same bits where
    `must_be_identical` (one execution provider), else close (`largest_difference`, relative to the largest magnitude in
    its tensor). Peaks are total bytes by memory, of which the fixed bytes are weights and inputs; a provider that hides
    what it holds has None. `within_budget` is about every memory.

    Times are the least over `runs` turns of the plan and of the best plan on one device (`measured_single_time_ns`, by
    device), taken in turns. `rejected_time_ns` is what a plan on several devices took that was given up for this one,
    on one device, because it was not measured to be faster. `misplaced_op` says which op of a shared session the
    runtime put elsewhere than the plan, by its own report.
    """

    outputs_identical: bool
    within_budget: bool
    outputs_close: bool | None = None
    predicted_peak_bytes: dict[str, int]
    measured_peak_bytes: dict[str, int | None]
    runtime_version: str = ""
    inferences: int | UnsetType = UNSET
    notes: tuple[str, ...] = ()

    reference: str
    must_be_identical: bool
    largest_difference: float | None
    predicted_fixed_bytes: dict[str, int]
    measured_fixed_bytes: dict[str, int]
    predicted_time_ns: int
    measured_time_ns: int
    measured_single_time_ns: dict[str, int]
    rejected_time_ns: int | None = None
    runs: int
    misplaced_op: str | UnsetType | None = UNSET

    @property
    def checks(self) -> tuple[Check, ...]:
        """What a plan that is cut into sessions promises."""
        overfull = (
            Check(
                judged(f"memory {name}", bytes_, seen),
                f"memory '{name}' held {seen or 0:,} bytes, not the predicted {bytes_:,}",
            )
            for name, (bytes_, seen) in self.peaks.items()
        )
        misplaced = self.misplaced_op or None
        return (
            Check(judged("placement", True, misplaced is None), f"{misplaced}, as the plan wants it"),
            Check(judged("outputs", True, self.are_outputs_kept), f"the outputs differ from those of {self.reference}"),
            Check(judged("budgets", True, self.within_budget), "a measured peak is above its budget"),
            *overfull,
        )

    @property
    def are_outputs_kept(self) -> bool:
        """Whether the outputs are identical, or need not be and are close."""
        return self.outputs_identical or (self.outputs_close is True and not self.must_be_identical)

    @property
    def peaks(self) -> dict[str, tuple[int, int | None]]:
        """Predicted and measured peak of each memory."""
        return {
            name: (bytes_, self.measured_peak_bytes.get(name)) for name, bytes_ in self.predicted_peak_bytes.items()
        }

    @property
    def is_faster_than_single(self) -> bool:
        """Whether the plan was measured to be faster than the best one on one device, where there is one to compare."""
        return all(self.measured_time_ns < time for time in self.measured_single_time_ns.values())

    @property
    def session_bytes(self) -> dict[str, int]:
        """What sessions hold of weights beyond what was planned, by memory; nothing where it is as planned."""
        more = {name: seen - self.predicted_fixed_bytes[name] for name, seen in self.measured_fixed_bytes.items()}
        return {name: bytes_ for name, bytes_ in more.items() if bytes_ > 0}

    @property
    def unplanned_bytes(self) -> dict[str, int]:
        """What memories held at most beyond what was planned; nothing where it is as planned."""
        more = {name: (seen or 0) - bytes_ for name, (bytes_, seen) in self.peaks.items()}
        return {name: bytes_ for name, bytes_ in more.items() if bytes_ > 0}

    def with_sessions_counted(self, predicted_peak_bytes: dict[str, int]) -> SessionsSeen:
        """The same figures beside a prediction that knows what sessions hold of weights."""
        more = self.session_bytes
        fixed = {name: bytes_ + more.get(name, 0) for name, bytes_ in self.predicted_fixed_bytes.items()}
        return msgspec.structs.replace(self, predicted_peak_bytes=predicted_peak_bytes, predicted_fixed_bytes=fixed)


class PagedSeen(SessionsSeen, frozen=True, kw_only=True):
    """What runs of a plan that pages showed: what its sessions showed, and what paging did."""

    paging: PagingSeen

    @property
    def checks(self) -> tuple[Check, ...]:
        """What its sessions promise, and of the process that runs them that it stays within the budget."""
        held, budget = self.paging.process_bytes, self.paging.budget_bytes
        if not budget:
            return super().checks
        line = f"the process holds {held or 0:,} bytes, more than the budget of {budget:,}"
        return (*super().checks, Check(judged("process", budget, held), line))


KINDS_SEEN = (OneModelSeen, SessionsSeen, PagedSeen)


def read_verification(_: type, values: Any) -> Verification:
    """A verification from what JSON says of it, by the fields that only one kind of plan has."""
    if not isinstance(values, dict):
        raise msgspec.ValidationError("Expected `object` - at `$.verification`")
    kind: type[OneModelSeen | SessionsSeen] = SessionsSeen
    if "order_honoured" in values:
        kind = OneModelSeen
    elif "paging" in values:
        kind = PagedSeen
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = text.replace("`$", "`$.verification", 1) if "`$" in text else f"{text} - at `$.verification`"
        raise msgspec.ValidationError(place) from None
