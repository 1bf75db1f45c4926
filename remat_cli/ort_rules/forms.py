"""Which form a written model takes: the one in which a process holds least, by simulation of arena and pattern."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from remat_cli.core.values.resident import RunsForecast
from remat_cli.ort_rules.arena import ArenaRules
from remat_cli.ort_rules.forecast import Judged, most_of, own_requests, predict_runs, predict_runs_below
from remat_cli.ort_rules.records import rules_for
from remat_cli.ort_rules.requests import Request
from remat_cli.ort_rules.runtime import Runtime
from remat_cli.ort_rules.steady import SteadyBranch, SteadyForm, steady_requests

LEAST_GAIN_BYTES = 2**20
LEAST_GAIN_SHARE = 0.05
MOST_TIME_SHARE = 0.02
PROLOGUE_NS = 20_000  # what the form's own ops take
BALLAST_SHARE = 1.25  # of what may be live: gaps of the arena need room too, and who caps the arena caps the ballast
NO_BALLAST = SteadyForm()
MOST_BALLASTS = 3
MOST_REQUESTS, LEAST_FORMS = 300_000, 8  # simulated in the search for ballasts, run by run; forms tried in any case
RESERVED_SHARE = 0.02
LEAST_STEP_SHARE = 0.005  # by which one more ballast, or another one, has to be better


def may_gain(without: RunsForecast) -> bool:
    """Whether a process holds enough without the form for it to save anything worth while."""
    return without.most_bytes >= LEAST_GAIN_BYTES


@dataclass(frozen=True)
class Formed:
    """A form, and what runs take in it; no form: the file is as it was written."""

    form: SteadyForm | None
    runs: RunsForecast


@dataclass(frozen=True)
class InForm:
    """A plan in the branch of the form, the outputs that are made before it begins, and the runtime that runs it.

    `plans`: as each kind of processor runs it, where sessions bring the file into layouts of their own.
    """

    plans: tuple[Judged, ...]
    branch: SteadyBranch
    early: tuple[str, ...]
    runtime: Runtime

    @property
    def arena(self) -> ArenaRules:
        """How its arena takes memory."""
        return rules_for(self.runtime).arena

    @property
    def requests(self) -> tuple[tuple[tuple[Request, ...], tuple[int, ...]], ...]:
        """What one run asks for without the form, and copies of weights in the arena, each once."""
        return tuple(dict.fromkeys((own_requests(each, self.runtime), each.copies) for each in self.plans))

    def runs(self, form: SteadyForm, requests: tuple[Request, ...], copies: tuple[int, ...]) -> RunsForecast:
        """What runs take with a form."""
        return predict_runs(steady_requests(requests, self.branch, form), self.runtime, form, copies)

    def runs_below(
        self, most_bytes: int, form: SteadyForm, requests: tuple[Request, ...], copies: tuple[int, ...]
    ) -> RunsForecast | None:
        """The same; None as soon as they hold no less than `most_bytes`."""
        asked = steady_requests(requests, self.branch, form)
        return predict_runs_below(most_bytes, asked, self.runtime, form, copies)


def best_form(without: RunsForecast, within: InForm, most_bytes: int, below_bytes: int | None = None) -> Formed:
    """The form in which a process holds least; none where that saves little, or takes more than a little time.

    Without an arena there are no regions to make, so no ballasts either.

    `without` is what runs take without the form; `most_bytes` are there for activations. What holds no less than
    `below_bytes` is not wanted.
    """
    ballasts = _ballasts(BALLAST_SHARE * most_bytes, within.arena) if within.runtime.options.has_arena else ()
    counts = range(1, 1 + MOST_BALLASTS)  # forms with fewer ballasts come first
    chosen = itertools.chain.from_iterable(itertools.combinations(ballasts, count) for count in counts)
    best = _leanest(within, itertools.chain([NO_BALLAST], map(SteadyForm, chosen)), _price, below_bytes)
    gain = max(LEAST_GAIN_BYTES, LEAST_GAIN_SHARE * without.most_bytes)
    if best is None or best.form is None or without.most_bytes - best.runs.most_bytes < gain:
        return Formed(None, without)
    return replace(best, form=replace(best.form, early=within.early))


def roomy_form(within: InForm, most_bytes: int) -> Formed:
    """The form for a model of many sizes, which must have one, with a region that has room for all.

    The runtime uses the pattern of one size for others; and where regions just fit the tensors of one size, each other
    size takes more of them.
    """

    def price_at_all(form: SteadyForm, runs: RunsForecast) -> float:
        """What is held at many sizes: others than the largest fill regions for small tensors, which it left empty."""
        smaller = sum(2 * (ballast - within.arena.unit_bytes) for ballast in form.ballast_bytes[:-1])
        return _price(form, runs) + smaller

    if not within.runtime.options.has_arena:
        return _bare(within)
    enough = within.arena.first_region_bytes // 2 + within.arena.unit_bytes
    *smaller, largest = _ballasts(BALLAST_SHARE * most_bytes, within.arena) or [enough]
    # The region with room for all is alone, or behind one for small tensors.
    forms = [SteadyForm((largest,)), *(SteadyForm((small, largest)) for small in smaller)]
    best = _leanest(within, forms, price_at_all)
    return best or _bare(within)


def _bare(within: InForm) -> Formed:
    """The form without ballasts."""
    return Formed(NO_BALLAST, most_of([within.runs(NO_BALLAST, *each) for each in within.requests]))


def _leanest(
    within: InForm,
    forms: Iterable[SteadyForm],
    price: Callable[[SteadyForm, RunsForecast], float],
    below_bytes: int | None = None,
) -> Formed | None:
    """The form under which the arena comes to hold least; None where its own ops take too long.

    Small tensors go into small regions where there are some, and then do not lie in the way of large ones.
    """
    if MOST_TIME_SHARE * within.plans[0].plan.time_ns < PROLOGUE_NS:
        return None
    kinds = within.requests
    best: Formed | None = None
    for form in itertools.islice(forms, 1 + max(LEAST_FORMS, MOST_REQUESTS // sum(len(asked) for asked, _ in kinds))):
        most_bytes = below_bytes if best is None else int(best.runs.most_bytes * (1 - LEAST_STEP_SHARE))
        if most_bytes is None:
            runs: RunsForecast | None = most_of([within.runs(form, *each) for each in kinds])
        else:
            below = (within.runs_below(most_bytes, form, *each) for each in kinds)
            found = list(itertools.takewhile(lambda each: each is not None, below))  # one that is not wanted ends it
            runs = most_of([each for each in found if each is not None]) if len(found) == len(kinds) else None
        if runs is not None and (best is None or price(form, runs) < price(best.form or form, best.runs)):
            best = Formed(form, runs)
    return best


def _price(_: SteadyForm, runs: RunsForecast) -> float:
    """Count what is resident, and a little of what is only reserved: some systems count that too."""
    return runs.most_bytes + RESERVED_SHARE * runs.reserved_bytes


def _ballasts(most_bytes: float, arena: ArenaRules) -> list[int]:
    """Sizes of workspaces, each of which makes the arena take a region of another of its sizes."""
    doublings = (arena.first_region_bytes << number for number in itertools.count())
    sizes = (each // 2 + arena.unit_bytes for each in doublings)
    return list(itertools.takewhile(lambda size: size <= most_bytes, sizes))
