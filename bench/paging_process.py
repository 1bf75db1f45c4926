"""Where a disk wins: training steps whose *process* is to stay within a budget, by recomputation and by paging.

`make bench-paging` runs it after `bench.paging`. Both plans of a budget are verified, which measures what a process
holds that runs them, and run in turns beside the unplanned step.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bench.bench import Bench, Case, Key
from bench.compiling import Row, mib, table_lines, text
from bench.paging import ROUNDS, RUNS, Ready, fastest, ready, timed
from bench.training import make_step
from remat_cli.core.values.verification import PagedSeen

BUDGETS_MIB = {"unet": (50, 42), "resnet18": (56, 48)}
RECOMPUTE, PAGING = "recompute only", "paging"
NAME = "paging_process"
HEAD = ("model", "budget MiB", "plan", "process MiB", "planned +%", "measured +%", "bits equal")


@click.command()
@click.option("--models", default=",".join(BUDGETS_MIB), show_default=True, help="Some of these.")
@click.option("--budgets", default="", help="Some of theirs, in MiB; all when empty.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="How often every plan has its turn.")
@click.option("--time-limit", default="5s", show_default=True)
@click.option("--write/--no-write", default=False, help=f"Write bench/results/{NAME}.{{jsonl,md}}; other rows stay.")
def main(models: str, budgets: str, rounds: int, time_limit: str, write: bool) -> None:
    """Run the bench; pages lie in the folder for temporary files (TMPDIR)."""
    wanted = [int(budget) for budget in filter(None, budgets.split(","))]
    with tempfile.TemporaryDirectory() as folder:

        def measured(name: str, keys: Sequence[Key]) -> Iterator[Row]:
            step, _ = make_step(name, Path(folder))
            for budget in dict.fromkeys(budget for _, budget, _ in keys):
                for row in _rows(step, budget, time_limit, rounds):
                    yield {"model": name, "budget_mib": budget, **row}

        def keys_of(name: str) -> list[Key]:
            return [(name, budget, way) for budget in wanted or BUDGETS_MIB[name] for way in (RECOMPUTE, PAGING)]

        cases = (Case(name, keys_of(name)) for name in models.split(","))
        replace(BENCH, table=lambda rows: _table(rows, rounds)).renew(cases, measured, keeps=write)


def _place(row: Row) -> tuple[int, int]:
    return list(BUDGETS_MIB).index(row["model"]), -int(row["budget_mib"])


def _rows(step: Path, budget: int, time_limit: str, rounds: int) -> Iterator[Row]:
    """A row per way, whether it has a plan or not."""
    words: dict[str, Any] = {"budget": f"{budget}MiB", "time_limit": time_limit, "verify": "fast", "split": "off"}
    ways: dict[str, dict[str, Any]] = {
        RECOMPUTE: {"budget_scope": "process", "verify": True},
        PAGING: {"solver": "paging", "spill": f"disk:{step.parent}"},
    }
    with tempfile.TemporaryDirectory(dir=step.parent) as folder:
        whole = {"budget": "100%", "budget_scope": "live", "verify": False, "split": "off", "time_limit": time_limit}
        plain = ready("plain", step, whole, Path(folder))
        assert plain is not None
        found = {kind: ready(kind, step, words | own, Path(folder)) for kind, own in ways.items()}
        base = _least_ns(plain, rounds)
        plans = [each for each in found.values() if each is not None]
        runs = {each.kind: [timed(each.program, each.feeds) for _ in range(rounds)] for each in plans}
        base = min(base, _least_ns(plain, rounds))
        expected = timed(plain.program, plain.feeds).outputs
        for kind, each in found.items():
            if each is None:
                yield {"plan": kind, "has_plan": False}
                continue
            best = fastest(runs[kind])
            yield {
                "plan": kind,
                "has_plan": True,
                "process_bytes": _process_bytes(each),
                "planned_percent": round(each.report.solution.overhead_percent, 2),
                "measured_percent": round(100 * (best.fastest.total_ns - base) / base, 2),
                "bits_equal": best.outputs == expected,
            }


def _least_ns(plain: Ready, rounds: int) -> int:
    return fastest([timed(plain.program, plain.feeds) for _ in range(rounds)]).fastest.total_ns


def _process_bytes(each: Ready) -> Any:
    """What verification saw a process hold, inputs included."""
    verification = each.report.verification
    if each.kind == PAGING:
        assert isinstance(verification, PagedSeen)
        return verification.paging.process_bytes
    process = verification.process_seen
    assert process is not None
    return process.needed_bytes


def _table(rows: list[Row], rounds: int = ROUNDS) -> str:
    """The results as Markdown, one row per budget and way."""
    lines = [
        "# Training steps within a budget for the whole process: recomputation beside a disk",
        "",
        "Generated by `make bench-paging`: the steps of [paging.md](paging.md), each compiled for the same bytes with",
        "`--budget-scope process` and with `--solver paging --spill disk:`, searched for 5 s, verified. *process* is",
        "what a process was measured to hold above an idle runtime, inputs included. *measured* is the least of",
        f"{rounds} turns of {RUNS} runs in fresh processes, against the unplanned step. *no plan*: none was found in",
        "that time whose process was measured to hold so little; that is no proof that there is none.",
        "",
    ]
    return "\n".join([*lines, *table_lines(HEAD, [_cells(row) for row in rows])]) + "\n"


def _cells(row: Row) -> list[str]:
    if not row["has_plan"]:
        return [row["model"], str(row["budget_mib"]), row["plan"], "no plan", "", "", ""]
    return [
        row["model"],
        str(row["budget_mib"]),
        row["plan"],
        mib(row["process_bytes"]),
        text(row["planned_percent"]),
        text(row["measured_percent"]),
        "yes" if row["bits_equal"] else "NO",
    ]


BENCH = Bench(NAME, ("model", "budget_mib", "plan"), _table, json.dumps, _place)

if __name__ == "__main__":
    main()
