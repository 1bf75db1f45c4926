"""Reorder, split, recompute: which model is planned, the whole one or one with regions in tiles."""

from __future__ import annotations

from pathlib import Path

import msgspec

from remat_cli.base.progress import Progress, silent
from remat_cli.core.problem import make_problem
from remat_cli.core.profile import Profile
from remat_cli.core.splits import Region, RegionFacts
from remat_cli.settings.config import Config
from remat_cli.stages.prepare import Prepared
from remat_cli.stages.solve import answer, ask, unsolved
from remat_cli.stages.splitter import WHOLE_SHARE, Planned, Splitter
from remat_cli.stages.write import write_within_budget

__all__ = ["Planned", "plan_model", "propose_regions"]

FREE_PERCENT = 0.5  # a plan of whole ops that costs no more than this is taken as it is


def plan_model(prepared: Prepared, profile: Profile, config: Config, work: Path, progress: Progress) -> Planned:
    """Plan whole ops; where that is not possible for free, plan with splits too and take what is better."""
    problem = make_problem(prepared.graph, profile, 0)
    question = ask(problem, config, tuple(op.name for op in prepared.graph.ops))
    share = 1.0 if config.split == "off" else WHOLE_SHARE
    limited = msgspec.structs.replace(config, time_limit_seconds=config.time_limit_seconds * share)
    first = answer(question, limited, progress)
    whole = Planned(prepared, profile, *write_within_budget(prepared, profile, first, config, progress))
    if config.split == "off" or (config.split == "auto" and _is_free(whole)):
        return whole
    return Splitter(whole, question, config, work, progress).best()


def propose_regions(
    prepared: Prepared, profile: Profile, config: Config, work: Path
) -> tuple[tuple[Region, ...], tuple[RegionFacts, ...], str | None]:
    """What would be split to meet the budget, estimated from the whole ops' figures, and what stands in the way."""
    question = ask(make_problem(prepared.graph, profile, 0), config)
    whole = Planned(prepared, profile, unsolved(question, config), None)
    return Splitter(whole, question, config, work, silent()).proposed()


def _is_free(whole: Planned) -> bool:
    """Whether a plan of whole ops needs nothing better."""
    question = whole.answer.question
    if whole.written is None or question.least:
        return False
    return whole.time_ns <= question.baseline.time_ns * (1 + FREE_PERCENT / 100)
