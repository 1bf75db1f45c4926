"""Run the original and the rewritten model in fresh processes and compare what happens with what was promised."""

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import UNSET

from remat_cli.base.present import present
from remat_cli.base.processes import fresh
from remat_cli.core.values.family import FamilySeen
from remat_cli.core.values.learning import Session
from remat_cli.core.values.promises import fits
from remat_cli.core.values.verification import OneModelSeen
from remat_cli.ort_rules.lessons import Lesson
from remat_cli.runtime.measure.turns import (
    ROUNDS,
    OutputPrint,
    RunFigures,
    RunJob,
    SessionRuns,
    TurnFigures,
    TurnsJob,
    run_in_turns,
    run_model,
    time_in_turn,
)
from remat_cli.runtime.observe.capped import CappedRuns, ModelNeed, capped_runs
from remat_cli.runtime.sessions._ort import (
    Advance,
    ignore_progress,
    run_fresh,
    started,
)
from remat_cli.runtime.sessions.feeds import Feeds, GivenFeeds
from remat_cli.runtime.verify.beyond import find_compared, unless_memory_lacks
from remat_cli.runtime.verify.family import AtSizes, see_at_sizes, sizes_seen
from remat_cli.runtime.verify.lessons import lessons_of, out_of_order, seen_workspace
from remat_cli.runtime.verify.likeness import Likeness, LikenessJob, compare_models, worst
from remat_cli.runtime.verify.verify_request import VerifyRequest

THOROUGH_RUNS = 60
"""About as many as thorough verification takes: what its progress is told in."""
SHORT_NS = 2e9
"""Of the first runs of both models: they are timed again in turn where they take no longer."""


Prints = tuple[tuple[OutputPrint, ...], ...]
"""What came out of each run of a session."""


@dataclass(frozen=True)
class SessionsToRun:
    """What is run: each model alone in `alone`, the first session exact, then both in turn, and on the clock.

    `reference_alone` are further sessions of the optimised original, where the user's file takes its turns.
    """

    alone: tuple[SessionRuns, ...]
    turns: SessionRuns
    rounds: int
    reference_alone: tuple[SessionRuns, ...] = ()

    @property
    def runs(self) -> int:
        """Of both models together, without the further rounds of short ones."""
        of_both = sum(len(session.on) for session in (*self.alone, self.turns)) + self.rounds
        return 2 * of_both + sum(len(session.on) for session in self.reference_alone)

    def alone_key(self, fed: str) -> str:
        """Which sessions on the original alone these are, where the key of what is fed is `fed`."""
        asked = msgspec.json.encode((self.alone, self.reference_alone, fed), order="sorted")
        return hashlib.sha256(asked).hexdigest()


@dataclass(frozen=True)
class _Original:
    """What sessions on the original showed: alone under exact options, by default, and what came out in turn."""

    exact: RunFigures
    default: RunFigures
    prints: Prints


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


@dataclass(frozen=True)
class _Shown:
    """What all runs but capped ones showed of the original and the rewritten model, and how many there were.

    `pairs` are what came out of both of them for the same inputs, `alone` figures of sessions on the original alone.
    """

    original: _Original
    rewritten: _Sessions
    turns: TurnFigures
    runs: int
    pairs: tuple[tuple[Prints, Prints], ...]
    family: FamilySeen | None = None
    alone: tuple[RunFigures, ...] = ()


def verify(request: VerifyRequest, advance: Advance = ignore_progress) -> OneModelSeen:
    """Run both models and report; broken promises are in the report, not exceptions.

    Everything runs in fresh processes, which end with this call, however it ends.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run one of the models.
        MissingDependency: the device cannot be used.
    """
    return verify_closely(request, sessions_to_run(request), advance)[0]


def verify_closely(
    request: VerifyRequest, program: SessionsToRun, advance: Advance = ignore_progress
) -> tuple[OneModelSeen, tuple[Lesson, ...], tuple[RunFigures, ...]]:
    """Like `verify`; also where the runs left what the judge says of each op, and figures of the original alone."""
    total, done = THOROUGH_RUNS if request.mode == "thorough" else request.most_runs, 2

    def more(part: int, parts: int) -> None:
        advance(min(done + part, total - 1), total)

    advance(0, total)
    shown = _run_both(request, program, more) if request.sizes is None else _run_at_sizes(request, program, more)
    original, rewritten, done = shown.original, shown.rewritten, shown.runs
    identical = all(one == other for one, other in shown.pairs)
    likeness, likeness_runs = (None, 0) if identical else _likeness(request, program, original, rewritten, shown.turns)
    done += likeness_runs
    compared = _Compared(identical, likeness, done)
    held = _held(request, rewritten)
    caps = CappedRuns(notes=(TOO_LARGE if request.is_beyond else AGAIN,))
    if not request.is_beyond and held.is_within and held.predicted_bytes == held.measured_bytes:
        caps = _capped(request, original, rewritten, request.most_runs - program.runs - likeness_runs, more)
    advance(total, total)
    report = _report(request, shown, compared, held, caps)
    if shown.family is not None:
        promised_bytes = max(shown.family.promised_bytes, report.most_measured_bytes) - request.fixed_bytes
        family = msgspec.structs.replace(shown.family, promised_bytes=promised_bytes)
        report = msgspec.structs.replace(report, family=family)
    kinds: tuple[Session, ...] = ("exact", "exact" if request.portable else "default")
    sessions = tuple(zip(kinds, rewritten.promised, strict=True))
    return report, lessons_of(request.forecast, sessions, request.workspace), shown.alone


