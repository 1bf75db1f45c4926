"""Verify a plan, learn from where it was not as predicted, plan again, and verify, until all holds or nothing helps."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.progress import Progress
from remat_cli.base.units import format_bytes
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.files import save_written
from remat_cli.compiling.learn.corrections import Corrections, remember_corrections
from remat_cli.compiling.learn.learn import corrections_of, noted, plan_corrected, plan_with_more_inside
from remat_cli.compiling.page import plan_paging
from remat_cli.compiling.place import AUTO, as_one_session, on_best_single, other_single, plan_again, recounted
from remat_cli.compiling.plan import within_overhead
from remat_cli.compiling.planned import PlannedModel
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import remember_cap
from remat_cli.compiling.process.forecast import saves_packed
from remat_cli.compiling.record import plan_file
from remat_cli.compiling.verify import PlannedRun, verify_plan_closely
from remat_cli.compiling.write import with_budget, write_with_room, write_within_budget
from remat_cli.core.values.learning import Learnt
from remat_cli.core.values.resident import WeightFiles
from remat_cli.core.values.verification import Verification, applies
from remat_cli.ort_rules.lessons import Lesson

MOST_ROUNDS = 4  # of learning from a run and planning again
MOST_ROOM_SHARE = 0.02  # of the budget: what rules cannot explain is small
WITHOUT_FORM = (
    "written without the steady form, in which the runtime did not run it as planned: later runs take a block for all"
)
WITHOUT_COPIES = (
    "written without packed copies of weights: a process that loads them was measured to hold more than was predicted"
)
RESIDENT_NOISE_BYTES = 2**18  # by which two measurements of a process may differ
PAGED_ATTEMPTS = 5  # to plan for what a process was seen to hold, each with more room than the one before
ATTEMPTS = 3  # to count what sessions hold of weights, which shows only when they are open


@dataclass(frozen=True)
class Settled:
    """A plan with what verification showed of it; None: it was not verified, or is none.

    `uncounted_bytes` of its budget are for mapped weights, beside a budget on the process. `files` is how its weights
    are to be written, where that is not as it was asked for.
    """

    planned: PlannedModel
    seen: Verification | None
    uncounted_bytes: int = 0
    files: WeightFiles | None = None

    def files_for(self, request: CompileRequest) -> CompileRequest:
        """The request, with weights written as was settled."""
        return request if self.files is None else replace(request, files=self.files)

    def cut_short(self) -> "Settled":
        """The same of a search that was told to end."""
        return replace(self, planned=self.planned.cut_short())


@dataclass(frozen=True)
class Settling:
    """How plans of one compile are verified and mended."""

    request: CompileRequest
    work: Path
    progress: Progress

    def settle(self, planned: PlannedModel) -> Settled:
        """The plan as it is to be written: verified, or mended and verified."""
        if not planned.has_plan or not all(p.provenance.measured for p in planned.platform.profiles):
            return Settled(planned, None)
        if planned.written is not None:
            return self._as_loaded(self._in_one_session(planned))
        if planned.paged is not None:
            return self._paged(planned)
        return self._on_devices(self._in_the_faster_way(self._counted(planned), planned.platform), planned.platform)

    def _verified(self, planned: PlannedModel) -> Settled:
        """Run the plan file and its model."""
        return self._seen(planned)[0]

    def _seen(self, planned: PlannedModel) -> tuple[Settled, tuple[Lesson, ...]]:
        """Run the plan file and its model; also where runs left the judge."""
        path = Path(tempfile.mkdtemp(prefix="settle_", dir=self.work)) / "rewritten.onnx"
        save_written(planned, path, self.request)
        written = planned.written
        forecast = None if written is None else written.sessions
        run = PlannedRun(plan_file(planned, self.request), path, other_single(planned), forecast)
        seen, lessons = verify_plan_closely(run, planned.whole, path.parent, self.request.checks, self.progress)
        if written is not None:
            remember_cap(planned.whole, seen, self.request.conditions)
        return Settled(planned, seen), lessons

    def _in_one_session(self, planned: PlannedModel) -> Settled:
        """Verify; as long as bytes are not as promised, learn why, plan again, and verify again.

        Where only gaps in the arena stand in the way of a gain under a cap, plan tighter, once. What was learnt in
        earlier rounds is in the last report.
        """
        known: tuple[Learnt, ...] = ()
        notes: tuple[str, ...] = ()
        first_bytes, room_bytes = None, 0
        for rounds in range(MOST_ROUNDS + 1):
            found, lessons = self._seen(planned)
            seen = found.seen
            assert seen is not None
            assert isinstance(seen.predicted_peak_bytes, int)
            first_bytes = seen.predicted_peak_bytes if first_bytes is None else first_bytes
            corrections = corrections_of(planned, lessons)
            if corrections or not seen.passed:
                known += tuple(each.learnt for each in noted(lessons, corrections))
            seen = msgspec.structs.replace(
                seen,
                learnt=known,
                rounds_of_learning=rounds,
                first_predicted_peak_bytes=first_bytes,
                room_bytes=room_bytes,
                notes=(*seen.notes, *notes),
            )
            found = replace(found, seen=seen)
            if seen.passed:
                remember_corrections(corrections, self.request.conditions)
            is_settled = seen.passed or applies(seen.process)  # a process is measured once all else is as promised
            if is_settled or rounds == MOST_ROUNDS or (seen.is_broken and not planned.is_steady):
                break
            self.progress.stage(stages.LEARNING)
            if seen.is_broken:
                planned, notes = self._plain(planned), (WITHOUT_FORM,)
                continue
            again, room_bytes = self._again(planned, seen, corrections, room_bytes)
            if again is None or again.written is None:
                break
            planned = again
        return self._under_a_cap(found)

    def _as_loaded(self, found: Settled) -> Settled:
        """Without packed copies, where a process with them holds more than was predicted, and one without does not."""
        seen, written, files = found.seen, found.planned.written, self.request.files
        if written is None or seen is None or _is_as_predicted(seen):
            return found
        if not saves_packed(written, found.planned.prepared, files):
            return found
        self.progress.stage(stages.LEARNING)
        plain = msgspec.structs.replace(files, packed=False)
        other = replace(self, request=replace(self.request, files=plain))._in_one_session(found.planned)
        return _noted(replace(other, files=plain), WITHOUT_COPIES) if _needs_less(other.seen, seen) else found

    def _again(
        self, planned: PlannedModel, seen: Verification, corrections: Corrections, room_bytes: int
    ) -> tuple[PlannedModel | None, int]:
        """The plan made again after a run, and the room that it leaves in the budget; None: nothing helps."""
        if corrections:
            corrected = plan_corrected(planned, corrections, self.request, self.progress)
            if corrected.written is None:
                return self._tighter(planned) or corrected, room_bytes
            return corrected, room_bytes
        more_bytes = seen.family.excess_bytes if applies(seen.family) else 0
        if more_bytes:
            fuller = plan_with_more_inside(planned, more_bytes, self.request, self.progress)
            return (fuller if fuller.written is not None else self._tighter(planned) or fuller), room_bytes
        least = planned.answer.question.least
        if seen.within_budget or least:
            again = _as_measured(planned, seen)
            assert again.written is not None
            room = again.answer.question.budget_bytes - again.written.least_budget_bytes
            return again, max(0, room) if least else room_bytes
        assert planned.written is not None
        room_bytes += max(0, seen.most_measured_bytes - planned.written.least_budget_bytes)
        roomy = self._with_room(planned, room_bytes)
        if roomy is not None and roomy.written is not None:
            return roomy, room_bytes
        return self._tighter(planned), 0

    def _tighter(self, planned: PlannedModel) -> PlannedModel | None:
        """Another plan that holds less and takes no longer than it may; None where there is none."""
        found = None if planned.tighter is None else planned.tighter()
        return None if found is None else within_overhead(found, self.request.search)

    def _plain(self, planned: PlannedModel) -> PlannedModel:
        """The same plan without the steady form, inside which the runtime did not run it as planned."""
        plain = replace(planned, prepared=planned.prepared.without_form())
        return write_within_budget(plain, self.request.search, self.progress)

    def _with_room(self, planned: PlannedModel, room_bytes: int) -> PlannedModel | None:
        """A plan made again for so much less than the budget; None where that is nothing, or more than a small part."""
        if not 0 < room_bytes <= planned.answer.question.budget_bytes * MOST_ROOM_SHARE:
            return None
        return write_with_room(planned, room_bytes, self.request.search, self.progress)

    def _under_a_cap(self, found: Settled) -> Settled:
        """A tighter plan, where this one holds its promises but is no gain under a cap, and the other one is."""
        seen = found.seen
        if seen is None or not seen.passed or not seen.is_worse_under_cap:
            return found
        planned = self._tighter(found.planned)
        if planned is None or planned.written is None:
            return found
        other = self._verified(planned)
        return other if other.seen is not None and other.seen.passed and not other.seen.is_worse_under_cap else found

    def _counted(self, planned: PlannedModel) -> Settled:
        """Run the plan; where sessions hold more weights than was thought, count them and, if need be, plan again."""
        found = Settled(planned, None)
        for _ in range(ATTEMPTS):
            if found.planned.cut is None:
                return found
            found = self._verified(found.planned)
            seen = found.seen
            assert seen is not None
            if not seen.session_bytes:
                return found
            platform = found.planned.platform.with_session_bytes(seen.session_bytes)
            again = plan_again(found.planned, platform, self.request.search, self.progress)
            if again.cut is not None and again.plan.schedule == found.planned.plan.schedule:
                names = [memory.name for memory in again.answer.question.problem.memories]
                peaks = dict(zip(names, again.cut.peak_bytes, strict=True))
                return Settled(again, seen.with_sessions_counted(peaks))
            found = Settled(again, None)
        return found if found.planned.cut is None else self._verified(found.planned)

    def _in_the_faster_way(self, found: Settled, platform: Platform) -> Settled:
        """Where `auto`'s plan can also be one session, that if it holds its promises and is measured to be faster."""
        seen = found.seen
        if seen is None or not seen.passed or self.request.search.solver.name != AUTO:
            return found
        shared = as_one_session(replace(found.planned, platform=platform))
        if shared is None:
            return found
        try:
            other = self._as_one_session(shared)
        except RuntimeFailure as error:
            return _noted(found, f"as one session it was not run: {error}")
        if other is None or other.seen is None or not other.seen.passed:
            why = "its budgets do not hold" if other is None or other.seen is None else other.seen.failures[0]
            return _noted(found, f"as one session it was given up: {why}")
        took, took_apart = (f"{each.measured_time_ns / 1e6:.2f} ms" for each in (other.seen, seen))
        if other.seen.measured_time_ns < seen.measured_time_ns:
            return _noted(other, f"one session, in which the runtime copies by itself: {took}; cut: {took_apart}")
        return _noted(found, f"as one session it took {took}, not less than {took_apart}")

    def _as_one_session(self, planned: PlannedModel) -> Settled | None:
        """The plan as one session, run, with what that holds of weights; None where a budget does not hold then."""
        found = self._verified(planned)
        assert found.seen is not None
        if not found.seen.session_bytes:
            return found
        again = recounted(planned, found.seen.session_bytes)
        if again is None or again.cut is None:
            return None
        names = [memory.name for memory in again.answer.question.problem.memories]
        peaks = dict(zip(names, again.cut.peak_bytes, strict=True))
        return Settled(again, found.seen.with_sessions_counted(peaks))

    def _paged(self, planned: PlannedModel) -> Settled:
        """Run the plan; where sessions, or the process, hold more than was thought, plan for so much less room.

        What a process holds beside tensors (open sessions, the runtime's code) counts as held all through, so that a
        share of what planning can change stays that share, and bytes are the device's.
        """
        found = self._verified(planned)
        for number in range(PAGED_ATTEMPTS):
            more = _uncounted(found, RESIDENT_NOISE_BYTES << number)
            if not more:
                return found
            self.progress.stage(stages.LEARNING)
            platform = found.planned.platform.with_session_bytes(more)
            again = plan_paging(found.planned.prepared, platform, self.request, self.progress)
            if again.paged is None:
                return Settled(again, None) if again.written is None else self._in_one_session(again)
            found = _told(self._verified(again))
        return found

    def _on_devices(self, found: Settled, platform: Platform) -> Settled:
        """Where `auto`'s plan is not measured to be faster than the best one on one device, take that instead.

        It is judged on the platform as it was: what the other plan's sessions hold of weights says nothing of this one.
        """
        seen = found.seen
        if seen is None or seen.is_faster_than_single or self.request.search.solver.name != AUTO:
            return found
        planned = on_best_single(replace(found.planned, platform=platform))
        if planned is None:
            return found
        alone = self._counted(planned)
        if alone.seen is None or not alone.seen.passed:
            return found
        took, best = f"{seen.measured_time_ns / 1e6:.2f} ms", found.planned.single[0].device
        note = f"a plan on several devices took {took} and was not faster, so this one is for {best} alone"
        notes = (*alone.seen.notes, note)
        told = msgspec.structs.replace(alone.seen, rejected_time_ns=seen.measured_time_ns, notes=notes)
        return replace(alone, seen=told)


