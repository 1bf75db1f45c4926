"""Training steps of papers' networks under a budget: what saving memory costs, and how much larger a batch can be.

`make bench-train-curves` runs all of it. `python -m bench.training_curves --parts curve --networks vgg16 --write` runs
a part and leaves the other rows of the results as they are. Parts:

* `curve`: overhead against peak for every solver of the registry, as Figure 5 of Jain et al. 2020;
* `measured`: two points of each curve by `remat compile`, verified and timed;
* `quarter`: overhead at a quarter of the memory that keeping everything takes, as Table 2 of Schuler et al. 2022;
* `batch`: the largest batch by `remat max-batch`, as Figure 6 of Jain et al. 2020.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import msgspec

from bench.bench import Bench, Case, Key
from bench.compiling import OUTPUT, ROOT, Row, compile_row
from bench.curves_plot import compiled_of, curve_svg
from bench.curves_report import markdown
from remat_cli.base.errors import RematError
from remat_cli.base.progress import silent
from remat_cli.commands.asked import search_of
from remat_cli.commands.train import compile_settings
from remat_cli.compiling.ask import ask_abstract
from remat_cli.compiling.prepare import Prepared, prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.compiling.solve import answer
from remat_cli.compiling.step import make_step, write_step
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.budget import parse_budget
from remat_cli.core.values.profile import Profile
from remat_cli.core.values.training import StepPaths, TrainOptions
from remat_cli.report.solution import SolutionReport, solution_report
from remat_cli.runtime.measure.turns import TimeJob, time_models
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings
from remat_cli.settings.settings import Settings, load_settings
from remat_cli.solvers import SOLVERS, make_solver
from sample_models.papers import paper_model

NAME = "training_curves"
PERCENTS = (90, 80, 70, 60, 50, 40, 30)
COMPILED = ("80%", "60%")
QUARTER = "25%"
REFERENCE, BEST = "keep-all", "auto"
MISSES = 2  # a solver that finds nothing under so many budgets in a row is not asked for smaller ones
KEPT_BATCH = 4  # the budget of part `batch` is what keeping everything takes with this batch
ROUNDS = 25  # of both models in turn; least times count
BATCH_BITS: Mapping[str, tuple[str, ...]] = {"equal": (), "close": ("--allow-reassociation",)}
STEP = ("--loss", "cross-entropy", "--gradients-only")
TRAIN = TrainOptions(loss="cross-entropy", optimizer=None)

Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class Limits:
    """Seconds for each plan: of a curve, at a quarter, of a batch."""

    curve_seconds: float = 10.0
    quarter_seconds: float = 30.0
    batch_seconds: float = 5.0


@dataclass(frozen=True)
class Subject:
    """A training step that was prepared and measured op by op; `problem` has no budget yet."""

    path: Path
    prepared: Prepared
    problem: Problem
    profile: Profile
    settings: Settings

    def solve(self, budget: str, solver: str, seconds: float) -> SolutionReport:
        """What a solver reaches within a budget, judged."""
        search = search_of(msgspec.structs.replace(self.settings, solver=solver, time_limit_seconds=seconds))
        question = ask_abstract(self.problem, parse_budget(budget))
        found = answer(question, search, silent())
        return solution_report(found.run, question.problem, question.baseline)

    def facts(self) -> Row:
        """What keeping everything takes, and what no plan can change."""
        plan, floor = baseline(self.problem), working_set_floor(self.problem)
        cause = floor.ops[0]
        return {
            "ops": len(self.problem.ops),
            "fixed_bytes": self.profile.fixed_bytes,
            "kept_bytes": sum(tensor.size_bytes for tensor in self.problem.tensors if tensor.kept),
            "floor_bytes": floor.bytes[0],
            "floor_op": None if cause is None else self.prepared.graph.ops[cause].name,
            "baseline_bytes": plan.peak,
            "baseline_ns": plan.time_ns,
        }


# Sizes are such that activations are most of the memory and a run takes well under a second on two cores.
CURVES: Mapping[str, Sizes] = {
    "vgg16": {"batch": 16, "resolution": 128, "width": 0.125},
    "mobilenet": {"batch": 16, "resolution": 128, "width": 0.5},
    "unet_vgg": {"batch": 4, "resolution": (128, 192), "width": 0.125},
    "resnet50": {"batch": 16, "resolution": 128, "width": 0.125},
}
QUARTERS: Mapping[str, Sizes] = {
    "resnet18": {"batch": 32, "resolution": 128, "width": 0.125},
    "resnet34": {"batch": 32, "resolution": 128, "width": 0.125},
    "unet": {"batch": 4, "resolution": (128, 192), "width": 0.125},
}
BATCHES: Mapping[str, Sizes] = {
    "vgg16": {"resolution": 64, "width": 0.125, "classes": 10},
    "mobilenet": {"resolution": 64, "width": 0.25, "classes": 10},
    "unet_vgg": {"resolution": (64, 96), "width": 0.125},
    "resnet50": {"resolution": 64, "width": 0.125, "classes": 10},
    "resnet18": {"resolution": 64, "width": 0.125, "classes": 10},
}


def prepared(name: str, sizes: Sizes, folder: Path) -> Subject:
    """Build the training step of a network and measure it op by op."""
    model, step = folder / f"{name}.onnx", folder / f"{name}.train.onnx"
    model.write_bytes(paper_model(name, **sizes).SerializeToString())
    config = msgspec.structs.replace(load_settings({}), train=TRAIN, split="off")
    write_step(
        make_step(model, config.train, config.conditions, silent()), StepPaths(step, folder / f"{name}.state.npz")
    )
    settings = compile_settings(config)
    prepared_step = prepare(step, settings.conditions, folder, silent())
    profile = profile_model(prepared_step, settings.conditions, silent()).profile
    return Subject(step, prepared_step, make_problem(prepared_step.graph, profile), profile, settings)


def applicable(problem: Problem) -> tuple[str, ...]:
    """Solvers of the registry that take this problem; the reference is drawn as a point."""
    return tuple(name for name in SOLVERS if name != REFERENCE and make_solver(name).supports(problem) is None)


def budgets(subject: Row) -> tuple[str, ...]:
    """Shares of what planning can change, as far as the floor allows, and the floor itself in bytes."""
    fixed, whole = subject["fixed_bytes"], subject["baseline_bytes"]
    possible = [p for p in PERCENTS if fixed + Fraction(p, 100) * (whole - fixed) >= subject["floor_bytes"]]
    return (*(f"{p}%" for p in possible), str(subject["floor_bytes"]))


def curve_row(name: str, sizes: Sizes, folder: Path, limits: Limits) -> Row:
    """Every solver at every budget."""
    subject = prepared(name, sizes, folder)
    facts = subject.facts()
    points: list[Row] = []
    for solver in applicable(subject.problem):
        points += _points(subject, solver, budgets(facts), limits.curve_seconds)
    return {**facts, "limit_seconds": limits.curve_seconds, "points": points}


def measured_row(name: str, sizes: Sizes, folder: Path, limits: Limits) -> Row:
    """Two plans of a curve, written, verified and timed."""
    subject, flags = prepared(name, sizes, folder), ("--split", "off", *_limit(limits.curve_seconds))
    return {"compiled": [_compiled(subject, budget, flags, folder) for budget in COMPILED]}


def _points(subject: Subject, solver: str, wanted: tuple[str, ...], seconds: float) -> Iterator[Row]:
    """A solver at budgets from large to small, until it finds nothing any more or cannot go on."""
    misses = 0
    for budget in wanted:
        if misses == MISSES:
            yield {"solver": solver, "budget": budget, "status": "not_tried"}
            continue
        point = _point(subject, solver, budget, seconds)
        misses = 0 if point.get("peak_bytes") else misses + 1
        click.echo(f"  {solver:14} {budget:>10} {point['status']} {point.get('overhead_percent')}", err=True)
        yield point


def _point(subject: Subject, solver: str, budget: str, seconds: float) -> Row:
    try:
        found = subject.solve(budget, solver, seconds)
    except RematError as error:
        return {"solver": solver, "budget": budget, "status": "refused", "message": str(error)}
    keys = ("status", "space", "budget_bytes", "floor_bytes", "peak_bytes", "overhead_percent", "lower_bound_percent")
    known = {key: getattr(found, key) for key in (*keys, "recomputed_ops", "seconds")}
    return {"solver": solver, "budget": budget, **known}


def _limit(seconds: float) -> tuple[str, str]:
    return "--time-limit", f"{seconds:g}s"


def _compiled(subject: Subject, budget: str, flags: tuple[str, ...], folder: Path) -> Row:
    """A plan written by `remat compile`, verified and measured; without the search for the smallest cap."""
    row = compile_row(subject.path.stem, subject.path, budget, ("--no-capped-run", *flags), folder)
    solution, verification = (row["report"].get(key) or {} for key in ("solution", "verification"))
    return {
        "budget": budget,
        "exit_code": row["exit_code"],
        "message": row["message"],
        "fixed_bytes": solution.get("fixed_bytes"),
        "tiles": [region["tiles"] for region in row["report"].get("regions") or ()],
        **{key: verification.get(key) for key in VERIFIED},
        "measured_overhead_percent": _measured_percent(subject, folder / OUTPUT) if row["exit_code"] == 0 else None,
    }


def _measured_percent(subject: Subject, compiled: Path) -> float:
    """How much longer a run of the compiled step takes, by the least times of both models."""
    job = TimeJob(
        models=(str(subject.prepared.reference_path), str(compiled)),
        feeds=pack_all(subject.prepared.feeds),
        settings=SessionSettings(exact=False),
        rounds=ROUNDS,
    )
    before, after = run_fresh(time_models, job)
    return 100 * (after / before - 1)


VERIFIED = (
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "measured_peak_default_session_bytes",
    "predicted_overhead_percent",
    "outputs_identical",
    "order_honoured",
    "runtime_version",
)


def quarter_row(name: str, sizes: Sizes, folder: Path, limits: Limits) -> Row:
    """What a quarter of the memory costs; where that is too little for whole ops, also what the least budget costs."""
    subject, flags = prepared(name, sizes, folder), _limit(limits.quarter_seconds)
    points = [_point(subject, BEST, QUARTER, limits.quarter_seconds)]
    compiled = [_compiled(subject, QUARTER, flags, folder)]
    if points[0]["peak_bytes"] is None:
        points += [_point(subject, BEST, "min", limits.quarter_seconds)]
        least = str(points[1]["peak_bytes"])
        compiled += [_compiled(subject, least, ("--split", "off", *flags), folder)]
    return {**subject.facts(), "limit_seconds": limits.quarter_seconds, "points": points, "compiled": compiled}


def batch_row(name: str, sizes: Sizes, folder: Path, limits: Limits) -> Row:
    """The largest batch under the budget that keeping everything fills with a small one."""
    kept = prepared(name, {**sizes, "batch": KEPT_BATCH}, folder).facts()
    model = folder / f"{name}.onnx"
    model.write_bytes(paper_model(name, **sizes).SerializeToString())
    known = {"fixed_bytes": kept["fixed_bytes"], "limit_seconds": limits.batch_seconds}
    budget = ("--budget", str(kept["baseline_bytes"]), *_limit(limits.batch_seconds))
    return known | {"reports": {bits: _max_batch(model, (*budget, *flags)) for bits, flags in BATCH_BITS.items()}}


def _max_batch(model: Path, flags: tuple[str, ...]) -> Row:
    """What `remat max-batch` says of a model."""
    command = [sys.executable, "-m", "remat_cli", "max-batch", str(model), *STEP, "--quiet", "--format", "json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return json.loads(done.stdout) if done.stdout.strip() else {"message": done.stderr.strip()}


PARTS: Mapping[str, tuple[Mapping[str, Sizes], Callable[[str, Sizes, Path, Limits], Row]]] = {
    "curve": (CURVES, curve_row),
    "measured": (CURVES, measured_row),
    "quarter": (QUARTERS, quarter_row),
    "batch": (BATCHES, batch_row),
}


@click.command()
@click.option("--parts", default=",".join(PARTS), show_default=True)
@click.option("--networks", default="", help="Comma-separated names; all when empty.")
@click.option("--curve-limit", default=Limits.curve_seconds, show_default=True, help="Seconds for a plan of a curve.")
@click.option("--write/--no-write", default=False, help=f"Update bench/results/{NAME}.jsonl, .md and pictures.")
def main(parts: str, networks: str, curve_limit: float, write: bool) -> None:
    """Run the bench."""
    wanted = tuple(filter(None, networks.split(",")))

    def measured(case: tuple[str, str], keys: Sequence[Key]) -> Iterator[Row]:
        part, name = case
        sizes, make = PARTS[part][0][name], PARTS[part][1]
        with tempfile.TemporaryDirectory() as folder:
            yield {
                "part": part,
                "network": name,
                "sizes": dict(sizes),
                **make(name, sizes, Path(folder), Limits(curve_limit)),
            }

    asked = [(part, name) for part in parts.split(",") for name in PARTS[part][0] if not wanted or name in wanted]
    BENCH.renew((Case(case, [case]) for case in asked), measured, keeps=write)
    if write:
        draw(BENCH.rows(), BENCH.folder / NAME)


def draw(rows: list[Row], folder: Path) -> None:
    """A picture of each curve."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        if row["part"] == "curve":
            (folder / f"{row['network']}.svg").write_bytes(curve_svg(row, compiled_of(rows, row["network"])))


def _place(row: Row) -> tuple[int, int]:
    cases, _ = PARTS[row["part"]]
    return list(PARTS).index(row["part"]), list(cases).index(row["network"])


BENCH = Bench(NAME, ("part", "network"), markdown, lambda row: f"{row['part']} {row['network']}", _place)


if __name__ == "__main__":
    main()
