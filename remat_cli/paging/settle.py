"""Verify a plan that pages, and where sessions or the process hold more than was thought, plan for less room."""

from dataclasses import dataclass, replace

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.units import format_bytes
from remat_cli.compiling.learn.settle import AnySettled, Settled, Settling
from remat_cli.compiling.one_model.settle import ModelSettling
from remat_cli.compiling.placed.verify import PlacedRun
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.core.values.verification import PagedSeen
from remat_cli.paging.page import plan_paging
from remat_cli.paging.planned import Paged
from remat_cli.paging.record import record_paged, save_paged
from remat_cli.paging.verify import verify_paged

RESIDENT_NOISE_BYTES = 2**18  # by which two measurements of a process may differ
PAGED_ATTEMPTS = 5  # to plan for what a process was seen to hold, each with more room than the one before

PagedSettled = Settled[Paged, PagedSeen]


@dataclass(frozen=True)
class PagedSettling:
    """How plans that page are verified and mended."""

    how: Settling

    def settle(self, planned: Paged) -> AnySettled:
        """Run the plan; where sessions, or the process, hold more than was thought, plan for so much less room.

        What a process holds beside tensors (open sessions, the runtime's code) counts as held all through, so that a
        share of what planning can change stays that share, and bytes are the device's.
        """
        found, progress = self._verified(planned), self.how.progress
        for number in range(PAGED_ATTEMPTS):
            seen = found.seen
            more = seen.session_bytes or seen.unplanned_bytes
            if not more and seen.paging.excess_bytes:
                (memory,) = seen.peaks
                # Other sessions hold more or less in a process, so each new plan leaves twice as much more free.
                more = {memory: seen.paging.excess_bytes + (RESIDENT_NOISE_BYTES << number)}
            if not more:
                return found
            progress.stage(stages.LEARNING)
            platform = found.planned.platform.with_session_bytes(more)
            again = plan_paging(found.planned.prepared, platform, self.how.request, progress)
            if isinstance(again, Refused):
                return Settled(again, None)
            if isinstance(again, OneModel):
                return ModelSettling(self.how).in_one_session(again)
            found = self._verified(again)
            if found.seen.paging.resident is not None:
                counted = format_bytes(sum(again.platform.session_bytes.values()))
                what = "what processes were measured to hold beside tensors: open sessions and the runtime's code"
                notes = (*found.seen.notes, f"{counted} of the budget are for {what}")
                found = replace(found, seen=msgspec.structs.replace(found.seen, notes=notes))
        return found

    def _verified(self, planned: Paged) -> PagedSettled:
        """Run the plan file and its model."""
        path, request = self.how.new_path(), self.how.request
        save_paged(planned, path, request)
        run = PlacedRun(record_paged(planned, request), path)
        return Settled(planned, verify_paged(run, planned.whole, path.parent, request.checks, self.how.progress))
