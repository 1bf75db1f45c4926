"""Finds arenas under which one model runs and another fails: proof that needs no counter, only success and failure."""

import time
from pathlib import Path
from typing import Final

import msgspec

from remat_cli.base.errors import RematError, RuntimeFailure
from remat_cli.base.processes import forked
from remat_cli.runtime.sessions._ort import (
    Advance,
    Doing,
    PackedArray,
    ignore_progress,
    import_ort,
    run_session,
    runtime_errors,
    share_arena,
    started,
    unpack_all,
)
from remat_cli.runtime.sessions.error_text import OUT_OF_MEMORY
from remat_cli.runtime.sessions.session import SessionSettings, open_session, session_options, wait_without_spinning

RUNS: Final = 3
GROWTH: Final = (1.0, 1.1, 1.25, 1.6, 2.1, 3.0, 5.0)
"""Caps that are tried first, as multiples of the live bytes: fragmentation rarely needs more than a quarter."""


class Trial(msgspec.Struct, frozen=True):
    """One model under one cap, run so many times."""

    model: str
    feeds: tuple[PackedArray, ...]
    settings: SessionSettings
    cap_bytes: int
    runs: int = RUNS


class CapJob(msgspec.Struct, frozen=True):
    """A search for the smallest cap.

    `fixed_bytes` is what the session holds in its arena before the first op, `live_bytes` the most that the ops hold
    beyond: less than their sum cannot suffice. The answer is exact to `tolerance_bytes`.
    """

    model: str
    feeds: tuple[PackedArray, ...]
    settings: SessionSettings
    fixed_bytes: int
    live_bytes: int
    tolerance_bytes: int

    def trial(self, cap_bytes: int, runs: int = RUNS) -> Trial:
        """The trial of one cap."""
        return Trial(self.model, self.feeds, self.settings, cap_bytes, runs)


class CapAnswer(msgspec.Struct, frozen=True):
    """The smallest cap that was found to suffice, and the largest that was found not to (None: none found).

    `trials` counts the caps that were tried, `runs` the runs that this took, failed ones included.
    """

    smallest_bytes: int | None
    failed_bytes: int | None
    trials: int
    runs: int = 0


class SeparationJob(msgspec.Struct, frozen=True):
    """A search on the rewritten model, and the original that must fail under what it finds."""

    rewritten: CapJob
    original: CapJob


class Separation(msgspec.Struct, frozen=True):
    """The rewritten model's smallest cap, and whether the original fails under it."""

    answer: CapAnswer
    original_fails: bool


ABOVE_NEED: Final = 1.06
"""Where neither runs under what the original needs at least, gaps between tensors make both need more."""


class ApartJob(msgspec.Struct, frozen=True):
    """A search for one cap under which the rewritten model runs and the original fails, without smallest caps.

    The needs are what each has in use at least. The search ends after `most_runs`, and goes on only while another
    trial ends within `least_seconds`.
    """

    rewritten: CapJob
    original: CapJob
    rewritten_need_bytes: int
    original_need_bytes: int
    most_runs: int
    least_seconds: float = 0.5


class ApartAnswer(msgspec.Struct, frozen=True):
    """The cap that tells two models apart; None: none was found, or, with `is_settled`, none lies between the needs."""

    cap_bytes: int | None
    is_settled: bool
    runs: int


def find_apart(job: ApartJob, advance: Advance = ignore_progress) -> ApartAnswer:
    """Try caps until the rewritten model runs under one and the original fails under the same, each with one run.

    The first cap lies two thirds of the way from one need to the other, which leaves room for gaps between tensors; the
    next one just below the original's, under which that cannot run. Of 104 plans in `bench/results` the first tells 93
    apart, both together 102.
    """
    bracket, runs, begin = CapBracket(job), 0, time.monotonic()
    while not bracket.is_closed:
        elapsed = time.monotonic() - begin
        if runs and runs + 2 > job.most_runs and elapsed * (runs + 2) > job.least_seconds * runs:
            return ApartAnswer(None, False, runs)
        cap_bytes = bracket.next_bytes
        runs += 1
        advance(runs, job.most_runs)
        if not runs_under(job.rewritten.trial(cap_bytes, 1)):
            bracket.failed(cap_bytes)
            continue
        runs += 1
        advance(runs, job.most_runs)
        if not runs_under(job.original.trial(cap_bytes, 1)):
            return ApartAnswer(cap_bytes, False, runs)
        bracket.sufficed(cap_bytes)
    return ApartAnswer(None, True, runs)


