"""Splits of a model that other budgets led to: what fits a smaller budget fits a larger one, and may be faster."""

from __future__ import annotations

import msgspec

from remat_cli.compiling.facts import KnownSplit, known_facts_of, remember_facts
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.schedule.splits import SplitOptions
from remat_cli.splitting.tiles.propose import SplitProposal

MOST_KEPT = 16


def known_splits(whole: Prepared, options: SplitOptions) -> tuple[KnownSplit, ...]:
    """What earlier compiles of this model with these options found, fastest first."""
    facts = known_facts_of(whole.reference_sha256, whole.conditions)
    found = () if facts is None else facts.splits
    return tuple(sorted((known for known in found if known.options == _key(options)), key=_time))


def remember_split(found: OneModel, options: SplitOptions, proposal: SplitProposal) -> None:
    """Keep for other budgets that a search for a proposal like this led to this plan."""
    whole, baseline = found.whole, found.answer.question.baseline
    fresh = KnownSplit(
        options=_key(options),
        target_bytes=proposal.target_bytes,
        form=proposal.form,
        budget_bytes=found.written.least_budget_bytes,
        relative_time=found.plan.time_ns / max(1, baseline.time_ns),
    )
    facts = known_facts_of(whole.reference_sha256, whole.conditions)
    older = () if facts is None else facts.splits
    others = tuple(known for known in older if _asked(known) != _asked(fresh))
    remember_facts(whole.reference_sha256, whole.conditions, splits=(*others, fresh)[-MOST_KEPT:])


def _key(options: SplitOptions) -> str:
    return msgspec.json.encode((options.max_tiles, options.axis, options.allow_reassociation), order="sorted").decode()


def _asked(known: KnownSplit) -> tuple[object, ...]:
    return known.options, known.form, known.target_bytes


def _time(known: KnownSplit) -> float:
    return known.relative_time