@dataclass(frozen=True)
class _Compared:
    """Whether outputs are identical, else how close where that may be, and how many runs had shown it by then."""

    identical: bool
    likeness: Likeness | None
    runs: int


@dataclass(frozen=True)
class _Held:
    """Bytes that the rewritten model held: predicted and measured of live tensors, and peaks, workspace included."""

    predicted_bytes: int
    measured_bytes: int
    default_peak_bytes: int
    is_within: bool
    workspace: dict[str, int]


def _held(request: VerifyRequest, rewritten: _Sessions) -> _Held:
    """What was held in the sessions that promises are about, beside the budget."""
    fixed = request.outside_bytes + rewritten.exact.baseline_bytes
    workspace = seen_workspace(request.workspace, rewritten.exact)
    default_peak = fixed + rewritten.default.peak_with_workspace(workspace)
    exact_peak = fixed + rewritten.exact.peak_with_workspace(workspace)
    is_exact_only = request.portable and (request.is_elsewhere or not request.is_left)
    return _Held(
        # The total of live tensors under exact options.
        predicted_bytes=request.fixed_bytes + request.predicted_live_peak_bytes,
        measured_bytes=fixed + rewritten.exact.peak_live_bytes,
        default_peak_bytes=default_peak,
        is_within=fits(exact_peak if is_exact_only else max(default_peak, exact_peak), request.budget_bytes),
        workspace=workspace,
    )


def _report(request: VerifyRequest, shown: _Shown, compared: _Compared, held: _Held, caps: CappedRuns) -> OneModelSeen:
    """All that the runs showed."""
    original, rewritten, turns, likeness = shown.original, shown.rewritten, shown.turns, compared.likeness
    orders = [tuple(op for op in each.executed if op not in request.gate_ops) for each in rewritten.promised]
    times_ns = turns.times_ns  # in turn, under the options of the promise
    original_bytes = request.reference_fixed_bytes + original.default.peak_with_workspace(held.workspace)
    return OneModelSeen(
        reference=request.compared_with or UNSET,
        outputs_identical=compared.identical,
        outputs_close=likeness.are_close if likeness else None,
        outputs_max_relative_error=likeness.relative_error if likeness else None,
        order_honoured=all(order == request.expected_order for order in orders),
        first_op_out_of_order=out_of_order(request.expected_order, request.gate_ops, rewritten.promised),
        first_predicted_peak_bytes=held.predicted_bytes,
        learnt=(),
        rounds_of_learning=0,
        room_bytes=0,
        budget_bytes=request.budget_bytes,
        is_portable=request.portable,
        predicted_peak_bytes=held.predicted_bytes,
        measured_peak_bytes=held.measured_bytes,
        measured_peak_default_session_bytes=held.default_peak_bytes,
        original_default_session_peak_bytes=None if request.is_beyond else original_bytes,
        runtime_version=rewritten.exact.runtime_version,
        within_budget=held.is_within,
        smallest_cap_bytes=caps.smallest_bytes,
        original_smallest_cap_bytes=caps.original_smallest_bytes,
        capped_run_ok=caps.are_apart,
        capped_run_bytes=caps.apart_bytes,
        cap_options=caps.options,
        later_runs_block_bytes=rewritten.default.later_bytes if request.has_block else 0,
        measured_workspace_bytes=rewritten.exact.peak_workspace_bytes,
        predicted_workspace_bytes=request.workspace.get(rewritten.exact.peak_op, 0),
        predicted_overhead_percent=request.predicted_overhead_percent,
        measured_overhead_percent=None if times_ns is None else 100.0 * (times_ns[1] / times_ns[0] - 1.0),
        time_noise=turns.noise,
        inferences=compared.runs + caps.runs,
        notes=(*_notes(request, original), *caps.notes),
        notes_on_caps=caps.notes,
    )


def sessions_to_run(request: VerifyRequest) -> SessionsToRun:
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
        once = () if request.original is None else (SessionRuns(default, (0,)),)
        return SessionsToRun((alone,), by_default, rounds, once)
    again = SessionRuns(exact, all_feeds if is_thorough else (last,))
    return SessionsToRun((alone, by_default), again, rounds)