class CapBracket:
    """Which cap to try next: above those under which the rewritten model failed, below what suffices the original."""

    def __init__(self, job: ApartJob) -> None:
        self._low = job.rewritten_need_bytes
        self._high: int | None = None
        self._below = job.original_need_bytes - 1
        self._tolerance = job.rewritten.tolerance_bytes
        self.next_bytes = self._low + 2 * max(0, self._below - self._low) // 3

    @property
    def is_closed(self) -> bool:
        """Whether what is left between the two is too small to look at."""
        return self._high is not None and self._high - self._low <= self._tolerance

    def failed(self, cap_bytes: int) -> None:
        """The rewritten model does not run under this one."""
        self._low = cap_bytes
        if self._high is not None:
            self.next_bytes = (self._low + self._high) // 2
        else:
            self.next_bytes = self._below if cap_bytes < self._below else int(cap_bytes * ABOVE_NEED)

    def sufficed(self, cap_bytes: int) -> None:
        """Both run under this one."""
        self._high = cap_bytes
        self.next_bytes = (self._low + cap_bytes) // 2


def separate(job: SeparationJob, advance: Advance) -> Separation:
    """Find the rewritten model's smallest cap, then try the original under it: the control that must fail."""
    answer = find_smallest_cap(job.rewritten, advance)
    cap_bytes = answer.smallest_bytes
    fails = cap_bytes is not None and not runs_under(job.original.trial(cap_bytes))
    return Separation(answer, fails)


def find_smallest_cap(job: CapJob, advance: Advance) -> CapAnswer:
    """Find the smallest cap under which three runs succeed, each cap in a process of its own, by bisection.

    Caps start at fixed + live bytes and grow until one suffices; a cap below the packed weights is not enforced by
    the runtime, and one that suffices although the live bytes do not fit shows that caps are not enforced at all.
    The search looks at the first run, which nearly always decides; only its answer is tried with three, and the
    search repeated with three if that fails.
    """
    answer = _search(job, 1, advance)
    if answer.smallest_bytes is None:
        return answer
    is_confirmed = runs_under(job.trial(answer.smallest_bytes))
    answer = msgspec.structs.replace(answer, runs=answer.runs + RUNS)
    if is_confirmed:
        return answer
    again = _search(job, RUNS, advance)
    return msgspec.structs.replace(again, runs=answer.runs + again.runs)


def _search(job: CapJob, runs: int, advance: Advance) -> CapAnswer:
    """Bisection between a cap that suffices and one that does not."""
    trials: list[int] = []

    def suffices(cap_bytes: int) -> bool:
        trials.append(cap_bytes)
        advance(len(trials), len(trials) + 1)
        return runs_under(job.trial(cap_bytes, runs))

    failed = None
    for factor in GROWTH:
        smallest = job.fixed_bytes + int(job.live_bytes * factor)
        if suffices(smallest):
            break
        failed = smallest
    else:
        return CapAnswer(None, failed, len(trials), runs * len(trials))
    if failed is None:  # the control must fail
        failed = job.fixed_bytes + job.live_bytes - job.tolerance_bytes
        if failed <= job.fixed_bytes or suffices(failed):
            return CapAnswer(None, None, len(trials), runs * len(trials))
    while smallest - failed > job.tolerance_bytes:
        middle = (smallest + failed) // 2
        if suffices(middle):
            smallest = middle
        else:
            failed = middle
    return CapAnswer(smallest, failed, len(trials), runs * len(trials))


def runs_under(trial: Trial) -> bool:
    """Whether a model runs under a cap as often as asked, tried in a process of its own.

    A search takes dozens of them. Where the system can fork, each starts with the runtime loaded already, but without
    any session: 0.03 s instead of 0.5 s.

    Raises:
        RuntimeFailure: it failed for another reason than memory.
    """
    import_ort()
    try:
        with started(try_cap, trial, forked, trial.settings.run_seconds) as worker:
            return worker.answer()
    except RematError as error:
        raise RuntimeFailure("a capped run of ", Path(trial.model).name, f" crashed: {error}") from None


def try_cap(job: Trial, advance: Advance) -> bool:
    """Whether the model runs under the cap as often as asked; the process is spoilt for other sessions afterwards.

    Raises:
        RuntimeFailure: it failed for another reason than memory.
    """
    path = Path(job.model)
    feeds = unpack_all(job.feeds)
    options = session_options(job.settings)
    wait_without_spinning(options)
    share_arena(options, job.cap_bytes)
    try:
        session = open_session(path, job.settings, options)
        with runtime_errors(Doing("", path.name, f" under a cap of {job.cap_bytes} bytes")):
            for _ in range(job.runs):
                run_session(session, feeds)
    except RuntimeFailure as error:
        text = str(error.__cause__)
        is_out_of_memory = any(sign in text for sign in OUT_OF_MEMORY)
        if not is_out_of_memory:
            raise
        return False  # the answer to the question
    return True
