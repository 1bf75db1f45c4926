"""Runs models under caps for a verification: one cap that tells two models apart, or the smallest caps of both."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from remat_cli.base.units import format_bytes
from remat_cli.runtime.observe.caps import (
    RUNS,
    ApartJob,
    CapAnswer,
    CapJob,
    SeparationJob,
    find_apart,
    find_smallest_cap,
    separate,
)
from remat_cli.runtime.sessions._ort import Advance, PackedArray, started
from remat_cli.runtime.sessions.session import SessionSettings

SMALLEST_TOLERANCE_BYTES = 64 * 1024
TOLERANCE_SHARE = 32
Options: TypeAlias = Literal["default", "exact"]


@dataclass(frozen=True)
class ModelNeed:
    """A model to be run under caps; `need_bytes` is the least arena in which it may run, workspace included."""

    model: str
    feeds: tuple[PackedArray, ...]
    settings: SessionSettings
    fixed_bytes: int
    live_bytes: int
    need_bytes: int

    @property
    def job(self) -> CapJob:
        """The search for its smallest cap."""
        tolerance = max(SMALLEST_TOLERANCE_BYTES, self.live_bytes // TOLERANCE_SHARE)
        return CapJob(self.model, self.feeds, self.settings, self.fixed_bytes, self.live_bytes, tolerance)


@dataclass(frozen=True)
class CappedRuns:
    """What capped runs showed. `are_apart`: the rewritten model runs where the original fails; None: not known.

    `apart_bytes` is a cap that shows it, `runs` how many runs all of it took.
    """

    are_apart: bool | None = None
    apart_bytes: int | None = None
    smallest_bytes: int | None = None
    original_smallest_bytes: int | None = None
    options: Options | None = None
    runs: int = 0
    notes: tuple[str, ...] = ()


def capped_runs(
    needs: Mapping[bool, tuple[ModelNeed, ModelNeed]],
    original_cap_bytes: int | None,
    is_thorough: bool,
    most_runs: int,
    advance: Advance,
) -> CappedRuns:
    """The rewritten model and the original, by kind of session (True: exact), until one kind tells them apart.

    `original_cap_bytes` is the original's smallest cap in a default session, where it is known. Where no kind tells
    them apart, the answer is the first one's; that there is no such cap is known only if every search came to its end.
    """
    found: list[CappedRuns] = []
    for is_exact, (rewritten, original) in needs.items():
        known = None if is_exact else original_cap_bytes
        left = most_runs - sum(each.runs for each in found)
        if is_thorough:
            found.append(_smallest_caps(rewritten, original, known))
        elif not found or left >= 2:
            found.append(_one_cap(rewritten, original, known, left, advance))
        if found[-1].are_apart:
            break
    runs = sum(each.runs for each in found)
    if found[-1].are_apart:
        return replace(found[-1], runs=runs)
    if len(found) == len(needs) and all(each.are_apart is False for each in found):
        return replace(found[0], runs=runs)
    note = f"no cap under which only this model runs was found in {runs} runs: --verify thorough searches on"
    return replace(found[0], are_apart=None, runs=runs, notes=(note,))


def _one_cap(
    rewritten: ModelNeed, original: ModelNeed, known_bytes: int | None, most_runs: int, advance: Advance
) -> CappedRuns:
    """One cap under which the rewritten model runs and the original fails, from what both were seen to need."""
    job, other = rewritten.job, original.job
    need_bytes = max(original.need_bytes, (known_bytes or 0) - 2 * other.tolerance_bytes)
    answer = find_apart(ApartJob(job, other, rewritten.need_bytes, need_bytes, most_runs), advance)
    options = _options(rewritten)
    if answer.cap_bytes is None:
        note = f"under {_named(options)} there is no cap at which only this model runs ({answer.runs} runs)"
        return CappedRuns(False if answer.is_settled else None, options=options, runs=answer.runs, notes=(note,))
    note = (
        f"capped runs use {_named(options)}: with {format_bytes(answer.cap_bytes)} this model runs and the original "
        f"fails; {format_bytes(answer.cap_bytes - rewritten.need_bytes)} of that are room for gaps between tensors"
    )
    return CappedRuns(True, answer.cap_bytes, options=options, runs=answer.runs, notes=(note,))


def _smallest_caps(rewritten: ModelNeed, original: ModelNeed, known_bytes: int | None) -> CappedRuns:
    """Both searches at the same time; the original's is left out where its answer is known."""
    job, other = rewritten.job, original.job
    limit = job.settings.run_seconds
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(started(separate, SeparationJob(job, other), seconds=limit))
        second = None if known_bytes else stack.enter_context(started(find_smallest_cap, other, seconds=limit))
        found = first.answer()
        reference = second.answer() if second else CapAnswer(known_bytes, None, 0)
    smallest_bytes, options = found.answer.smallest_bytes, _options(rewritten)
    if smallest_bytes is None:
        note = f"no smallest cap was found under {_named(options)} ({found.answer.trials} tried)"
    else:
        slack = smallest_bytes - job.fixed_bytes - job.live_bytes
        note = (
            f"capped runs use {_named(options)}; the smallest cap lies {format_bytes(slack)} above the live bytes and "
            f"packed weights (workspace, fragmentation, and a tolerance of {format_bytes(job.tolerance_bytes)})"
        )
    return CappedRuns(
        are_apart=found.original_fails,
        apart_bytes=smallest_bytes if found.original_fails else None,
        smallest_bytes=smallest_bytes,
        original_smallest_bytes=reference.smallest_bytes,
        options=options,
        runs=found.answer.runs + (RUNS if smallest_bytes is not None else 0) + reference.runs,
        notes=(note,),
    )


def _options(model: ModelNeed) -> Options:
    return "exact" if model.settings.exact else "default"


def _named(options: Options) -> str:
    return "the exact options" if options == "exact" else "default options"
