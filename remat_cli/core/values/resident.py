"""What a process holds for a session: predicted or measured, while it loads, in its first run, and later."""

from __future__ import annotations

from typing import Literal

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.values.promises import PHASES, Check, judged


class SessionMemory(msgspec.Struct, frozen=True):
    """What one kind of session holds in each step of a plan, by prediction.

    `held_bytes` are the most during the step, weights, inputs and workspace included, `live_bytes` activations when it
    ends; `reused_bytes` of what it makes goes into buffers that were kept for it.
    """

    held_bytes: tuple[int, ...]
    live_bytes: tuple[int, ...]
    reused_bytes: tuple[int, ...]
    fixed_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most of all; what is fixed where nothing is computed."""
        return max(self.held_bytes, default=self.fixed_bytes)


class RunsForecast(msgspec.Struct, frozen=True):
    """What a session's tensors take of the process's memory, by simulation, with the options that were asked for.

    `first_run_bytes` is the most after one run, `later_runs_bytes` after any number of runs, whether the caller drops
    the outputs of a run before the next one or holds them until it has ended. `block_bytes` is the block that later
    runs take for all tensors together (0: none), `reserved_bytes` what the arena took of the system, touched or not.
    Without an arena both are the most during runs in some heaps, and `reserved_bytes` is by how much these grew.
    `ballast_bytes` are those of the steady form (None: not in that form).
    """

    first_run_bytes: int
    later_runs_bytes: int
    block_bytes: int
    reserved_bytes: int
    ballast_bytes: tuple[int, ...] | None = None

    @property
    def most_bytes(self) -> int:
        """The most over all runs."""
        return max(self.first_run_bytes, self.later_runs_bytes)


class ProcessMemory(msgspec.Struct, frozen=True):
    """By how much a process's resident memory rises above that of an open, empty session, with default options.

    `load_peak_bytes` while the model is loaded, `loaded_bytes` afterwards; `first_run_bytes` and `later_runs_bytes` are
    the most in the first run and in any later one, outputs of the run before still held, weights included.
    `mapped_bytes` is what of these are pages of a file: shared between processes, and dropped when memory is short;
    `anonymous_bytes` is the most, at any time, that is not.
    """

    load_peak_bytes: int
    loaded_bytes: int
    first_run_bytes: int
    later_runs_bytes: int
    mapped_bytes: int
    anonymous_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most of all."""
        return max(self.load_peak_bytes, self.first_run_bytes, self.later_runs_bytes)

    def of_phase(self, phase: str) -> int:
        """The most in one of the phases."""
        return {
            "loading": self.load_peak_bytes,
            "loaded": self.loaded_bytes,
            "first_run": self.first_run_bytes,
            "later_runs": self.later_runs_bytes,
        }[phase]

    def counted_bytes(self, *, with_mapped: bool) -> int:
        """The most that counts against a limit."""
        return self.peak_bytes if with_mapped else self.anonymous_bytes


class ProcessTrace(msgspec.Struct, frozen=True):
    """Resident bytes above the baseline over time, seconds since loading began; `marks` are the ends of the phases.

    The phases are loading and each run.
    """

    seconds: tuple[float, ...]
    resident_bytes: tuple[int, ...]
    marks: tuple[float, ...]


class WeightFiles(msgspec.Struct, frozen=True):
    """Where weights go: into a file beside the model (None: where they are many), with `packed` copies of them."""

    external: bool | None = None
    packed: bool = True


LimitKind = Literal["cgroup v2", "cgroup v1", "RLIMIT_DATA"]
"""Hard limits of the operating system; the last one counts what was reserved, touched or not."""


class LimitedRuns(msgspec.Struct, frozen=True):
    """One limit of the operating system under which both models were loaded and run in processes of their own.

    `ours` and `original` say whether the rewritten and the original model got to the end of `runs` runs, `ended` how
    the original ended, in one line.
    """

    kind: LimitKind
    limit_bytes: int
    runs: int
    ours: bool
    original: bool
    ended: str = ""


class ProcessSeen(msgspec.Struct, frozen=True):
    """Resident memory of processes that load and run each model, measured, beside what was predicted of the new one.

    `input_bytes` are the caller's, on top of it. `budget_bytes` is a budget on the process (None: on what is live);
    mapped pages count against it `with_mapped`. `original` is None where the machine cannot run that. `limited` is a
    pair of runs under a hard limit, where one was made.
    `traces` are those of both, the original's first, where a picture is to be drawn of them.
    """

    original: ProcessMemory | None
    rewritten: ProcessMemory
    predicted: ProcessMemory
    input_bytes: int
    budget_bytes: int | None = None
    with_mapped: bool = False
    limited: LimitedRuns | None = None
    traces: tuple[ProcessTrace, ...] = ()

    @property
    def needed_bytes(self) -> int:
        """What the new model's process was measured to need, inputs included."""
        return self.rewritten.counted_bytes(with_mapped=self.with_mapped) + self.input_bytes

    @property
    def checks(self) -> tuple[Check, ...]:
        """What a budget on the process promises, if there is one, and what was predicted of each phase."""
        budget = () if self.budget_bytes is None else (budget_check(self.budget_bytes, self.needed_bytes),)
        return (*budget, *phase_checks(self.predicted, self.rewritten))

    @property
    def is_as_predicted(self) -> bool:
        """Whether in no phase the process held more than was predicted of it."""
        return all(check.promise.kept for check in phase_checks(self.predicted, self.rewritten))


def budget_check(budget_bytes: int, needed_bytes: int | None) -> Check:
    """What a budget on a process promises of what the process was measured to need (None: not measured)."""
    line = f"the process holds {needed_bytes or 0:,} bytes, more than the budget of {budget_bytes:,}"
    return Check(judged("process", budget_bytes, needed_bytes), line)


def phase_checks(predicted: ProcessMemory, seen: ProcessMemory) -> tuple[Check, ...]:
    """What was predicted of each phase of a process, beside what was measured."""
    checks = []
    for phase in PHASES:
        promised, measured = predicted.of_phase(phase), seen.of_phase(phase)
        line = f"{PHASE_WORDS[phase]} held {format_bytes(max(0, measured))}, promised {format_bytes(promised)}"
        checks.append(Check(judged(phase, promised, measured), line))
    return tuple(checks)


PHASE_WORDS = {
    "loading": "the process, while loading,",
    "loaded": "the process, once loaded,",
    "first_run": "the first run",
    "later_runs": "later runs",
}
"""How a phase is named in a sentence."""
