"""What running the original and the rewritten model showed, beside what the plan promised."""

from __future__ import annotations

from typing import Literal

import msgspec


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one verification; `None` means not measured, never "fine".

    `predicted_peak_bytes` and `measured_peak_bytes` count live tensors under the exact options, so that they can be
    compared to the byte. The two default-session peaks come from one counter, first run, default options.
    `later_runs_block_bytes` is the block that later runs of a default session allocate. A cap is a limit on the
    runtime's arena in bytes; the smallest is the least under which three runs in a fresh process succeed, with the
    session options that `cap_options` names. Where outputs need not be identical and are not, `outputs_close` says
    whether they are within the tolerance for sums in another order, and `outputs_max_relative_error` is the largest
    difference relative to the largest magnitude in its tensor.
    `within_budget` says whether the default session's first run stays within the budget, fixed part included.
    `notes` are lines for people: what was not checked and why, slack between live bytes and the smallest cap.
    """

    outputs_identical: bool
    order_honoured: bool
    predicted_peak_bytes: int
    measured_peak_bytes: int
    measured_peak_default_session_bytes: int
    original_default_session_peak_bytes: int
    runtime_version: str
    within_budget: bool
    smallest_cap_bytes: int | None = None
    original_smallest_cap_bytes: int | None = None
    capped_run_ok: bool | None = None
    cap_options: Literal["default", "exact"] | None = None
    later_runs_block_bytes: int | None = None
    measured_workspace_bytes: int | None = None
    predicted_workspace_bytes: int | None = None
    outputs_close: bool | None = None
    outputs_max_relative_error: float | None = None
    predicted_overhead_percent: float | None = None
    measured_overhead_percent: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_peak_exact(self) -> bool:
        """Whether the measured live-tensor peak equals the prediction to the byte."""
        return self.measured_peak_bytes == self.predicted_peak_bytes

    @property
    def is_workspace_close(self) -> bool:
        """Whether an independent counter found at most 5 % more workspace than predicted.

        True when not measured. Less than predicted breaks no promise: the plan then reserves more than it needs.
        """
        if self.measured_workspace_bytes is None or self.predicted_workspace_bytes is None:
            return True
        return self.measured_workspace_bytes * 100 <= self.predicted_workspace_bytes * 105

    @property
    def failures(self) -> tuple[str, ...]:
        """One line per broken promise; empty when the model holds all of them."""
        checks = (
            (self.are_outputs_kept, f"the outputs differ from the original's{self._too_far}"),
            (self.order_honoured, "the runtime did not run the ops in the plan's order"),
            (
                self.is_peak_exact,
                f"the measured peak is {self.measured_peak_bytes} bytes, not the predicted {self.predicted_peak_bytes}",
            ),
            (self.within_budget, "a default session's peak is above the budget"),
            (self.capped_run_ok is not False, "no cap was found under which this model runs and the original fails"),
            (self.is_workspace_close, "the measured workspace is more than 5 % above the predicted one"),
        )
        return tuple(line for is_kept, line in checks if not is_kept)

    @property
    def are_outputs_kept(self) -> bool:
        """Whether the outputs are identical, or need not be and are close."""
        return self.outputs_identical or self.outputs_close is True

    @property
    def _too_far(self) -> str:
        return "" if self.outputs_close is None else " by more than sums in another order explain"

    @property
    def lacks_only_cap(self) -> bool:
        """Whether all promises hold but that of the capped runs."""
        return len(self.failures) == 1 and self.capped_run_ok is False

    @property
    def lacks_only_room(self) -> bool:
        """Whether all promises hold but that a default session stays within the budget too."""
        return len(self.failures) == 1 and not self.within_budget

    @property
    def passed(self) -> bool:
        """Whether every promise that was checked holds."""
        return not self.failures
