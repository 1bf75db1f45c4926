"""Training steps that page to disk, really run, beside plans that only recompute and beside themselves in sequence.

`make bench-paging` runs all of it. `python -m bench.paging --models unet --budgets 50%` runs a part and prints it.
All plans of a model are run in turns, so that each sees the machine fast and slow; the least of all runs counts. A plan
is compared with the unplanned step as it was measured in the same turns, since times of ops are from another minute.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

import remat_cli
from bench.bench import Bench, Case, Key
from bench.compiling import Row, mib, table_lines, text
from bench.training import CASES, make_step
from remat_cli.base.errors import ConfigError
from remat_cli.compiling.program import input_specs, make_program
from remat_cli.compiling.record import find_file
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.schedule.program import Program
from remat_cli.onnx_io.read.load import prepare_optimized, state_beside
from remat_cli.onnx_io.read.told_inputs import told_inputs
from remat_cli.runtime.observe.paged_resident import see_resident
from remat_cli.runtime.segments.segment_run import ProgramJob, TimedRuns, time_runs_here
from remat_cli.runtime.sessions._ort import Array, pack_all, run_fresh
from remat_cli.runtime.sessions.feeds import feeds_of

MODELS = ("unet", "resnet18")
BUDGETS = ("50%", "35%")
KINDS = ("recompute only", "paging", "pofo", "auto")
RUNS, ROUNDS = 10, 3
FIGURES = ("planned_percent", "measured_percent", "against_plan_percent", "planned_stall_ms", "measured_stall_ms")
HEAD = (
    "model",
    "budget",
    "budget MiB",
    "plan",
    "held MiB",
    "process MiB",
    "out MiB",
    "back MiB",
    "planned +%",
    "measured +%",
    "against its plan %",
    "stalls planned ms",
    "stalls measured ms",
    "without overlap +%",
    "bits equal",
)


@dataclass(frozen=True)
class Ready:
    """A plan that can be run, with what `compile` said of it."""

    kind: str
    report: Any
    program: Program
    feeds: dict[str, Array]

    @property
    def pages(self) -> bool:
        """Whether anything moves."""
        return self.program.spill is not None and bool(self.program.spill.moves)


@click.command()
@click.option("--models", default=",".join(MODELS), show_default=True, help="Some of these.")
@click.option("--budgets", default=",".join(BUDGETS), show_default=True, help="Some of these.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Some of these.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="How often every plan has its turn.")
@click.option("--time-limit", default="5s", show_default=True)
@click.option("--write/--no-write", default=False, help="Write bench/results/paging.{jsonl,md}; other rows stay.")
def main(models: str, budgets: str, kinds: str, rounds: int, time_limit: str, write: bool) -> None:
    """Run the bench; pages lie in the folder for temporary files (TMPDIR)."""
    methods = kinds.split(",")
    with tempfile.TemporaryDirectory() as folder:

        def measured(name: str, keys: Sequence[Key]) -> Iterator[Row]:
            step, _ = make_step(name, Path(folder))
            for budget in dict.fromkeys(budget for _, budget, _ in keys):
                for row in _rows(step, budget, methods, time_limit, rounds):
                    yield {"model": name, "budget": budget, **row}

        pairs = [(budget, kind) for budget in budgets.split(",") for kind in methods]
        cases = (Case(name, [(name, *pair) for pair in pairs]) for name in models.split(","))
        replace(BENCH, table=lambda rows: _table(rows, rounds)).renew(cases, measured, keeps=write)


def _place(row: Row) -> tuple[int, int]:
    return list(CASES).index(row["model"]), -int(row["budget"].rstrip("%"))


def _rows(step: Path, budget: str, kinds: list[str], time_limit: str, rounds: int) -> Iterator[Row]:
    """A row per plan, all run in turns."""
    with tempfile.TemporaryDirectory(dir=step.parent) as folder:
        plain = ready("plain", step, _words("plain", step, "100%", time_limit), Path(folder))
        assert plain is not None
        found = [ready(kind, step, _words(kind, step, budget, time_limit), Path(folder)) for kind in kinds]
        plans = [each for each in found if each is not None]
        overlapped: dict[str, list[TimedRuns]] = {}
        waited: dict[str, list[TimedRuns]] = {}
        for _ in range(rounds):
            for each in (plain, *plans):
                overlapped.setdefault(each.kind, []).append(timed(each.program, each.feeds))
                if each.pages:
                    waited.setdefault(each.kind, []).append(timed(each.program, each.feeds, is_overlapped=False))
        base = fastest(overlapped["plain"])
        for each in plans:
            yield _row(each, base, overlapped, waited)


def _row(
    each: Ready,
    base: TimedRuns,
    overlapped: dict[str, list[TimedRuns]],
    waited: dict[str, list[TimedRuns]],
) -> Row:
    best = fastest(overlapped[each.kind])
    alone = fastest(waited[each.kind]) if each.kind in waited else None
    resident = see_resident(each.program, each.feeds)
    fed_bytes = sum(array.nbytes for array in each.feeds.values())
    solution, spill = each.report.solution, each.program.spill
    least = base.fastest.total_ns
    return {
        "plan": each.kind,
        "budget_bytes": solution.budget_bytes,
        "peak_bytes": solution.peak_bytes,
        "process_bytes": None if resident is None else resident.peak_bytes + fed_bytes,
        "written_bytes": _moved(each.program, "write"),
        "read_bytes": _moved(each.program, "read"),
        "planned_percent": solution.overhead_percent,
        "measured_percent": _percent(best.fastest.total_ns, least),
        "against_plan_percent": _percent(best.fastest.total_ns, solution.time),
        "planned_stall_ms": None if spill is None else spill.stall_ns / 1e6,
        "measured_stall_ms": None if spill is None else best.fastest.stall_ns / 1e6,
        "waited_percent": None if alone is None else _percent(alone.fastest.total_ns, least),
        "plain_ms": least / 1e6,
        "bits_equal": best.outputs == base.outputs,
        "recomputed_ops": solution.recomputed_ops,
        "best_from": solution.facts.get("best_from"),
    }


def _words(kind: str, step: Path, budget: str, time_limit: str) -> dict[str, Any]:
    """What `compile` is asked for a plan of a kind."""
    words: dict[str, Any] = {"budget": budget, "verify": False, "split": "off", "time_limit": time_limit}
    words["budget_scope"] = "live"
    if kind not in ("plain", "recompute only"):  # verified, so that what the process holds beside tensors is planned
        words |= {"solver": kind, "spill": f"disk:{step.parent}", "verify": "fast"}
    return words


def ready(kind: str, step: Path, words: dict[str, Any], folder: Path) -> Ready | None:
    """A plan of a kind; None where `compile` finds none, or does not take the model."""
    name = f"{step.stem}.{kind.replace(' ', '_')}.onnx"
    try:
        report = remat_cli.compile(step, output=step.with_name(name), force=True, **words)
    except ConfigError as error:
        click.echo(f"{step.stem} {words['budget']} {kind}: {error}", err=True)
        return None
    if report.plan is None:
        click.echo(f"{step.stem} {words['budget']} {kind}: no plan", err=True)
        return None
    path = Path(report.plan)
    read = read_plan(path)
    own = folder / kind.replace(" ", "_")
    own.mkdir()
    model = find_file(read.output, path, "model")
    written = prepare_optimized(model)
    feeds = feeds_of(input_specs(read), state_beside(written, model), None, 0, told_inputs(written))
    return Ready(kind, report, make_program(read, path, own), feeds)


def timed(program: Program, feeds: dict[str, Array], *, is_overlapped: bool = True) -> TimedRuns:
    """A few runs in a fresh process."""
    return run_fresh(time_runs_here, ProgramJob(program, pack_all(feeds), RUNS, is_overlapped=is_overlapped))


def fastest(found: list[TimedRuns]) -> TimedRuns:
    """Of several turns the one with the fastest run."""
    return min(found, key=lambda each: each.fastest.total_ns)


def _moved(program: Program, direction: str) -> int:
    moves = () if program.spill is None else program.spill.moves
    return sum(move.size_bytes for move in moves if move.direction == direction)


def _percent(took: int, least: int) -> float:
    return round(100 * (took - least) / least, 2)


def _table(rows: list[Row], rounds: int = ROUNDS) -> str:
    """The results as Markdown, one row per plan."""
    lines = [
        "# Training steps that page to disk, run",
        "",
        "Generated by `make bench-paging`: steps by `remat train` (SGD), plans by `remat compile --spill`, searched",
        f"for 5 s each, run in turns in fresh processes: {rounds} turns of {RUNS} runs each, the least of all.",
        "Profiles are of the machine with nothing else running (a fresh `REMAT_CACHE_DIR`). The budget is that",
        "share of what planning can change; plans that page are verified, and what their processes were measured to",
        "hold beside tensors (open sessions, the runtime's code) is counted in the budget and in what is *held*,",
        "planned again where need be. *process* is how far a process rises above an idle runtime that opens the",
        "plan and runs it three times, and its inputs. A plan that only recomputes bounds tensors alone: its",
        "process holds much more ([paging_process.md](paging_process.md): budgets for the whole process). *planned*",
        "and *measured* are against the unplanned step in one session, planned and measured; *against its plan* is",
        "the measured time against the planned one; *without overlap* is the same plan when every transfer is",
        "waited for where it is issued, against the unplanned step. `auto` takes one that only recomputes where",
        "that is planned to be fastest.",
        "",
    ]
    return "\n".join([*lines, *table_lines(HEAD, [_cells(row) for row in rows])]) + "\n"


def _cells(row: Row) -> list[str]:
    return [
        row["model"],
        row["budget"],
        mib(row["budget_bytes"]),
        row["plan"],
        mib(row["peak_bytes"]),
        mib(row["process_bytes"]),
        mib(row["written_bytes"]),
        mib(row["read_bytes"]),
        *(text(row[key]) for key in FIGURES),
        text(row["waited_percent"]),
        "yes" if row["bits_equal"] else "NO",
    ]


BENCH = Bench("paging", ("model", "budget", "plan"), _table, json.dumps, _place)

if __name__ == "__main__":
    main()
