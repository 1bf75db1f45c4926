"""Verify a plan that is one model, learn from where it was not as predicted, plan again, until all holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import UNSET

from remat_cli.base import progress as stages
from remat_cli.compiling.learn.corrections import Corrections, remember_corrections
from remat_cli.compiling.learn.learn import (
    corrections_of,
    noted,
    plan_corrected,
    plan_with_more_inside,
    plan_with_workspace,
    workspaces_of,
)
from remat_cli.compiling.learn.settle import Settled, Settling
from remat_cli.compiling.one_model.files import save_model
from remat_cli.compiling.one_model.record import record_model
from remat_cli.compiling.one_model.remembered import remember_cap, remember_process
from remat_cli.compiling.one_model.verify import ModelRun, verify_model
from remat_cli.compiling.plan import within_overhead
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.process.forecast import saves_packed
from remat_cli.compiling.search.kept_curve import keep_seen
from remat_cli.compiling.write import with_budget, write_with_room, write_within_budget
from remat_cli.core.files.plan_file import written_bytes
from remat_cli.core.values.learning import Learnt
from remat_cli.core.values.verification import OneModelSeen
from remat_cli.onnx_io.write.save import check_room_as
from remat_cli.ort_rules.lessons import Lesson

MOST_ROUNDS = 4  # of learning from a run and planning again
MOST_ROOM_SHARE = 0.02  # of the budget: what rules cannot explain is small
WITHOUT_FORM = (
    "written without the steady form, in which the runtime did not run it as planned: later runs take a block for all"
)
WITHOUT_COPIES = (
    "written without packed copies of weights: a process that loads them was measured to hold more than was predicted"
)

ModelSettled = Settled[OneModel, OneModelSeen]


@dataclass(frozen=True)
class ModelSettling:
    """How plans that are one model are verified and mended."""

    how: Settling

    def settle(self, planned: OneModel) -> ModelSettled:
        """The plan as it is to be written."""
        found = self._as_loaded(self.in_one_session(planned))
        if planned.dims is None and planned.whole.runnable is None:
            keep_seen(found.planned, self.how.request, passed=found.seen.passed)
        return found

    def _seen(self, planned: OneModel) -> tuple[ModelSettled, tuple[Lesson, ...]]:
        """Run the plan file and its model; also where runs left the judge."""
        path, request = self.how.new_path(), self.how.request
        save_model(planned, path, request, outlasts=False)
        draft = record_model(planned, request)
        if request.outputs is not None:
            check_room_as(path, request.outputs[0], {request.outputs[1]: written_bytes(draft)})
        twin = None if planned.twin is None else planned.twin()
        run = ModelRun(draft, path, planned.written.sessions, twin)
        seen, lessons = verify_model(run, planned.whole, path.parent, request.checks, self.how.progress)
        remember_cap(planned.whole, seen, request.conditions)
        remember_process(planned.whole, seen, request.conditions)
        return Settled(planned, seen), lessons

    def in_one_session(self, planned: OneModel) -> ModelSettled:
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
                remember_corrections(corrections, self.how.request.conditions)
            is_settled = seen.passed or seen.process is not UNSET  # a process is measured once all else is as promised
            if is_settled or rounds == MOST_ROUNDS or (seen.is_broken and not planned.is_steady):
                break
            self.how.progress.stage(stages.LEARNING)
            again: OneModel | Refused | None
            if seen.is_broken:
                plain = replace(planned, prepared=planned.prepared.without_form())
                again = write_within_budget(plain, self.how.request.search, self.how.progress)
                notes = (WITHOUT_FORM,)
            else:
                again, room_bytes = self._again(planned, seen, lessons, corrections, room_bytes)
            if not isinstance(again, OneModel):
                break
            planned = again
        return self._under_a_cap(found)

    def _as_loaded(self, found: ModelSettled) -> ModelSettled:
        """Without packed copies, where a process with them holds more than was predicted, and one without does not."""
        seen, files = found.seen, self.how.request.files
        if not seen.process or seen.process.is_as_predicted:
            return found
        if not saves_packed(found.planned.written, found.planned.prepared, files):
            return found
        self.how.progress.stage(stages.LEARNING)
        plain = msgspec.structs.replace(files, packed=False)
        how = replace(self.how, request=replace(self.how.request, files=plain))
        other = ModelSettling(how).in_one_session(found.planned)
        told = msgspec.structs.replace(other.seen, notes=(*other.seen.notes, WITHOUT_COPIES))
        if not told.passed or not told.process or not told.process.is_as_predicted:
            return found
        needs_more = told.process.needed_bytes > seen.process.needed_bytes
        return found if needs_more else Settled(other.planned, told, files=plain)

    def _again(
        self,
        planned: OneModel,
        seen: OneModelSeen,
        lessons: Sequence[Lesson],
        corrections: Corrections,
        room_bytes: int,
    ) -> tuple[OneModel | Refused | None, int]:
        """The plan made again after a run, and the room that it leaves in the budget; None: nothing helps."""
        better = self._better_known(planned, seen, lessons, corrections)
        if better is not None:
            return (self._tighter(planned) or better if isinstance(better, Refused) else better), room_bytes
        least = planned.answer.question.least
        if seen.within_budget or least:
            # A plan whose first prediction no rule puts right: it promises what was measured, and says so.
            # For `min` the budget becomes what sessions were measured to need.
            more = seen.measured_peak_bytes - seen.predicted_peak_bytes + planned.written.unexplained_bytes
            again = replace(planned, written=replace(planned.written, unexplained_bytes=more))
            if least:
                again = with_budget(again, max(seen.most_measured_bytes, planned.written.plan.peak + more))
            room = again.answer.question.budget_bytes - again.written.least_budget_bytes
            return again, max(0, room) if least else room_bytes
        room_bytes += max(0, seen.most_measured_bytes - planned.written.least_budget_bytes)
        if 0 < room_bytes <= planned.answer.question.budget_bytes * MOST_ROOM_SHARE:
            roomy = write_with_room(planned, room_bytes, self.how.request.search, self.how.progress)
            if isinstance(roomy, OneModel):
                return roomy, room_bytes
        return self._tighter(planned), 0

    def _better_known(
        self, planned: OneModel, seen: OneModelSeen, lessons: Sequence[Lesson], corrections: Corrections
    ) -> OneModel | Refused | None:
        """The plan made again with what a run showed of ops; None where it showed nothing that a rule has."""
        request, progress = self.how.request, self.how.progress
        if corrections:
            return plan_corrected(planned, corrections, request, progress)
        workspaces = workspaces_of(planned, lessons)
        if workspaces:
            return plan_with_workspace(planned, workspaces, request, progress)
        more_bytes = seen.family.excess_bytes if seen.family else 0
        return plan_with_more_inside(planned, more_bytes, request, progress) if more_bytes else None

    def _tighter(self, planned: OneModel) -> OneModel | Refused | None:
        """Another plan that holds less and takes no longer than it may; None where there is none."""
        found = None if planned.tighter is None else planned.tighter()
        return None if found is None else within_overhead(found, self.how.request.search)

    def _under_a_cap(self, found: ModelSettled) -> ModelSettled:
        """A tighter plan, where this one holds its promises but is no gain under a cap, and the other one is."""
        seen = found.seen
        if not seen.passed or not seen.is_worse_under_cap:
            return found
        planned = self._tighter(found.planned)
        if not isinstance(planned, OneModel):
            return found
        other, _ = self._seen(planned)
        return other if other.seen.passed and not other.seen.is_worse_under_cap else found
