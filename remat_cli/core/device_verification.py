"""What running a plan that spans devices showed, beside what it promised."""

from __future__ import annotations

import msgspec


class DeviceVerification(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one verification; None means not measured, never "fine".

    Outputs are compared with those of the optimised model in one session on `reference`; they must be the same bits
    where `must_be_identical` (one execution provider), else close: `largest_difference` is relative to the largest
    magnitude in its tensor. Peaks are total bytes by memory, of which the fixed bytes are weights and inputs; a
    provider that hides what it holds has None. Times are the least over `runs` turns of the plan and of the best plan
    on one device (`measured_single_time_ns`, by device), taken in turns. `rejected_time_ns` is what a plan on several
    devices took that was given up for this one, on one device, because it was not measured to be faster.
    """

    reference: str
    outputs_identical: bool
    must_be_identical: bool
    outputs_close: bool
    largest_difference: float | None
    predicted_peak_bytes: dict[str, int]
    measured_peak_bytes: dict[str, int | None]
    predicted_fixed_bytes: dict[str, int] = {}
    measured_fixed_bytes: dict[str, int] = {}
    predicted_time_ns: int
    measured_time_ns: int
    measured_single_time_ns: dict[str, int] = {}
    rejected_time_ns: int | None = None
    within_budget: bool
    runs: int = 0
    runtime_version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """One line per broken promise; empty when the plan holds all of them."""
        are_kept = self.outputs_identical or (self.outputs_close and not self.must_be_identical)
        checks = (
            (are_kept, f"the outputs differ from those of {self.reference}"),
            (self.within_budget, "a measured peak is above its budget"),
        )
        return (*(line for is_kept, line in checks if not is_kept), *self._overfull())

    def _overfull(self) -> tuple[str, ...]:
        """One line per memory that held more than predicted."""
        return tuple(
            f"memory '{name}' held {seen:,} bytes, not the predicted {self.predicted_peak_bytes[name]:,}"
            for name, seen in self.measured_peak_bytes.items()
            if seen is not None and seen > self.predicted_peak_bytes[name]
        )

    @property
    def is_faster_than_single(self) -> bool:
        """Whether the plan was measured to be faster than the best one on one device, where there is one to compare."""
        return all(self.measured_time_ns < time for time in self.measured_single_time_ns.values())

    @property
    def session_bytes(self) -> dict[str, int]:
        """What sessions hold of weights beyond what was planned, by memory; nothing where it is as planned."""
        more = {name: seen - self.predicted_fixed_bytes[name] for name, seen in self.measured_fixed_bytes.items()}
        return {name: bytes_ for name, bytes_ in more.items() if bytes_ > 0}

    def with_sessions_counted(self, predicted_peak_bytes: dict[str, int]) -> DeviceVerification:
        """The same figures beside a prediction that knows what sessions hold of weights."""
        more = self.session_bytes
        fixed = {name: bytes_ + more.get(name, 0) for name, bytes_ in self.predicted_fixed_bytes.items()}
        return msgspec.structs.replace(self, predicted_peak_bytes=predicted_peak_bytes, predicted_fixed_bytes=fixed)

    @property
    def passed(self) -> bool:
        """Whether every promise holds."""
        return not self.failures
