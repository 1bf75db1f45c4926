"""The loop of every search for splits: what is built and planned, in which order, what is kept, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.progress import SPLITTING, LeftOut, Progress, Stage, silent
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.search import loop
from remat_cli.compiling.search.loop import KeepRule, SplitTrial, search

MAY_GO_ON = loop.may_go_on  # tests fail where it says yes, but for those that are about it

NOTHING: dict[str, Any] = {"prepared": None, "platform": None, "whole": None}


def plan_of(time_ns: int) -> OneModel:
    return OneModel(**NOTHING, answer=SimpleNamespace(known_plan=SimpleNamespace(time_ns=time_ns)), written=None)


@dataclass(frozen=True)
class Guess:
    """Costs so much once it is planned; None: no plan of it fits."""

    time_ns: int | None
    told: list[str]
    is_probe: bool = False
    is_usable: bool = True

    def measure(self) -> SplitTrial | None:
        self.told.append(f"measure {self.time_ns}")
        return SplitTrial(self, None, None, None) if self.is_usable else None

    def plan(self, trial: SplitTrial) -> OneModel | Refused:
        self.told.append(f"plan {self.time_ns}")
        return Refused(**NOTHING, answer=None) if self.time_ns is None else plan_of(self.time_ns)


@dataclass
class Guesses:
    """Proposes guesses one after another, and keeps what it saw of each."""

    guesses: list[Guess]
    seen: list[tuple[bool, bool, bool]] = field(default_factory=list)

    def propose(self, known):
        for guess in self.guesses:
            yield guess
            self.seen.append((known.trial is not None, isinstance(known.found, OneModel), known.is_kept))


def faster(one, other):
    return min(one, other, key=lambda each: each.time_ns)


def never(found):
    return False


@pytest.mark.parametrize(
    ("rule", "kept", "planned"),
    [
        (KeepRule(), 30, 1),
        (KeepRule(is_enough=never), 20, 3),
        (KeepRule(better=faster, is_enough=never), 10, 3),
        (KeepRule(admits=lambda found: found.time_ns < 25), 10, 2),
        (KeepRule(better=faster, is_enough=lambda found: found.time_ns < 15), 10, 2),
        (KeepRule(admits=never), None, 3),
    ],
)
def test_the_rule_says_what_is_kept_and_when_that_is_enough(rule, kept, planned):
    told: list[str] = []
    found = search(Guesses([Guess(time_ns, told) for time_ns in (30, 10, 20)]), rule, silent())
    assert (None if found is None else found.time_ns) == kept
    assert told == [f"{done} {time_ns}" for time_ns in (30, 10, 20)[:planned] for done in ("measure", "plan")]


def test_a_proposer_sees_what_became_of_each_candidate():
    told: list[str] = []
    guesses = [
        Guess(9, told, is_usable=False),
        Guess(None, told),
        Guess(8, told, is_probe=True),
        Guess(7, told),
        Guess(99, told),
    ]
    proposer = Guesses(guesses)
    found = search(proposer, KeepRule(better=faster, is_enough=never), silent())
    assert found.time_ns == 7
    assert proposer.seen == [
        (False, False, False),
        (True, False, False),
        (True, False, False),
        (True, True, True),
        (True, True, False),
    ]
    assert told == [
        "measure 9",
        "measure None",
        "plan None",
        "measure 8",
        "measure 7",
        "plan 7",
        "measure 99",
        "plan 99",
    ]


def test_what_is_beaten_once_it_was_measured_is_not_planned_and_its_proposer_sees_that():
    told, seen = list[str](), list[tuple[bool, bool]]()

    class Watching:
        def propose(self, known):
            for guess in (Guess(7, told), Guess(9, told), Guess(5, told)):
                yield guess
                seen.append((known.is_beaten, known.found is None))

    def is_beaten(trial, best):
        return best is not None and trial.candidate.time_ns > best.time_ns

    found = search(Watching(), KeepRule(better=faster, is_enough=never, beaten=is_beaten), silent())
    assert found.time_ns == 5
    assert told == ["measure 7", "plan 7", "measure 9", "measure 5", "plan 5"]
    assert seen == [(False, False), (True, True), (False, False)]


def test_once_told_to_stop_it_plans_what_was_measured_and_builds_nothing_more():
    told: list[str] = []
    guesses = [Guess(2, told, is_probe=True), Guess(1, told)]

    class Probing:
        def propose(self, known):
            yield guesses[0]
            trial = known.trial
            yield guesses[1]
            assert known.trial is None
            yield trial

    found = search(Probing(), KeepRule(), Progress(lambda event: None, lambda: bool(told)))
    assert found.time_ns == 2
    assert told == ["measure 2", "plan 2"]


@pytest.mark.parametrize("is_asked", [True, False])
def test_an_interrupted_measurement_is_no_trial_where_the_search_is_to_end(is_asked):
    asked: list[bool] = []

    class Interrupted(Guess):
        def measure(self):
            asked.append(is_asked)
            raise KeyboardInterrupt

    proposer = Guesses([Interrupted(1, [])])
    progress = Progress(lambda event: None, lambda: any(asked))
    if is_asked:
        assert search(proposer, KeepRule(), progress) is None
        assert proposer.seen == [(False, False, False)]
        return
    with pytest.raises(KeyboardInterrupt):
        search(proposer, KeepRule(), progress)


@pytest.mark.parametrize("is_asked", [True, False])
def test_ctrl_c_while_a_plan_is_made_leaves_the_best_so_far_where_the_search_is_to_end(is_asked):
    told: list[str] = []

    class Interrupted(Guess):
        def plan(self, trial):
            told.append("interrupted")
            raise KeyboardInterrupt

    guesses = [Guess(3, told), Interrupted(1, told), Guess(2, told)]
    progress = Progress(lambda event: None, lambda: is_asked and "interrupted" in told)
    rule = KeepRule(better=faster, is_enough=never)
    if not is_asked:
        with pytest.raises(KeyboardInterrupt):
            search(Guesses(guesses), rule, progress)
        return
    assert search(Guesses(guesses), rule, progress).time_ns == 3
    assert told == ["measure 3", "plan 3", "measure 1", "interrupted"]


@dataclass(frozen=True)
class Failing(Guess):
    """A guess that the runtime refuses when it is measured."""

    text: str = ""

    def measure(self) -> Any:
        raise RuntimeFailure(self.text)


REFUSED = "ONNX Runtime fails to load the tiles of m.onnx: Node (x) has no inputs"


def test_what_the_runtime_refuses_by_a_fault_of_ours_is_left_out_and_told(monkeypatch):
    monkeypatch.setattr(loop, "may_go_on", MAY_GO_ON)
    events = []
    proposer = Guesses([Failing(1, [], text=REFUSED), Guess(3, [])])
    best = search(proposer, KeepRule(), Progress(events.append))
    assert best.plan.time_ns == 3
    assert [event.text for event in events if isinstance(event, LeftOut)] == [loop.LEFT_OUT.format(REFUSED)]


def test_a_machine_without_memory_ends_the_search(monkeypatch):
    monkeypatch.setattr(loop, "may_go_on", MAY_GO_ON)
    with pytest.raises(RuntimeFailure, match="bad_alloc"):
        search(Guesses([Failing(1, [], text="bad_alloc"), Guess(3, [])]), KeepRule(), silent())


def test_looking_for_the_next_one_counts_as_the_search():
    told: list[str] = []
    progress = Progress(lambda event: told.append(event.text) if isinstance(event, Stage) else None, lambda: False)

    class Looking:
        def propose(self, known):
            for time_ns in (2, 1):
                told.append(f"look for {time_ns}")
                yield Guess(time_ns, told)

    search(Looking(), KeepRule(is_enough=lambda found: found.time_ns == 1), progress)
    first, second = ([f"look for {time_ns}", f"measure {time_ns}", f"plan {time_ns}"] for time_ns in (2, 1))
    assert told == [*first, SPLITTING, *second]