def _run_both(request: VerifyRequest, program: SessionsToRun, advance: Advance) -> _Shown:
    """Both models apart, each in a process of its own at the same time, then in one process, one after the other.

    Nothing is timed while they run apart. In turn their outputs are held together where they need not be equal.
    """
    feeds, limit = request.all_packed_feeds, request.run_seconds
    model, reference = str(request.rewritten.resolve()), str(request.reference.resolve())
    reference_job = RunJob(reference, feeds, (*program.alone, *program.reference_alone))
    with contextlib.ExitStack() as stack:
        first_process = None
        if request.known_alone is None:
            first_process = stack.enter_context(started(run_model, reference_job, fresh, limit))
        second_process = stack.enter_context(started(run_model, RunJob(model, feeds, program.alone), fresh, limit))
        first = request.known_alone or (first_process.answer() if first_process else ())
        second = second_process.answer()
    is_file = request.original is not None
    in_turn = reference if request.original is None else str(request.original.resolve()), model
    job = TurnsJob(in_turn, feeds, program.turns, program.rounds, request.may_reassociate, second_only=is_file)
    turns = run_fresh(run_in_turns, job, advance, limit)
    original = _Original(first[0], first[1] if len(first) > 1 else turns.figures[0], turns.prints[0])
    rewritten = _Sessions(second[0], turns.figures[-1], second[1] if request.portable else turns.figures[-1])
    apart = (*program.alone, *(() if request.known_alone else (*program.alone, *program.reference_alone)))
    runs = sum(len(session.on) for session in apart) + turns.runs
    # What both gave for the same inputs, with the original's own in turn where it was fed them there.
    fed = program.alone[0].on, program.turns.on
    wanted = dict(zip(fed[0], original.exact.prints, strict=True)) | dict(zip(fed[1], original.prints, strict=True))
    pairs = tuple(
        (tuple(wanted[place] for place in on), figures.prints)
        for on, figures in zip(fed, rewritten.promised, strict=True)
    )
    if request.is_left:
        pairs = (*pairs, (original.default.prints, rewritten.default.prints))
    return _Shown(original, rewritten, turns, runs, pairs, alone=first)


def _run_at_sizes(request: VerifyRequest, program: SessionsToRun, advance: Advance) -> _Shown:
    """Each model at all sizes in a process of its own; the rewritten one, before, at the largest as promised.

    Each runs at the largest sizes as seldom as shows all that is promised: such runs take minutes.
    """
    many = present(request.sizes, "the sizes to verify")
    default_settings, settings = request.settings(exact=False), request.settings(exact=request.portable)
    feeds: tuple[Feeds, ...] = (GivenFeeds(request.packed_feeds), *many.other_feeds)
    apart = tuple(SessionRuns(each.settings, (0,)) for each in program.alone)
    limit = request.run_seconds
    job = RunJob(str(request.rewritten.resolve()), (request.packed_feeds,), apart)
    exact, *default = run_fresh(run_model, job, seconds=limit)
    second = see_at_sizes(request.rewritten, feeds, settings, advance)
    if many.beyond is not None:
        return _beside_what_runs(request, program, (exact, default[0] if default else second.figures), second, advance)
    first = see_at_sizes(many.original, feeds, default_settings, advance)
    original = _Original(first.figures, first.figures, first.figures.prints)
    times_ns, rounds = (first.first_ns, second.first_ns), 0
    if program.rounds and (request.mode == "thorough" or sum(times_ns) < SHORT_NS):
        rounds = ROUNDS + 1
        times_ns = time_in_turn((many.original, request.rewritten), request.feeds, settings)
    family = FamilySeen(many.promised_bytes, sizes_seen(many.all_sizes, first, second))
    family = msgspec.structs.replace(family, resident_at_largest_bytes=second.first_resident_bytes)
    prints = first.figures.prints, second.figures.prints
    timed = times_ns if program.rounds else None
    return _Shown(
        original=original,
        rewritten=_Sessions(exact, second.figures, default[0] if default else second.figures),
        turns=TurnFigures((first.figures, second.figures), prints, timed, None, 2 * len(feeds)),
        runs=len(apart) + 2 * len(feeds) + 2 * rounds,
        pairs=((prints[0][:1], exact.prints[:1]), prints),
        family=family,
    )


