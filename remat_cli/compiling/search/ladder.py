"""What less memory would cost, said before anything is searched for: from plans that are kept, and by estimate."""

from dataclasses import replace
from pathlib import Path

from remat_cli.base.progress import silent
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.facts import known_facts_of
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.search.kept_curve import kept_curve
from remat_cli.compiling.search.loop import SplitTask
from remat_cli.compiling.search.tiles import Tiles
from remat_cli.core.values.budget import WHOLE
from remat_cli.core.values.curve import LadderStep, ladder_of

LADDER_SECONDS = 3.0
SHARES = (0.8, 0.5, 0.25, 0.65, 0.35, 0.15)
"""Of what planning can change: budgets for which splits are estimated, in this order, as time allows."""
MOST_PERCENT = 100.0
"""What a step of the ladder may cost."""


def ladder(prepared: Prepared, platform: Platform, request: CompileRequest, work: Path) -> tuple[LadderStep, ...]:
    """Budgets of live bytes that the model fits in, and what that costs; no run of the model is made for it."""
    search = request.search.within(LADDER_SECONDS).begun()
    curve = kept_curve(prepared, request).curve()
    if request.splits.mode == "off":
        return ladder_of(curve, [], MOST_PERCENT)
    task = SplitTask.unplanned(prepared, platform, replace(request, asked=WHOLE, search=search), work, silent())
    question, fixed_bytes = task.question, task.whole.profile.fixed_bytes
    facts = known_facts_of(prepared.reference_sha256, prepared.conditions)
    is_known = facts is not None and facts.can_be_raised is not None  # else runs of the model would say
    tiles = Tiles(task, may_fill=is_known)
    guesses = []  # splits that are proposed for ever smaller budgets
    for share in SHARES:
        aim = int(share * (question.baseline.peak - fixed_bytes))
        for proposal in tiles.propose(aim, search.clock.left):
            if proposal.regions:
                percent = 100 * proposal.added_ns / task.baseline_ns
                guesses.append(LadderStep(fixed_bytes + proposal.peak_bytes, percent, is_estimate=True))
    return ladder_of(curve, guesses, MOST_PERCENT)
