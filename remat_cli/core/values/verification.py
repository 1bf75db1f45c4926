"""What running a plan showed, beside what it promised: one type for one session and for sessions on several devices."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

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


LEFT_OUT: Final[Any] = msgspec.UNSET
"""Default of a field that may not apply: JSON leaves it out, and only code that knows that it applies reads it."""


def applies(value: object) -> bool:
    """Whether a field that may be left out was given."""
    return value is not LEFT_OUT


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one verification; `None` means not measured, never "fine". What does not apply is left out.

    Of a plan that runs as one model (`runs_in_one_session`): `predicted_peak_bytes` and `measured_peak_bytes` count
    live tensors under the exact options, so that they can be compared to the byte. The two default-session peaks come
    from one counter, first run, default options. `later_runs_block_bytes` is the block that later runs of a default
    session allocate (0: none). A cap is a limit on the runtime's arena in bytes; the smallest is the least under which
    three runs in a fresh process succeed, with the session options that `cap_options` names. Where outputs need not be
    identical and are not, `outputs_close` says whether they are within the tolerance for sums in another order, and
    `outputs_max_relative_error` is the largest difference relative to the largest magnitude in its tensor.

    `time_noise` says how far times may be off (None: nothing was timed).

    `process` is what resident memory of fresh processes showed (None: not measured), `family` what runs at other sizes
    showed of a model that is compiled for many.

    `first_op_out_of_order` is the first op of the plan that did not run in its turn. `learnt` is where runs left the
    prediction, and why; the plan was then made again, in so many `rounds_of_learning`. `first_predicted_peak_bytes` is
    what was predicted before anything was learnt from runs of this model, `room_bytes` what of the budget is left over
    for what could not be put right otherwise.

    Of a plan that is cut into sessions: outputs are compared with those of the user's file where all sessions are
    on the CPU, else with those of the optimised model in one session on one device; they must be the same bits
    where `must_be_identical` (one execution provider), else close (`largest_difference`, relative as above). Peaks
    are total bytes by memory, of which the fixed bytes are weights and inputs; a provider that hides what it holds
    has None. Times are the least over `runs` turns of the plan and of the best plan on one device
    (`measured_single_time_ns`, by device), taken in turns. `rejected_time_ns` is what a plan on several devices
    took that was given up for this one, on one device, because it was not measured to be faster.
    `misplaced_op` says which op of a shared session the runtime put elsewhere than the plan, by its own report.
    `paging` is about plans that page.

    `reference` names what outputs are compared with: which file in which session, at which sizes.

    `inferences` is how many runs of either model verification took, failed ones included.
    `within_budget` is about a default session's first run, or every memory; `budget_bytes` is the budget of live bytes
    of one session, which a portable model keeps under exact options only. `notes` are lines for people: what was not
    checked and why, slack between live bytes and the smallest cap.
    """

    outputs_identical: bool
    within_budget: bool
    outputs_close: bool | None = None
    predicted_peak_bytes: int | dict[str, int]
    measured_peak_bytes: int | dict[str, int | None]
    runtime_version: str = ""
    inferences: int = LEFT_OUT
    notes: tuple[str, ...] = ()

    order_honoured: bool = LEFT_OUT
    first_op_out_of_order: str | None = LEFT_OUT
    first_predicted_peak_bytes: int = LEFT_OUT
    learnt: tuple[Learnt, ...] = LEFT_OUT
    rounds_of_learning: int = LEFT_OUT
    room_bytes: int = LEFT_OUT
    budget_bytes: int = LEFT_OUT
    is_portable: bool = LEFT_OUT
    measured_peak_default_session_bytes: int = LEFT_OUT
    original_default_session_peak_bytes: int = LEFT_OUT
    smallest_cap_bytes: int | None = LEFT_OUT
    original_smallest_cap_bytes: int | None = LEFT_OUT
    capped_run_ok: bool | None = LEFT_OUT
    capped_run_bytes: int | None = LEFT_OUT
    cap_options: Literal["default", "exact"] | None = LEFT_OUT
    later_runs_block_bytes: int | None = LEFT_OUT
    measured_workspace_bytes: int | None = LEFT_OUT
    predicted_workspace_bytes: int | None = LEFT_OUT
    outputs_max_relative_error: float | None = LEFT_OUT
    process: ProcessSeen | None = LEFT_OUT
    family: FamilySeen = LEFT_OUT
    predicted_overhead_percent: float | None = LEFT_OUT
    measured_overhead_percent: float | None = LEFT_OUT
    time_noise: TimeNoise | None = LEFT_OUT

    reference: str = LEFT_OUT
    must_be_identical: bool = LEFT_OUT
    largest_difference: float | None = LEFT_OUT
    predicted_fixed_bytes: dict[str, int] = LEFT_OUT
    measured_fixed_bytes: dict[str, int] = LEFT_OUT
    predicted_time_ns: int = LEFT_OUT
    measured_time_ns: int = LEFT_OUT
    measured_single_time_ns: dict[str, int] = LEFT_OUT
    rejected_time_ns: int | None = LEFT_OUT
    runs: int = LEFT_OUT
    misplaced_op: str | None = LEFT_OUT
    paging: PagingSeen = LEFT_OUT

    @property
    def runs_in_one_session(self) -> bool:
        """Whether the plan is one model in one session, not cut into several."""
        return applies(self.order_honoured)

    @property
    def peaks(self) -> dict[str, tuple[int, int | None]]:
        """Predicted and measured peak of each memory; of one session's only memory under the empty name."""
        predicted, measured = self.predicted_peak_bytes, self.measured_peak_bytes
        if isinstance(predicted, int) or isinstance(measured, int):
            assert isinstance(predicted, int)
            assert isinstance(measured, int)
            return {"": (predicted, measured)}
        return {name: (bytes_, measured.get(name)) for name, bytes_ in predicted.items()}

    @property
    def checks(self) -> tuple[Check, ...]:
        """All that is promised, with the verdict on each, and a line for people where it is broken."""
        return self._session_checks() if self.runs_in_one_session else self._placement_checks()

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
    def are_outputs_kept(self) -> bool:
        """Whether the outputs are identical, or need not be and are close."""
        must_be_identical = applies(self.must_be_identical) and self.must_be_identical
        return self.outputs_identical or (self.outputs_close is True and not must_be_identical)

    @property
    def is_peak_exact(self) -> bool:
        """Whether the measured live-tensor peak equals the prediction to the byte."""
        return self.measured_peak_bytes == self.predicted_peak_bytes

    @property
    def is_worse_under_cap(self) -> bool:
        """Whether capped runs were made and did not tell the rewritten model from the original."""
        return self.runs_in_one_session and self.capped_run_ok is False

    @property
    def is_broken(self) -> bool:
        """Whether outputs differ or the order was not kept, which no other plan of the same kind would mend."""
        return worst(self.promises) == "broken"

    @property
    def noise_told(self) -> str:
        """How far times may be off, where that is worth telling; else empty."""
        noise = self.time_noise if applies(self.time_noise) else None
        return "" if noise is None else noise.told

    @property
    def noise_percent(self) -> float:
        """Within what a difference of measured times decides nothing."""
        noise = self.time_noise if applies(self.time_noise) else None
        return 0.0 if noise is None else noise.margin_percent

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

    def with_sessions_counted(self, predicted_peak_bytes: dict[str, int]) -> Verification:
        """The same figures beside a prediction that knows what sessions hold of weights."""
        more = self.session_bytes
        fixed = {name: bytes_ + more.get(name, 0) for name, bytes_ in self.predicted_fixed_bytes.items()}
        return msgspec.structs.replace(self, predicted_peak_bytes=predicted_peak_bytes, predicted_fixed_bytes=fixed)

    def _session_checks(self) -> tuple[Check, ...]:
        """What one rewritten model promises."""
        predicted, measured = self.predicted_peak_bytes, self.measured_peak_bytes
        assert isinstance(predicted, int)
        assert isinstance(measured, int)
        too_far = "" if self.outputs_close is None else " by more than sums in another order explain"
        return (
            Check(judged("outputs", True, self.are_outputs_kept), f"the outputs differ from the original's{too_far}"),
            Check(
                judged("order", True, self.order_honoured),
                f"the runtime did not run the ops in the plan's order: not '{self.first_op_out_of_order}' in its turn",
            ),
            Check(
                judged("live", predicted, measured),
                f"the measured peak is {measured} bytes, not the predicted {predicted}",
            ),
            self._default_session_check(),
            *(self.family.checks if applies(self.family) else ()),
            *(self.process.checks if applies(self.process) and self.process is not None else ()),
        )

    def _default_session_check(self) -> Check:
        """The budget of live bytes, which a session keeps; without figures where an older version wrote none."""
        budget = self.budget_bytes if applies(self.budget_bytes) else None
        found = MeasuredPromise("default_session", budget, self.bounded_bytes, self.within_budget)
        return Check(found, f"a session needs {self.bounded_bytes:,} bytes, more than the budget")

    @property
    def bounded_bytes(self) -> int:
        """What a budget of live bytes bounds: of a portable model, which default sessions change, exact ones alone."""
        exact = self.measured_peak_bytes
        is_portable = applies(self.is_portable) and self.is_portable
        return exact if is_portable and isinstance(exact, int) else self.most_measured_bytes

    @property
    def most_measured_bytes(self) -> int:
        """The larger of what the two sessions need, where both are measured."""
        exact = self.measured_peak_bytes
        return max(self.measured_peak_default_session_bytes, exact if isinstance(exact, int) else 0)

    def _placement_checks(self) -> tuple[Check, ...]:
        """What a plan that is cut into sessions promises."""
        overfull = (
            Check(
                judged(f"memory {name}", bytes_, seen),
                f"memory '{name}' held {seen or 0:,} bytes, not the predicted {bytes_:,}",
            )
            for name, (bytes_, seen) in self.peaks.items()
        )
        misplaced = self.misplaced_op if applies(self.misplaced_op) else None
        return (
            Check(judged("placement", True, misplaced is None), f"{misplaced}, as the plan wants it"),
            Check(judged("outputs", True, self.are_outputs_kept), f"the outputs differ from those of {self.reference}"),
            Check(judged("budgets", True, self.within_budget), "a measured peak is above its budget"),
            *overfull,
            *self._paging_checks(),
        )

    def _paging_checks(self) -> tuple[Check, ...]:
        """What a plan that pages promises of the process that runs it."""
        if not applies(self.paging) or not self.paging.budget_bytes:
            return ()
        held, budget = self.paging.process_bytes, self.paging.budget_bytes
        line = f"the process holds {held or 0:,} bytes, more than the budget of {budget:,}"
        return (Check(judged("process", budget, held), line),)
