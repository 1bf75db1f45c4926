"""Run the original and the rewritten model in fresh processes and compare what happens with what was promised."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from remat_cli.base.units import format_bytes
from remat_cli.core.graph import Graph
from remat_cli.core.learning import NOTHING, Learnt, Lesson, Session, lessons
from remat_cli.core.plan import Plan
from remat_cli.core.verification import Verification
from remat_cli.runtime._ort import Advance, Array, PackedArray, ignore_progress, pack_all, run_fresh, started
from remat_cli.runtime.caps import CapAnswer, CapJob, SeparationJob, find_smallest_cap, separate
from remat_cli.runtime.likeness import Likeness, LikenessJob, compare_models
from remat_cli.runtime.session import SessionSettings
from remat_cli.runtime.turns import RunFigures, RunJob, TimeJob, run_model, time_models

PROGRESS_UNITS = 100
RUNS_DONE, CAPS_DONE = 25, 70
SMALLEST_TOLERANCE_BYTES = 64 * 1024
TOLERANCE_SHARE = 32


@dataclass(frozen=True)
class VerifyRequest:
    """Two models and what the plan promises of the second.

    `reference` is the optimised original, `rewritten` what the plan made of it. `expected_order` are the names of its
    ops in plan order, without the `gate_ops`. Bytes: `predicted_live_peak_bytes` are activations alone; `fixed_bytes`
    is the fixed part (weights as kept, and inputs) predicted for the rewritten model, gate constants included, and
    `reference_fixed_bytes` that of the original; `workspace` is by op name, of both models; `budget_bytes` is a total.
    `more_feeds` are further inputs on which the outputs are compared. A `portable` model is optimised again when a
    default session loads it, so only exact sessions are held to the promise. `original_cap_bytes` is the smallest cap
    of `reference` with default options where an earlier verification found it; it is then not searched again. With
    `may_reassociate` outputs need not be identical, only close. With `judged`, what the judge says of the rewritten
    model's every op, the report says where the runs left it.
    """

    reference: Path
    rewritten: Path
    feeds: Mapping[str, Array]
    expected_order: tuple[str, ...]
    predicted_live_peak_bytes: int
    fixed_bytes: int
    reference_fixed_bytes: int
    budget_bytes: int
    gate_ops: frozenset[str] = frozenset()
    workspace: Mapping[str, int] = field(default_factory=dict)
    more_feeds: tuple[Mapping[str, Array], ...] = ()
    predicted_overhead_percent: float | None = None
    capped: bool = True
    timed: bool = True
    portable: bool = False
    intra_op_threads: int = 0
    device: str = "cpu"
    rounds: int = 5
    custom_ops: tuple[str, ...] = ()
    original_cap_bytes: int | None = None
    may_reassociate: bool = False
    judged: tuple[Graph, Plan] | None = None

    def settings(self, *, exact: bool) -> SessionSettings:
        """Settings of a session on either model."""
        return SessionSettings(
            exact=exact,
            intra_op_threads=self.intra_op_threads,
            device=self.device,
            custom_ops=self.custom_ops,
        )

    @property
    def packed_feeds(self) -> tuple[PackedArray, ...]:
        """The inputs, ready for another process."""
        return pack_all(self.feeds)

    @property
    def all_packed_feeds(self) -> tuple[tuple[PackedArray, ...], ...]:
        """Every set of inputs, ready for another process."""
        return (self.packed_feeds, *(pack_all(group) for group in self.more_feeds))


@dataclass(frozen=True)
class _Sessions:
    """What the two sessions on one model showed."""

    exact: RunFigures
    default: RunFigures

    def of_kind(self, is_exact: bool) -> RunFigures:
        """The figures of one of the two."""
        return self.exact if is_exact else self.default


@dataclass(frozen=True)
class _Caps:
    """Smallest caps of both models and whether the rewritten one runs where the original fails."""

    rewritten: CapAnswer
    original: CapAnswer
    separated: bool
    options: Literal["default", "exact"]
    notes: tuple[str, ...] = ()


def verify(request: VerifyRequest, advance: Advance = ignore_progress) -> Verification:
    """Run both models and report; broken promises are in the report, not exceptions.

    Everything runs in fresh processes, which end with this call, however it ends.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run one of the models.
        MissingDependency: the device cannot be used.
    """
    return verify_closely(request, advance)[0]


def verify_closely(
    request: VerifyRequest, advance: Advance = ignore_progress
) -> tuple[Verification, tuple[Lesson, ...]]:
    """Like `verify`; also where the runs left what the judge says of each op."""
    advance(0, PROGRESS_UNITS)
    original, rewritten = _run_both(request)
    advance(RUNS_DONE, PROGRESS_UNITS)
    identical = _are_identical(request, original, rewritten)
    likeness = _likeness(request) if request.may_reassociate and not identical else None
    in_order = all(_runs_in_order(request, figures) for figures in _promised(request, rewritten))
    fixed = _measured_fixed_bytes(request, original, rewritten)
    workspace = _seen_workspace(request, rewritten.exact)
    default_peak = fixed + rewritten.default.peak_with_workspace(workspace)
    exact_peak = fixed + rewritten.exact.peak_with_workspace(workspace)
    within = (exact_peak if request.portable else max(default_peak, exact_peak)) <= request.budget_bytes
    predicted, measured = _live_peaks(request, fixed, rewritten)
    caps, overhead = None, None
    cap_notes: tuple[str, ...] = (AGAIN,)
    if in_order and within and predicted == measured:
        caps, cap_notes = _capped(request, original, rewritten)
        advance(CAPS_DONE, PROGRESS_UNITS)
        overhead = _overhead_percent(request, advance) if request.timed else None
    report = Verification(
        outputs_identical=identical,
        outputs_close=likeness.are_close if likeness else None,
        outputs_max_relative_error=likeness.relative_error if likeness else None,
        order_honoured=in_order,
        first_op_out_of_order=_out_of_order(request, rewritten),
        first_predicted_peak_bytes=predicted,
        learnt=(),
        rounds_of_learning=0,
        room_bytes=0,
        predicted_peak_bytes=predicted,
        measured_peak_bytes=measured,
        measured_peak_default_session_bytes=default_peak,
        original_default_session_peak_bytes=request.reference_fixed_bytes
        + original.default.peak_with_workspace(workspace),
        runtime_version=rewritten.exact.runtime_version,
        within_budget=within,
        smallest_cap_bytes=caps.rewritten.smallest_bytes if caps else None,
        original_smallest_cap_bytes=caps.original.smallest_bytes if caps else None,
        capped_run_ok=caps.separated if caps else None,
        cap_options=caps.options if caps else None,
        later_runs_block_bytes=rewritten.default.later_bytes,
        measured_workspace_bytes=rewritten.exact.peak_workspace_bytes,
        predicted_workspace_bytes=request.workspace.get(rewritten.exact.peak_op, 0),
        predicted_overhead_percent=request.predicted_overhead_percent,
        measured_overhead_percent=overhead,
        notes=(*_output_notes(original), *_portable_notes(request), *cap_notes, *(caps.notes if caps else ())),
    )
    return report, _lessons(request, rewritten)


def _run_both(request: VerifyRequest) -> tuple[_Sessions, _Sessions]:
    """Both models at the same time, each in a process of its own; nothing is timed here."""
    settings = (request.settings(exact=True), request.settings(exact=False))
    feeds = request.all_packed_feeds
    with (
        started(run_model, RunJob(str(request.reference.resolve()), feeds, settings)) as first,
        started(run_model, RunJob(str(request.rewritten.resolve()), feeds, settings)) as second,
    ):
        return _Sessions(*first.answer()), _Sessions(*second.answer())


def _promised(request: VerifyRequest, model: _Sessions) -> tuple[RunFigures, ...]:
    """The sessions in which the rewritten model must keep the promise."""
    return (model.exact,) if request.portable else (model.exact, model.default)


def _are_identical(request: VerifyRequest, original: _Sessions, rewritten: _Sessions) -> bool:
    """Whether every output of every run has the same type, shape and bits."""
    pairs = zip(_promised(request, original), _promised(request, rewritten), strict=True)
    return all(one.prints == other.prints for one, other in pairs)


def _likeness(request: VerifyRequest) -> Likeness:
    """How close the outputs of the rewritten model are to the original's, in every session that is promised."""
    kinds = (True,) if request.portable else (True, False)
    models = (str(request.reference.resolve()), str(request.rewritten.resolve()))
    settings = tuple(request.settings(exact=is_exact) for is_exact in kinds)
    return run_fresh(compare_models, LikenessJob(models, request.all_packed_feeds, settings))


