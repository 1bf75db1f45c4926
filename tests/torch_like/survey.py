"""Compile a range of random models and say what became of each: `python -m tests.torch_like.survey 0 40`."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.torch_like.outcome import ERROR, FAILED, NO_PLAN, Outcome, outcome_of


def main() -> None:
    """One line per row, details where something went wrong, then a summary."""
    asked = _arguments()
    kept = Path(asked.save) if asked.save else None
    outcomes = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["REMAT_CACHE_DIR"] = asked.cache or cache
        for seed in range(asked.first, asked.last):
            for budget in asked.budget:
                outcomes.append(_row(seed, budget, kept, asked))
    say("")
    for line in summary(outcomes):
        say(line)


def _row(seed: int, budget: str, kept: Path | None, asked: argparse.Namespace) -> Outcome:
    """Compile one model, in a folder that stays where files are to be kept, and tell."""
    settings = {"time_limit": asked.time_limit, "split": asked.split, "capped_run": asked.capped_run}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) if kept is None else kept / f"{seed}_{budget.strip('%')}"
        place.mkdir(parents=True, exist_ok=True)
        if kept is not None:
            settings["work_dir"] = str(place / "work")
            (place / "work").mkdir(exist_ok=True)
        found = outcome_of(seed, budget, place, **settings)
    say(found.line)
    if found.status in (FAILED, ERROR) or (asked.verbose and found.status == NO_PLAN):
        for detail in (*found.details, f"families {','.join(found.families)}"):
            say(f"         {detail}")
    return found


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """How many rows ended how, and the seeds of all that were not exact at once."""
    total = Counter(found.status for found in outcomes)
    lines = [f"{len(outcomes)} rows: " + ", ".join(f"{count} {status}" for status, count in total.most_common())]
    kinds: dict[str, list[str]] = {}
    for found in outcomes:
        for kind in (*found.kinds, *found.learnt):
            word = kind.rpartition(" ")[0] if kind.rpartition(" ")[2][:1] in "+-" else kind
            kinds.setdefault(f"{found.status}: {word}", []).append(f"{found.seed}@{found.budget}")
    lines += [f"  {len(rows):4} {kind}  {' '.join(rows[:12])}" for kind, rows in sorted(kinds.items())]
    return lines


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)  # noqa: T201


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="the first seed that is not run")
    parser.add_argument("--budget", action="append", help="may be repeated; 60%% unless told")
    parser.add_argument("--time-limit", default="3s")
    parser.add_argument("--split", default=None, choices=["auto", "off", "max"])
    parser.add_argument("--save", help="a folder that keeps models, plans and intermediate files")
    parser.add_argument("--cache", help="a folder of measured profiles, to be used again")
    parser.add_argument("--no-capped-run", dest="capped_run", action="store_false", help="do not search caps: faster")
    parser.add_argument("--verbose", action="store_true", help="also say why there is no plan")
    asked = parser.parse_args()
    asked.budget = asked.budget or ["60%"]
    return asked


if __name__ == "__main__":
    main()