def _beside_what_runs(
    request: VerifyRequest,
    program: SessionsToRun,
    apart: tuple[RunFigures, RunFigures],
    ours: AtSizes,
    advance: Advance,
) -> _Shown:
    """The rewritten model, at all sizes, beside the original where this machine runs it, and else beside a twin.

    Times are those of the largest sizes at which the original runs.
    """
    many = present(request.sizes, "the sizes to verify")
    beyond = present(many.beyond, "what stands in for the original")
    feeds: tuple[Feeds, ...] = (GivenFeeds(request.packed_feeds), *many.other_feeds)
    found = find_compared(many, beyond, feeds, lambda is_exact: request.settings(exact=is_exact), advance)
    times_ns, rounds, settings = None, 0, request.settings(exact=request.portable)
    if program.rounds:
        again = see_at_sizes(request.rewritten, [feeds[found.timed]], settings)
        times_ns = found.first.first_ns, again.first_ns
        if request.mode == "thorough" or sum(times_ns) < SHORT_NS:
            rounds = ROUNDS + 1
            with unless_memory_lacks():  # for both at once: then those of one run each count
                times_ns = time_in_turn((many.original, request.rewritten), feeds[found.timed].arrays(), settings)
    family = FamilySeen(many.promised_bytes, found.rows(many.all_sizes, ours))
    family = msgspec.structs.replace(family, resident_at_largest_bytes=ours.first_resident_bytes)
    prints, first = ours.figures.prints, found.first.figures
    places = sorted(found.wanted)
    wanted, given = tuple(found.wanted[place].prints for place in places), tuple(prints[place] for place in places)
    return _Shown(
        original=_Original(first, first, first.prints),
        rewritten=_Sessions(apart[0], ours.figures, apart[1]),
        turns=TurnFigures((first, ours.figures), (wanted, given), times_ns, None, 2 * len(feeds)),
        runs=len(program.alone) + len(feeds) + len(found.wanted) + 2 * rounds,
        pairs=((prints[:1], apart[0].prints[:1]), (wanted, given)),
        family=family,
    )


def _likeness(
    request: VerifyRequest, program: SessionsToRun, original: _Original, rewritten: _Sessions, turns: TurnFigures
) -> tuple[Likeness | None, int]:
    """How close outputs are that are not identical, where they need not be, and how many more runs it took.

    What was run in turn was compared there; exact sessions run again if they gave other outputs than that.
    """
    if turns.likeness is None:
        return None, 0
    in_turn = zip((original.exact, rewritten.exact), turns.prints, strict=True)
    if all(prints in found for exact, found in in_turn for prints in exact.prints):
        return turns.likeness, 0
    alone = program.alone[0]
    feeds = tuple(request.all_packed_feeds[place] for place in alone.on)
    models = (str(request.reference.resolve()), str(request.rewritten.resolve()))
    found = run_fresh(compare_models, LikenessJob(models, feeds, (alone.settings,)), seconds=request.run_seconds)
    return worst([turns.likeness, found]), 2 * len(feeds)


AGAIN = "no capped runs: memory is not as planned"
TOO_LARGE = "no capped runs: this machine cannot run the original at the largest sizes"
LEFT = (
    "for any processor: a default session brings the file into its own layout, with these bits and within this memory; "
    "order and time are those under the exact options"
)
ELSEWHERE = (
    "for processors of another kind: bits were compared here, and hold on all; what default sessions hold there was "
    "predicted, not measured"
)
PORTABLE = "portable: a default session optimises the file again, so the promises hold under the exact options only"


def _notes(request: VerifyRequest, original: _Original) -> list[str]:
    """Warnings about outputs that would be equal whatever the models do, and what a portable file keeps where."""
    runs = (*original.exact.prints, *original.prints)
    notes = [
        f"output '{first.name}' has the same value everywhere: comparing it proves little"
        for first in runs[0]
        if first.is_constant
    ]
    if request.more_feeds and request.mode != "fast" and all(run == runs[0] for run in runs[1:]):
        notes.append("the outputs do not depend on the inputs: comparing them proves little")
    if request.portable:
        notes.append(ELSEWHERE if request.is_elsewhere else LEFT if request.is_left else PORTABLE)
    return notes


def _capped(
    request: VerifyRequest, original: _Original, rewritten: _Sessions, most_runs: int, advance: Advance
) -> CappedRuns:
    """Capped runs where they can tell something, otherwise why not."""
    if not request.capped or request.mode == "fast":
        return CappedRuns(notes=("capped runs were not asked for",))
    if request.device != "cpu":
        return CappedRuns(notes=(f"capped runs exist on the cpu only, not on {request.device}",))
    # Kinds of session (default first; True: exact) that are promised and in which the plan's peak is lower.
    pairs = {} if request.sizes and not request.portable else {True: (rewritten.exact, original.exact)}
    if not request.portable:
        pairs = {False: (rewritten.default, original.default), **pairs}
    kinds = tuple(kind for kind, (ours, theirs) in pairs.items() if ours.peak_live_bytes < theirs.peak_live_bytes)
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


def _need(
    request: VerifyRequest, model: Path, seen: _Original | _Sessions, is_exact: bool, loading_bytes: int = 0
) -> ModelNeed:
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