def _live_peaks(request: VerifyRequest, fixed_bytes: int, rewritten: _Sessions) -> tuple[int, int]:
    """The total of live tensors under exact options, predicted and measured."""
    predicted = request.fixed_bytes + request.predicted_live_peak_bytes
    return predicted, fixed_bytes + rewritten.exact.peak_live_bytes


AGAIN = "neither capped runs nor times: order or memory are not as planned"
ARENA_UNIT_BYTES = 256  # every request to the arena is rounded up to this
WORKSPACE_TOLERANCE = 0.05


def _seen_workspace(request: VerifyRequest, exact: RunFigures) -> dict[str, int]:
    """Workspace by op: as predicted, but as measured at the one op where that is known and clearly more."""
    predicted, measured = request.workspace.get(exact.peak_op, 0), exact.peak_workspace_bytes
    if measured is None or _units(measured) <= _units(int(predicted * (1 + WORKSPACE_TOLERANCE))) + 1:
        return dict(request.workspace)
    return {**request.workspace, exact.peak_op: measured}


def _units(bytes_: int) -> int:
    return -(-bytes_ // ARENA_UNIT_BYTES)


def _lessons(request: VerifyRequest, rewritten: _Sessions) -> tuple[Lesson, ...]:
    """Where runs left the judge's prediction: an exact session, and where that was as predicted a default one."""
    if request.judged is None:
        return ()
    for kind, figures in zip(("exact", "default"), _promised(request, rewritten), strict=False):
        found = lessons(*request.judged, request.fixed_bytes, figures.curve, cast(Session, kind))
        if found:
            return found
    seen = _seen_workspace(request, rewritten.exact)
    return tuple(_of_workspace(request, op, bytes_) for op, bytes_ in seen.items() - request.workspace.items())


def _of_workspace(request: VerifyRequest, op: str, measured: int) -> Lesson:
    assert request.judged is not None
    number, found = next((at, each) for at, each in enumerate(request.judged[0].ops) if each.name == op)
    learnt = Learnt(op, found.op_type, "workspace", "exact", request.workspace.get(op, 0), measured)
    return Lesson(learnt, number, NOTHING)


def _out_of_order(request: VerifyRequest, rewritten: _Sessions) -> str | None:
    """The first op of the plan that did not run in its turn."""
    for figures in _promised(request, rewritten):
        executed = [op for op in figures.executed if op not in request.gate_ops]
        for number, expected in enumerate(request.expected_order):
            if number >= len(executed) or executed[number] != expected:
                return expected
    return None


def _runs_in_order(request: VerifyRequest, figures: RunFigures) -> bool:
    return tuple(op for op in figures.executed if op not in request.gate_ops) == request.expected_order


def _measured_fixed_bytes(request: VerifyRequest, original: _Sessions, rewritten: _Sessions) -> int:
    """The original's fixed part, and what the rewritten model's session holds beyond it before the first op.

    That is the gates' constants; it would be more if the runtime packed a weight twice.
    """
    return request.reference_fixed_bytes + rewritten.exact.baseline_bytes - original.exact.baseline_bytes


def _output_notes(original: _Sessions) -> tuple[str, ...]:
    """Warnings about outputs that would be equal whatever the models do."""
    runs = original.exact.prints
    notes = [
        f"output '{first.name}' has the same value everywhere: comparing it proves little"
        for first in runs[0]
        if first.is_constant
    ]
    others = runs[1:]
    if others and all(run == runs[0] for run in others):
        notes.append("the outputs do not depend on the inputs: comparing them proves little")
    return tuple(notes)


def _portable_notes(request: VerifyRequest) -> tuple[str, ...]:
    if not request.portable:
        return ()
    return ("portable: a default session optimises the file again, so the promises hold under the exact options only",)


def _overhead_percent(request: VerifyRequest, advance: Advance) -> float:
    """Extra time of the rewritten model, both run in turn under the options of the promise."""
    job = TimeJob(
        models=(str(request.reference.resolve()), str(request.rewritten.resolve())),
        feeds=request.packed_feeds,
        settings=request.settings(exact=request.portable),
        rounds=request.rounds,
    )
    left = PROGRESS_UNITS - CAPS_DONE
    original_ns, rewritten_ns = run_fresh(
        time_models, job, lambda done, total: advance(CAPS_DONE + left * done // total, PROGRESS_UNITS)
    )
    return 100.0 * (rewritten_ns / original_ns - 1.0)


def _capped(request: VerifyRequest, original: _Sessions, rewritten: _Sessions) -> tuple[_Caps | None, tuple[str, ...]]:
    """Capped runs where they can tell something, otherwise why not."""
    if not request.capped:
        return None, ("capped runs were not asked for",)
    if request.device != "cpu":
        return None, (f"capped runs exist on the cpu only, not on {request.device}",)
    kinds = _kinds_that_differ(request, original, rewritten)
    if not kinds:
        return None, ("no capped runs: the plan's peak is not lower than the original's",)
    found = None
    for is_exact in kinds:
        caps = _smallest_caps(request, original, rewritten, exact=is_exact)
        if found is None or caps.separated:
            found = caps
        if found.separated:
            break
    return found, ()


def _kinds_that_differ(request: VerifyRequest, original: _Sessions, rewritten: _Sessions) -> tuple[bool, ...]:
    """Kinds of session (default first; True: exact) that are promised and in which the plan's peak is lower."""
    kinds = (True,) if request.portable else (False, True)
    return tuple(
        is_exact
        for is_exact in kinds
        if rewritten.of_kind(is_exact).peak_live_bytes < original.of_kind(is_exact).peak_live_bytes
    )


def _smallest_caps(request: VerifyRequest, original: _Sessions, rewritten: _Sessions, *, exact: bool) -> _Caps:
    """Both searches at the same time; the original's is left out where its answer is known."""
    settings = request.settings(exact=exact)
    job = _cap_job(request, request.rewritten, rewritten.exact, settings)
    other = _cap_job(request, request.reference, original.exact, settings)
    known = None if exact else request.original_cap_bytes
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(started(separate, SeparationJob(job, other)))
        second = None if known else stack.enter_context(started(find_smallest_cap, other))
        found = first.answer()
        reference = second.answer() if second else CapAnswer(known, None, 0)
    options: Literal["default", "exact"] = "exact" if exact else "default"
    return _Caps(found.answer, reference, found.original_fails, options, _cap_notes(job, found.answer, exact))


def _cap_job(request: VerifyRequest, model: Path, figures: RunFigures, settings: SessionSettings) -> CapJob:
    live = figures.peak_live_bytes
    return CapJob(
        model=str(model.resolve()),
        feeds=request.packed_feeds,
        settings=settings,
        fixed_bytes=figures.baseline_bytes,
        live_bytes=live,
        tolerance_bytes=max(SMALLEST_TOLERANCE_BYTES, live // TOLERANCE_SHARE),
    )


def _cap_notes(job: CapJob, answer: CapAnswer, exact: bool) -> tuple[str, ...]:
    options = "the exact options" if exact else "default options"
    if answer.smallest_bytes is None:
        return (f"no smallest cap was found under {options} ({answer.trials} tried)",)
    slack = answer.smallest_bytes - job.fixed_bytes - job.live_bytes
    return (
        f"capped runs use {options}; the smallest cap lies {format_bytes(slack)} above the live bytes and packed "
        f"weights (workspace, fragmentation, and a tolerance of {format_bytes(job.tolerance_bytes)})",
    )
