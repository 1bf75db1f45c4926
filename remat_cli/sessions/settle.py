"""Verify a plan on devices, count what its sessions hold, and take what is measured to be faster."""

from dataclasses import dataclass, replace

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.compiling.learn.settle import Settled, Settling
from remat_cli.compiling.placed.verify import PlacedRun
from remat_cli.compiling.planned import Refused, Sessions
from remat_cli.compiling.platform import Platform
from remat_cli.core.values.verification import SessionsSeen
from remat_cli.sessions.place import AUTO, as_one_session, on_best_single, other_single, plan_again, recounted
from remat_cli.sessions.record import record_sessions, save_sessions
from remat_cli.sessions.verify import verify_on_devices

ATTEMPTS = 3  # to count what sessions hold of weights, which shows only when they are open

SessionsSettled = Settled[Sessions, SessionsSeen]


@dataclass(frozen=True)
class SessionsSettling:
    """How plans on devices are verified and mended."""

    how: Settling

    def settle(self, planned: Sessions) -> SessionsSettled | Settled[Refused, None]:
        """The plan as it is to be written; refused where what sessions hold leaves none."""
        found, platform = self._counted(planned), planned.platform
        if isinstance(found, Refused):
            return Settled(found, None)
        # Where `auto`'s plan is not measured to be faster than the best one on one device, that instead, judged on the
        # platform as it was: what the other plan's sessions hold of weights says nothing of this one.
        chosen = self._in_the_faster_way(found, platform)
        seen = chosen.seen
        if seen.is_faster_than_single or self.how.request.search.solver.name != AUTO:
            return chosen
        single = on_best_single(replace(chosen.planned, platform=platform))
        if single is None:
            return chosen
        alone = self._counted(single)
        if isinstance(alone, Refused) or not alone.seen.passed:
            return chosen
        took, best = f"{seen.measured_time_ns / 1e6:.2f} ms", chosen.planned.single[0].device
        note = f"a plan on several devices took {took} and was not faster, so this one is for {best} alone"
        notes = (*alone.seen.notes, note)
        told = msgspec.structs.replace(alone.seen, rejected_time_ns=seen.measured_time_ns, notes=notes)
        return replace(alone, seen=told)

    def _verified(self, planned: Sessions) -> SessionsSettled:
        """Run the plan file and its model."""
        path, request = self.how.new_path(), self.how.request
        save_sessions(planned, path, request)
        run = PlacedRun(record_sessions(planned, request), path, other_single(planned))
        return Settled(planned, verify_on_devices(run, planned.whole, path.parent, request.checks, self.how.progress))

    def _counted(self, planned: Sessions) -> SessionsSettled | Refused:
        """Run the plan; where sessions hold more weights than was thought, count them and, if need be, plan again."""
        for _ in range(ATTEMPTS):
            found = self._verified(planned)
            if not found.seen.session_bytes:
                return found
            platform = planned.platform.with_session_bytes(found.seen.session_bytes)
            again = plan_again(planned, platform, self.how.request.search, self.how.progress)
            if isinstance(again, Refused):
                return again
            if again.plan.schedule == planned.plan.schedule:
                return Settled(again, found.seen.with_sessions_counted(again.peaks))
            planned = again
        return self._verified(planned)

    def _in_the_faster_way(self, found: SessionsSettled, platform: Platform) -> SessionsSettled:
        """Where `auto`'s plan can also be one session, that if it holds its promises and is measured to be faster."""
        seen = found.seen
        if not seen.passed or self.how.request.search.solver.name != AUTO:
            return found
        shared = as_one_session(replace(found.planned, platform=platform))
        if shared is None:
            return found
        try:
            counted = self._verified(shared)
            other: SessionsSettled | None = counted
            if counted.seen.session_bytes:
                again = recounted(shared, counted.seen.session_bytes)
                other = None if again is None else Settled(again, counted.seen.with_sessions_counted(again.peaks))
        except RuntimeFailure as error:
            return _noted(found, f"as one session it was not run: {error}")
        if other is None or not other.seen.passed:
            why = "its budgets do not hold" if other is None else other.seen.failures[0]
            return _noted(found, f"as one session it was given up: {why}")
        took, took_apart = (f"{each.measured_time_ns / 1e6:.2f} ms" for each in (other.seen, seen))
        if other.seen.measured_time_ns < seen.measured_time_ns:
            return _noted(other, f"one session, in which the runtime copies by itself: {took}; cut: {took_apart}")
        return _noted(found, f"as one session it took {took}, not less than {took_apart}")


def _noted(found: SessionsSettled, note: str) -> SessionsSettled:
    """What was found, with a note for people."""
    return replace(found, seen=msgspec.structs.replace(found.seen, notes=(*found.seen.notes, note)))
