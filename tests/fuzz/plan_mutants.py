"""Plans that say something else than what was solved: none may be taken for true."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.batch import OUTPUT, PLAN
from tests.fuzz.outcomes import ACCEPTED, DISPROVED, FALSE_FIVE, NO_PLAN, OK, Case

COUNT = 300
VERIFY, INSPECT = "verify", "inspect"
SOURCE = "net.onnx"
HUGE = 10**18

Tree = Any
Mutation = Callable[[random.Random, Tree], None]
"""Changes a plan."""


def plan_cases() -> list[Case]:
    """Each way of changing a plan in turn, read by `verify` and `inspect` in turn."""
    ways = list(MUTATIONS)
    return [
        Case("plan", f"{ways[seed % len(ways)]} {seed}", (VERIFY, INSPECT)[seed // len(ways) % 2])
        for seed in range(COUNT)
    ]


def prepare_plan(case: Case, work: Path, materials: Path) -> list[str]:
    """The changed plan beside its models."""
    for name in (SOURCE, OUTPUT):
        shutil.copy(materials / name, work)
    plan = json.loads((materials / PLAN).read_text())
    way = case.name.rpartition(" ")[0]
    MUTATIONS[way](random.Random(case.name), plan)
    path = work / PLAN
    path.write_text(json.dumps(plan))
    return [VERIFY, str(path), "--verify", "fast"] if case.action == VERIFY else [INSPECT, str(path)]


def judge_plan(case: Case, outcome: str) -> str:
    """A plan that was changed where it matters and passes all the same is believed wrongly; to disprove it is right."""
    if outcome in (FALSE_FIVE, NO_PLAN):  # other outputs, or more memory than promised
        return DISPROVED
    return ACCEPTED if outcome == OK and case.name.rpartition(" ")[0] in FALSE_ALWAYS else outcome


def branches(tree: Tree) -> Iterator[tuple[Any, Any]]:
    """Every place in a tree: the dict or list, and the key in it."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from branches(value)


def drop_field(rng: random.Random, plan: Tree) -> None:
    """A field is missing."""
    holder, key = _field(rng, plan)
    del holder[key]


def rename_field(rng: random.Random, plan: Tree) -> None:
    """A field has another name."""
    holder, key = _field(rng, plan)
    holder[f"{key}_"] = holder.pop(key)


def _field(rng: random.Random, plan: Tree) -> tuple[Any, Any]:
    fields = [plan, *(holder[key] for holder, key in branches(plan) if isinstance(holder[key], dict) and holder[key])]
    holder = rng.choice(fields)
    return holder, rng.choice(list(holder))


def other_type(rng: random.Random, plan: Tree) -> None:
    """A value of another type."""
    holder, key = _field(rng, plan)
    holder[key] = rng.choice((None, "zzz", [], {}, -1, 0.5, HUGE, True))


def drop_instance(rng: random.Random, plan: Tree) -> None:
    """An instance of a tensor is removed."""
    plan["instances"].pop(rng.randrange(len(plan["instances"])))


def move_death(rng: random.Random, plan: Tree) -> None:
    """An instance dies earlier or later."""
    _shift(rng, rng.choice(plan["instances"]), "death", (-2, -1, 1, 2, HUGE, -HUGE))


def drop_step(rng: random.Random, plan: Tree) -> None:
    """A step of the schedule is removed."""
    plan["schedule"]["steps"].pop(rng.randrange(len(plan["schedule"]["steps"])))


def other_op(rng: random.Random, plan: Tree) -> None:
    """A step computes another op, or one that is not there."""
    step = rng.choice(plan["schedule"]["steps"])
    _shift(rng, step, "op", (-1, 1, HUGE, -HUGE))


def other_size(rng: random.Random, plan: Tree) -> None:
    """A tensor has another size."""
    _shift(rng, rng.choice(plan["graph"]["tensors"]), "size_bytes", (-1, 1, 4096, HUGE, -HUGE))


def negative_time(rng: random.Random, plan: Tree) -> None:
    """An op takes less than no time."""
    rng.choice(plan["profile"]["ops"])["time_ns"] = -rng.randint(1, 10**9)


def rename_op(rng: random.Random, plan: Tree) -> None:
    """An op of the promised order has another name."""
    order = plan["promise"]["order"]
    order[rng.randrange(len(order))] += "x"


def other_promise(rng: random.Random, plan: Tree) -> None:
    """The promised peak is another."""
    _shift(rng, plan["promise"], rng.choice(("peak_bytes", "fixed_bytes")), (-4096, HUGE, -HUGE))


def other_budget(rng: random.Random, plan: Tree) -> None:
    """The budget is one that nothing fits."""
    plan["request"]["budget_bytes"] = rng.choice((0, 1, -1, -HUGE))


def _shift(rng: random.Random, holder: dict[str, Any], key: str, ways: tuple[int, ...]) -> None:
    holder[key] += rng.choice(ways)


MUTATIONS: dict[str, Mutation] = {
    "field missing": drop_field,
    "field renamed": rename_field,
    "value of another type": other_type,
    "instance removed": drop_instance,
    "death moved": move_death,
    "step removed": drop_step,
    "op of a step changed": other_op,
    "size changed": other_size,
    "time negative": negative_time,
    "op renamed": rename_op,
    "promise changed": other_promise,
    "budget changed": other_budget,
}
FALSE_ALWAYS = frozenset(MUTATIONS) - {"field missing", "field renamed", "value of another type"}
"""Whatever these change is then wrong; a field that has a default, or is only told to people, may be missing."""
