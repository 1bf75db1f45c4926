"""Run the original and the rewritten model in fresh processes and compare what happens with what was promised."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from remat_cli.base.processes import fresh
from remat_cli.core.learning import Judged, Lesson, Session
from remat_cli.core.verification import Verification, VerifyMode
from remat_cli.runtime._ort import (
    LONGEST_RUN_SECONDS,
    Advance,
    Array,
    PackedArray,
    ignore_progress,
    pack_all,
    run_fresh,
    started,
)
from remat_cli.runtime.capped import CappedRuns, ModelNeed, capped_runs
from remat_cli.runtime.lessons import lessons_of, out_of_order, seen_workspace
from remat_cli.runtime.likeness import Likeness, LikenessJob, compare_models, worst
from remat_cli.runtime.session import SessionSettings
from remat_cli.runtime.turns import RunFigures, RunJob, SessionRuns, TurnFigures, TurnsJob, run_in_turns, run_model

MOST_RUNS = 12
"""Of both models together, unless verification is thorough; short ones are timed more often, for half a second."""
THOROUGH_RUNS = 60
"""About as many as thorough verification takes: what its progress is told in."""


@dataclass(frozen=True)
class VerifyRequest:
    """Two models and what the plan promises of the second.

    `reference` is the optimised original, `rewritten` what the plan made of it. `expected_order` are the names of its
    ops in plan order, without the `gate_ops`. Bytes: `predicted_live_peak_bytes` are activations alone; `fixed_bytes`
    is the fixed part (weights as kept, and inputs) predicted for the rewritten model, gate constants included, and
    `reference_fixed_bytes` that of the original. `outside_bytes` is what of `fixed_bytes` lies outside the session's
    arena: weights that are not packed, and inputs; what was packed beforehand too, of which `largest_copy_bytes` must
    find a place in it while the model is loaded. `workspace` is by op name, of both models, `budget_bytes` a total.
    `more_feeds` are further inputs on which the outputs are compared. A `portable` model is optimised again when a
    default session loads it, so only exact sessions are held to the promise. `original_cap_bytes` is the smallest cap
    of `reference` with default options where an earlier verification found it; it is then not searched again. With
    `may_reassociate` outputs need not be identical, only close. `mode` says how much is run. With `judged`, what the
    judge says of the rewritten model's every op, it is said where the runs left it. `has_block`: later runs take a
    block for all tensors, which the steady form keeps them from. A process that shows no progress for `run_seconds` is
    ended.
    """

    reference: Path
    rewritten: Path
    feeds: Mapping[str, Array]
    expected_order: tuple[str, ...]
    predicted_live_peak_bytes: int
    fixed_bytes: int
    reference_fixed_bytes: int
    outside_bytes: int
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
    mode: VerifyMode = "on"
    custom_ops: tuple[str, ...] = ()
    original_cap_bytes: int | None = None
    largest_copy_bytes: int = 0
    may_reassociate: bool = False
    has_block: bool = True
    judged: Judged | None = None
    run_seconds: float = LONGEST_RUN_SECONDS

    def settings(self, *, exact: bool) -> SessionSettings:
        """Settings of a session on either model."""
        return SessionSettings(
            exact=exact,
            intra_op_threads=self.intra_op_threads,
            device=self.device,
            custom_ops=self.custom_ops,
            run_seconds=self.run_seconds,
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
class _Program:
    """What is run: each model alone in `alone`, the first session exact, then both in turn, and on the clock."""

    alone: tuple[SessionRuns, ...]
    turns: SessionRuns
    rounds: int

    @property
    def runs(self) -> int:
        """Of both models together, without the further rounds of short ones."""
        return 2 * (sum(len(session.on) for session in (*self.alone, self.turns)) + self.rounds)


@dataclass(frozen=True)
class _Sessions:
    """What the sessions on one model showed: alone under exact options, in turn as promised, and by default."""

    exact: RunFigures
    turns: RunFigures
    default: RunFigures

    @property
    def promised(self) -> tuple[RunFigures, ...]:
        """The sessions in which promises are kept."""
        return (self.exact, self.turns)


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
    total = THOROUGH_RUNS if request.mode == "thorough" else MOST_RUNS
    program, done = _program(request), 0

    def more(part: int, parts: int) -> None:
        advance(min(done + part, total - 1), total)

    advance(0, total)
    alone = _run_alone(request, program)
    done = 2 * sum(len(session.on) for session in program.alone)
    turns = _run_in_turns(request, program, more)
    done += turns.runs
    original, rewritten = (
        _Sessions(found[0], figures, found[1] if request.portable else figures)
        for found, figures in zip(alone, turns.figures, strict=True)
    )
    identical = all(
        one.prints == other.prints for one, other in zip(original.promised, rewritten.promised, strict=True)
    )
    likeness, likeness_runs = (None, 0) if identical else _likeness(request, program, original, rewritten, turns)
    done += likeness_runs
    in_order = all(_runs_in_order(request, figures) for figures in rewritten.promised)
    fixed = request.outside_bytes + rewritten.exact.baseline_bytes
    workspace = seen_workspace(request.workspace, rewritten.exact)
    default_peak = fixed + rewritten.default.peak_with_workspace(workspace)
    exact_peak = fixed + rewritten.exact.peak_with_workspace(workspace)
    within = (exact_peak if request.portable else max(default_peak, exact_peak)) <= request.budget_bytes
    predicted, measured = _live_peaks(request, fixed, rewritten)
    caps = CappedRuns(notes=(AGAIN,))
    if within and predicted == measured:
        caps = _capped(request, original, rewritten, MOST_RUNS - program.runs - likeness_runs, more)
    advance(total, total)
    report = Verification(
        outputs_identical=identical,
        outputs_close=likeness.are_close if likeness else None,
        outputs_max_relative_error=likeness.relative_error if likeness else None,
        order_honoured=in_order,
        first_op_out_of_order=out_of_order(request.expected_order, request.gate_ops, rewritten.promised),
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
        smallest_cap_bytes=caps.smallest_bytes,
        original_smallest_cap_bytes=caps.original_smallest_bytes,
        capped_run_ok=caps.are_apart,
        capped_run_bytes=caps.apart_bytes,
        cap_options=caps.options,
        later_runs_block_bytes=rewritten.default.later_bytes if request.has_block else 0,
        measured_workspace_bytes=rewritten.exact.peak_workspace_bytes,
        predicted_workspace_bytes=request.workspace.get(rewritten.exact.peak_op, 0),
        predicted_overhead_percent=request.predicted_overhead_percent,
        measured_overhead_percent=_overhead_percent(turns),
        inferences=done + caps.runs,
        notes=(*_output_notes(request, original), *_portable_notes(request), *caps.notes),
    )
    kinds: tuple[Session, ...] = ("exact", "exact" if request.portable else "default")
    sessions = tuple(zip(kinds, rewritten.promised, strict=True))
    return report, lessons_of(request.judged, sessions, request.workspace)


def _program(request: VerifyRequest) -> _Program:
    """Which sessions are opened, and what they are run on: as a rule no more than shows all that is promised.

    Later runs differ from the first under default options only: the memory pattern. A portable model is held to exact
    sessions, so those are run in turn, and a default one once.
    """
    all_feeds = tuple(range(1 + len(request.more_feeds)))
    last = all_feeds[-1]
    exact, default = request.settings(exact=True), request.settings(exact=False)
    is_fast, is_thorough = request.mode == "fast", request.mode == "thorough"
    is_once = is_fast or request.portable
    by_default = SessionRuns(default, (0, *all_feeds) if is_thorough else (0,) if is_once else (0, last))
    alone = SessionRuns(exact, all_feeds if is_thorough else (0,))
    rounds = 0 if is_fast or not request.timed else 5 if is_thorough else 1
    if not request.portable:
        return _Program((alone,), by_default, rounds)
    again = SessionRuns(exact, all_feeds if is_thorough else (last,))
    return _Program((alone, by_default), again, rounds)


def _run_alone(request: VerifyRequest, program: _Program) -> tuple[tuple[RunFigures, ...], tuple[RunFigures, ...]]:
    """Both models at the same time, each in a process of its own; nothing is timed here."""
    feeds, limit = request.all_packed_feeds, request.run_seconds
    with (
        started(run_model, RunJob(str(request.reference.resolve()), feeds, program.alone), fresh, limit) as first,
        started(run_model, RunJob(str(request.rewritten.resolve()), feeds, program.alone), fresh, limit) as second,
    ):
        return first.answer(), second.answer()


def _run_in_turns(request: VerifyRequest, program: _Program, advance: Advance) -> TurnFigures:
    """Both models in one process, one after the other; their outputs are held together where they need not be equal."""
    models = (str(request.reference.resolve()), str(request.rewritten.resolve()))
    job = TurnsJob(models, request.all_packed_feeds, program.turns, program.rounds, request.may_reassociate)
    return run_fresh(run_in_turns, job, advance, request.run_seconds)


def _likeness(
    request: VerifyRequest, program: _Program, original: _Sessions, rewritten: _Sessions, turns: TurnFigures
) -> tuple[Likeness | None, int]:
    """How close outputs are that are not identical, where they need not be, and how many more runs it took.

    What was run in turn was compared there; exact sessions run again if they gave other outputs than that.
    """
    if turns.likeness is None:
        return None, 0
    if all(prints in model.turns.prints for model in (original, rewritten) for prints in model.exact.prints):
        return turns.likeness, 0
    exact = program.alone[0]
    feeds = tuple(request.all_packed_feeds[place] for place in exact.on)
    models = (str(request.reference.resolve()), str(request.rewritten.resolve()))
    found = run_fresh(compare_models, LikenessJob(models, feeds, (exact.settings,)), seconds=request.run_seconds)
    return worst([turns.likeness, found]), 2 * len(feeds)


def _live_peaks(request: VerifyRequest, fixed_bytes: int, rewritten: _Sessions) -> tuple[int, int]:
    """The total of live tensors under exact options, predicted and measured."""
    predicted = request.fixed_bytes + request.predicted_live_peak_bytes
    return predicted, fixed_bytes + rewritten.exact.peak_live_bytes


AGAIN = "no capped runs: memory is not as planned"


def _runs_in_order(request: VerifyRequest, figures: RunFigures) -> bool:
    return tuple(op for op in figures.executed if op not in request.gate_ops) == request.expected_order


def _output_notes(request: VerifyRequest, original: _Sessions) -> tuple[str, ...]:
    """Warnings about outputs that would be equal whatever the models do."""
    runs = (*original.exact.prints, *original.turns.prints)
    notes = [
        f"output '{first.name}' has the same value everywhere: comparing it proves little"
        for first in runs[0]
        if first.is_constant
    ]
    if request.more_feeds and request.mode != "fast" and all(run == runs[0] for run in runs[1:]):
        notes.append("the outputs do not depend on the inputs: comparing them proves little")
    return tuple(notes)


def _portable_notes(request: VerifyRequest) -> tuple[str, ...]:
    if not request.portable:
        return ()
    return ("portable: a default session optimises the file again, so the promises hold under the exact options only",)


def _overhead_percent(turns: TurnFigures) -> float | None:
    """Extra time of the rewritten model, both run in turn under the options of the promise."""
    if turns.times_ns is None:
        return None
    original_ns, rewritten_ns = turns.times_ns
    return 100.0 * (rewritten_ns / original_ns - 1.0)


def _capped(
    request: VerifyRequest, original: _Sessions, rewritten: _Sessions, most_runs: int, advance: Advance
) -> CappedRuns:
    """Capped runs where they can tell something, otherwise why not."""
    if not request.capped or request.mode == "fast":
        return CappedRuns(notes=("capped runs were not asked for",))
    if request.device != "cpu":
        return CappedRuns(notes=(f"capped runs exist on the cpu only, not on {request.device}",))
    kinds = _kinds_that_differ(request, original, rewritten)
    if not kinds:
        return CappedRuns(notes=("no capped runs: the plan's peak is not lower than the original's",))
    needs = {
        is_exact: (
            _need(request, request.rewritten, rewritten, is_exact, request.largest_copy_bytes),
            _need(request, request.reference, original, is_exact),
        )
        for is_exact in kinds
    }
    return capped_runs(needs, request.original_cap_bytes, request.mode == "thorough", most_runs, advance)


def _kinds_that_differ(request: VerifyRequest, original: _Sessions, rewritten: _Sessions) -> tuple[bool, ...]:
    """Kinds of session (default first; True: exact) that are promised and in which the plan's peak is lower."""
    pairs = {True: (rewritten.exact, original.exact)}
    if not request.portable:
        pairs = {False: (rewritten.default, original.default), **pairs}
    return tuple(kind for kind, (ours, theirs) in pairs.items() if ours.peak_live_bytes < theirs.peak_live_bytes)


def _need(request: VerifyRequest, model: Path, seen: _Sessions, is_exact: bool, loading_bytes: int = 0) -> ModelNeed:
    """What capped runs need to know about one model; workspace was seen in the exact session."""
    exact, live = seen.exact, (seen.exact if is_exact else seen.default).peak_live_bytes
    beyond = exact.in_use_peak_bytes - exact.baseline_bytes - exact.peak_live_bytes
    workspace = 0 if exact.peak_workspace_bytes is None else max(0, beyond)
    return ModelNeed(
        model=str(model.resolve()),
        feeds=request.packed_feeds,
        settings=request.settings(exact=is_exact),
        fixed_bytes=exact.baseline_bytes,
        live_bytes=exact.peak_live_bytes,
        need_bytes=exact.baseline_bytes + max(loading_bytes, live + workspace),
    )