def _uncounted(found: Settled, noise_bytes: int) -> dict[str, int]:
    """By memory, what runs of a plan that pages were seen to hold beyond what was planned; nothing where all fits.

    A plan for less has other sessions, of which a process holds more or less: so somewhat more is left free.
    """
    seen = found.seen
    assert seen is not None
    more = seen.session_bytes or seen.unplanned_bytes
    if not more and seen.paging.excess_bytes:
        (memory,) = seen.peaks
        more = {memory: seen.paging.excess_bytes + noise_bytes}
    return more


def _told(found: Settled) -> Settled:
    """The same with a note of what is counted beside tensors."""
    counted = sum(found.planned.platform.session_bytes.values())
    assert found.seen is not None
    if found.seen.paging.resident is None:
        return found
    what = "for what processes were measured to hold beside tensors: open sessions and the runtime's code"
    return _noted(found, f"{format_bytes(counted)} of the budget are {what}")


def _is_as_predicted(seen: Verification) -> bool:
    """Whether no process was seen that held more than was predicted."""
    return not applies(seen.process) or seen.process is None or seen.process.is_as_predicted


def _needs_less(seen: Verification | None, other: Verification) -> bool:
    """Whether a plan was seen to be as predicted, and its process to hold no more than another one's."""
    if seen is None or not seen.passed or not applies(seen.process) or seen.process is None:
        return False
    assert other.process is not None
    return seen.process.is_as_predicted and seen.process.needed_bytes <= other.process.needed_bytes


def _noted(found: Settled, note: str) -> Settled:
    """The same with a note for people."""
    assert found.seen is not None
    return replace(found, seen=msgspec.structs.replace(found.seen, notes=(*found.seen.notes, note)))


def _as_measured(planned: PlannedModel, seen: Verification) -> PlannedModel:
    """A plan whose first prediction no rule puts right: it promises what was measured, and says so.

    For `min` the budget becomes what sessions were measured to need.
    """
    assert planned.written is not None
    assert isinstance(seen.measured_peak_bytes, int)
    assert isinstance(seen.predicted_peak_bytes, int)
    more = seen.measured_peak_bytes - seen.predicted_peak_bytes + planned.written.unexplained_bytes
    told = replace(planned, written=replace(planned.written, unexplained_bytes=more))
    if planned.answer.question.least:
        return with_budget(told, max(seen.most_measured_bytes, planned.written.plan.peak + more))
    return told
