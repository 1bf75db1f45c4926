"""Verify a plan, mend what verification shows to be mendable, and verify again, until all holds or nothing helps."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.core.verification import Verification
from remat_cli.onnx_io.load import save
from remat_cli.stages.ask import CompileRequest
from remat_cli.stages.place import AUTO, on_best_single, other_single, plan_again
from remat_cli.stages.planned import PlannedModel
from remat_cli.stages.platform import Platform
from remat_cli.stages.prepare import remember_cap
from remat_cli.stages.record import model_to_write, plan_file
from remat_cli.stages.verify import PlannedRun, verify_plan
from remat_cli.stages.write import with_budget, write_with_room

MOST_ROOM = 1.01  # of the least budget: more is no matter of small buffers
ATTEMPTS = 3  # to count what sessions hold of weights, which shows only when they are open


@dataclass(frozen=True)
class Settled:
    """A plan with what verification showed of it; None: it was not verified, or is none."""

    planned: PlannedModel
    seen: Verification | None


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
            return self._in_one_session(self._verified(planned))
        return self._on_devices(self._counted(planned), planned.platform)

    def _verified(self, planned: PlannedModel) -> Settled:
        """Run the plan file and its model."""
        path = Path(tempfile.mkdtemp(prefix="settle_", dir=self.work)) / "rewritten.onnx"
        save(model_to_write(planned), path)
        run = PlannedRun(plan_file(planned, self.request), path, other_single(planned))
        seen = verify_plan(run, planned.whole, path.parent, self.request.checks, self.progress)
        if planned.written is not None:
            remember_cap(planned.whole, seen, self.request.conditions)
        return Settled(planned, seen)

    def _in_one_session(self, found: Settled) -> Settled:
        """Where only room is lacking, make room; where only gaps in the arena stand in the way, plan tighter, once."""
        seen = found.seen
        assert seen is not None
        if seen.lacks_only_room:
            return self._with_room(found, seen)
        if seen.passed or not seen.lacks_only_cap or found.planned.tighter is None:
            return found
        tighter = found.planned.tighter()
        return found if tighter is None or tighter.written is None else self._verified(tighter)

    def _with_room(self, found: Settled, seen: Verification) -> Settled:
        """Make room for small buffers that a default session holds a little longer, because it knows their shapes.

        For `min` the budget becomes what such a session was measured to need, if that is nearly the same.
        """
        question = found.planned.answer.question
        least, budget_bytes = seen.measured_peak_default_session_bytes, question.budget_bytes
        if question.least and least > budget_bytes * MOST_ROOM:
            return found
        if question.least:
            seen = msgspec.structs.replace(seen, within_budget=True)
            return Settled(with_budget(found.planned, least), seen)
        roomy = write_with_room(found.planned, least - budget_bytes, self.request.search, self.progress)
        return found if roomy.written is None else self._verified(roomy)

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
