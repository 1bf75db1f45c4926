"""What a compiled file keeps of its promises here, without its plan: beside the original and what it says of itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from remat_cli.core.values.process_promise import ProcessPromise
from remat_cli.core.values.promises import Check, MeasuredPromise, broken_lines, fits, judged, told_lines, worst
from remat_cli.core.values.resident import ProcessMemory, budget_check, phase_checks


class OrderSeen(msgspec.Struct, frozen=True):
    """Whether ops ran in the order of the file, and the first that did not (None: there is none, or it is not known).

    `missing` are those that did not run at all, as the runtime's optimiser has joined them with others.
    """

    is_kept: bool | None
    first_out_of_order: str | None = None
    missing: tuple[str, ...] = ()


def order_seen(order: Sequence[str], copies: Collection[str], executed: Sequence[str]) -> OrderSeen:
    """Compare what ran with the order of a file.

    An op that repeats another one must run; where others are missing, the rest is in order or not, and if it is, it
    cannot be told whether all is.
    """
    planned = set(order)
    ran = [name for name in executed if name in planned]
    missing = tuple(name for name in order if name not in set(ran))
    left = [name for name in order if name not in set(missing)]
    wrong = next((name for name, other in zip(left, ran, strict=False) if name != other), None)
    wrong = wrong or next((name for name in missing if name in copies), None)
    if wrong is None and len(ran) > len(left):
        wrong = ran[len(left)]
    return OrderSeen(False if wrong is not None else None if missing else True, wrong, missing)


class ProcessPair(msgspec.Struct, frozen=True):
    """Resident memory of processes that load and run the original, and the file."""

    original: ProcessMemory
    rewritten: ProcessMemory


class FileVerification(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one verification of a file; `None` means not checked, which the notes explain, never "fine".

    `predicted_peak_bytes` and `budget_bytes` are what the file says of itself: bytes of live tensors with weights and
    inputs, the prediction with workspace too. `process_promise` is what it says of a process, whose caller holds
    `input_bytes` on top. `measured_peak_bytes` counts live tensors without workspace under the exact
    options, `measured_peak_default_session_bytes` in an ordinary session in its first run, and
    `original_default_session_peak_bytes` that of the original. A `is_portable` file promises nothing in an ordinary
    session, but one that `is_left` to sessions on all processors its budget. `is_other_model`: the original is not byte
    for byte what the file says that it was made from.
    `is_other_processor`: the file was made on another family of processors, whose kernels may keep weights in other
    sizes, so that of its live tensors only the budget is promised. `reference` says which file in which session outputs
    are compared with, `inferences` how many runs of either model it took.
    """

    outputs_identical: bool
    order_honoured: bool | None
    first_op_out_of_order: str | None = None
    predicted_peak_bytes: int | None = None
    budget_bytes: int | None = None
    process_promise: ProcessPromise = ProcessPromise()
    measured_peak_bytes: int | None = None
    measured_peak_default_session_bytes: int | None = None
    original_default_session_peak_bytes: int | None = None
    is_portable: bool = False
    is_left: bool = False
    is_other_model: bool = False
    is_other_processor: bool = False
    reference: str = ""
    process: ProcessPair | None = None
    input_bytes: int = 0
    measured_overhead_percent: float | None = None
    runtime_version: str
    inferences: int
    notes: tuple[str, ...] = ()

    @property
    def checks(self) -> tuple[Check, ...]:
        """All that the file promises, with the verdict on each, and a line for people where it is broken."""
        order = f"the ops do not run in the order of the file: not '{self.first_op_out_of_order}' in its turn"
        outputs = OTHER_MODEL if self.is_other_model else "the outputs differ from the original's"
        found = [
            Check(judged("outputs", True, self.outputs_identical), outputs),
            Check(judged("order", True, self.order_honoured), order),
            _at_most(
                "live",
                self.budget_bytes if self.is_other_processor else self.predicted_peak_bytes,
                self.measured_peak_bytes,
            ),
        ]
        if self.is_left or not self.is_portable:
            found.append(_at_most("default_session", self.budget_bytes, self.measured_peak_default_session_bytes))
        # A budget on the process is a promise even where nothing was measured; predictions are none then.
        told = self.process_promise
        if told.budget_bytes is not None:
            found.append(budget_check(told.budget_bytes, self.needed_bytes))
        if self.process is not None and told.predicted is not None and not self.is_portable:
            found += phase_checks(told.predicted, self.process.rewritten)
        return tuple(found)

    @property
    def promises(self) -> tuple[MeasuredPromise, ...]:
        """All that the file promises, with the verdict on each."""
        return tuple(check.promise for check in self.checks)

    @property
    def is_broken(self) -> bool:
        """Whether outputs or order are not as promised."""
        return worst(self.promises) == "broken"

    @property
    def passed(self) -> bool:
        """Whether everything that was checked holds, but for predictions of what nobody asked to be kept."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """One line per broken promise of bits, order, or memory that was asked for."""
        return broken_lines(self.checks)

    @property
    def warned(self) -> tuple[str, ...]:
        """One line per prediction of a process that was not kept."""
        return told_lines(self.checks)

    @property
    def needed_bytes(self) -> int | None:
        """What the file's process was measured to need of a budget on it; None: not measured, or none was promised."""
        return None if self.process is None or self.is_portable else self._counted(self.process.rewritten)

    @property
    def original_needed_bytes(self) -> int | None:
        """What the original's process was measured to need, counted alike; None: not measured."""
        return None if self.process is None else self._counted(self.process.original)

    @property
    def predicted_needed_bytes(self) -> int | None:
        """What the file says that its process needs, counted alike; None: it says nothing."""
        return None if self.process_promise.predicted is None else self._counted(self.process_promise.predicted)

    def _counted(self, memory: ProcessMemory) -> int:
        return memory.counted_bytes(with_mapped=self.process_promise.with_mapped) + self.input_bytes


OTHER_MODEL = (
    "the original is another model than the file was made from: neither its bytes nor its outputs are the same; give "
    "the one that it was made from"
)
NAMES = {"live": "live tensors", "default_session": "an ordinary session with live tensors"}


def _at_most(measure: str, promised: int | None, measured: int | None) -> Check:
    """What a file says of itself counts workspace too, which the counters leave out: so it is not met to the byte."""
    kept = None if promised is None or measured is None else fits(measured, promised)
    line = f"{NAMES[measure]} of {measured or 0:,} bytes, more than {promised or 0:,}"
    return Check(MeasuredPromise(measure, promised, measured, kept), line)
