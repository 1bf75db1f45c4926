"""Plans on several devices against the best single one: networks and budgets of Schuler et al. 2022 (XEngine).

`make bench-devices` runs what the devices at hand allow; `python -m bench.devices --only unet,cpu1+cpu2` runs a part
and prints the tables. Rows of `bench/results/devices.jsonl` are kept one by one and not made again; `--force` makes
them again. The three stages may be run apart, since profiling and measuring want a machine that does nothing else, and
planning does not care: `--stages profile`, then `--stages plan`, then `--stages measure --write`.

The CPU is two devices, by its number of threads; OpenVINO is a third where it is here (package onnxruntime-openvino, or
its plugin on Intel processors), else its rows are skipped with one line, and rows of before stay.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import onnx

from bench.bench import Bench, Key
from bench.bench import Case as Wanted
from bench.compiling import ROOT, Row
from bench.devices_measure import MODEL, PLAN, ROUNDS, RUNS, SINGLE, Planned, measure
from bench.devices_report import markdown
from remat_cli.base.errors import MissingDependency, RematError
from remat_cli.base.progress import silent
from remat_cli.commands.asked import request_of
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.learn.settle import Settled
from remat_cli.compiling.placed.program import placed_program
from remat_cli.compiling.placed.record import noted_model
from remat_cli.compiling.planned import Refused, Sessions
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.compiling.record import written_at
from remat_cli.core.files.plan_file import PlanFile, graph_instances, write_plan
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.onnx_io.read.load import save
from remat_cli.runtime.segments.segment_memory import see_memory
from remat_cli.runtime.sessions.providers import device_of, require_device
from remat_cli.sessions.place import plan_again, plan_on_devices
from remat_cli.sessions.record import record_sessions
from remat_cli.sessions.report import devices_report
from remat_cli.sessions.settle import ATTEMPTS
from remat_cli.settings.settings import Settings, load_settings
from sample_models.papers import paper_model

STAGES = "profile,plan,measure"
ROW, FEEDS = "row.json", "feeds.npz"
KEY = ("network", "set", "budget")
OF_THIS_RUN = frozenset({"model", "output", "plan", "failed_output", "snippet", "recomputes", "warnings"})
TRAIN = ("--loss", "cross-entropy")
# Batch 1 at the images of the papers; VGG of half, U-Net of a quarter of the width, so that a run takes well below 1 s.
NETWORKS: Mapping[str, dict[str, Any]] = {
    "vgg16": {"batch": 1, "resolution": 224, "width": 0.5},
    "vgg19": {"batch": 1, "resolution": 224, "width": 0.5},
    "unet": {"batch": 1, "resolution": (208, 304), "width": 0.25},
    "resnet18 step": {"batch": 4, "resolution": 112},
}
TWO_MEMORIES = "two memories"
SETS: Mapping[str, tuple[str, ...]] = {
    "cpu1+cpu2": ("cpu:1threads", "cpu:2threads"),
    "cpu2+openvino": ("cpu:2threads", "openvino"),
    "cpu1+cpu2+openvino": ("cpu:1threads", "cpu:2threads", "openvino"),
    TWO_MEMORIES: ("cpu:2threads", "configs/devices/numa-node1.yaml"),
}
ENOUGH = "100%"
QUARTER, FLOOR = (
    "25%",
    "floor",
)  # floor: what any schedule of whole ops takes, by the proof that a quarter is too little
LADDER = (QUARTER, FLOOR, "60%", "80%")  # the next one where no plan was found
HALF_AT_HOME = "cpu=50%,node1=100%"  # of what the whole network takes; the rest has to be copied to node 1 or back
SPREAD = ("unet",)  # networks for two memories


@dataclass(frozen=True)
class Case:
    """A network on some devices, and where its files are kept between stages."""

    network: str
    set_name: str
    work: Path

    @property
    def budgets(self) -> tuple[str, ...]:
        """What is tried, in order."""
        return (HALF_AT_HOME,) if self.set_name == TWO_MEMORIES else (ENOUGH, *LADDER)

    @property
    def source(self) -> Path:
        """The user's model."""
        return self.work / "models" / f"{self.network.replace(' ', '_')}.onnx"

    @property
    def folder(self) -> Path:
        """Where plans are."""
        return self.work / f"{self.network}_{self.set_name}".replace(" ", "_")

    def at(self, budget: str) -> Path:
        """Where the plan within a budget is."""
        return self.folder / budget.replace("%", "").replace(",", "_").replace("=", "_")

    def key(self, budget: str) -> tuple[str, ...]:
        """What tells rows apart."""
        return self.network, self.set_name, budget

    def row(self, budget: str) -> Row | None:
        """The row of a planning stage before, if there was one."""
        path = self.at(budget) / ROW
        return json.loads(path.read_text()) if path.exists() else None

    def config(self, budget: str, seconds: str) -> Settings:
        """The product's settings."""
        return load_settings({"devices": list(SETS[self.set_name]), "budget": budget, "time_limit": seconds})

    @property
    def specs(self) -> tuple[DeviceSpec, ...]:
        """The devices."""
        return self.config(ENOUGH, "1s").devices


@click.command()
@click.option("--only", default="", help="Comma-separated networks and sets of devices; all when empty.")
@click.option("--stages", default=STAGES, show_default=True, help="Some of these.")
@click.option(
    "--work", type=click.Path(path_type=Path), help="Keeps plans between stages; a temporary folder if absent."
)
@click.option("--time-limit", default="20s", show_default=True, help="For one plan.")
@click.option("--write/--no-write", default=False, help="Write bench/results/devices.{jsonl,md}, row by row.")
@click.option("--force", is_flag=True, help="Make rows again.")
def main(only: str, stages: str, work: Path | None, time_limit: str, write: bool, force: bool) -> None:
    """Run the bench."""
    known = BENCH.rows()
    made = {} if force else {BENCH.key_of(row): row for row in known}

    def found(case: Case, _: Sequence[Key]) -> Iterator[Row]:
        return run_case(case, stages, time_limit, made)

    with tempfile.TemporaryDirectory() as temporary:
        wanted = cases(only, work or Path(temporary))
        keyed = (Wanted(case, [case.key(budget) for budget in case.budgets]) for case in wanted)
        rows = BENCH.merged(known, BENCH.run(keyed, found, again=force, keeps=write))
    if write:
        BENCH.write()
    click.echo(BENCH.table(rows))
    if any(row["outcome"] == "failed" for row in rows):
        sys.exit(1)


def _place(row: Row) -> tuple[int, int, int]:
    budgets = (ENOUGH, *LADDER, HALF_AT_HOME)
    return list(SETS).index(row["set"]), list(NETWORKS).index(row["network"]), budgets.index(row["budget"])


def _told(row: Row) -> str:
    return f"{row['network']:14} {row['set']:18} {row['budget']:18} {row['outcome']}"


def cases(only: str, work: Path) -> Iterator[Case]:
    """Networks and sets that were asked for; a set with a device that is not here is skipped with one line."""
    words = tuple(filter(None, only.split(",")))
    if unknown := [word for word in words if word not in NETWORKS and word not in SETS]:
        raise click.UsageError(f"--only {unknown[0]}: choose from {', '.join((*NETWORKS, *SETS))}")
    networks = [name for name in NETWORKS if name in words] or list(NETWORKS)
    for set_name in [name for name in SETS if name in words] or list(SETS):
        spread = networks if set_name != TWO_MEMORIES else [name for name in networks if name in SPREAD]
        found = [Case(name, set_name, work.resolve()) for name in spread]
        if found and (absent := _absent(found[0])):
            click.echo(f"{set_name}: skipped, {absent}", err=True)
        else:
            yield from found


def _absent(case: Case) -> str:
    """Why a device cannot be used; empty where all can."""
    try:
        for spec in case.specs:
            require_device(device_of(spec))
    except MissingDependency as error:
        return str(error)
    return ""


def run_case(case: Case, stages: str, seconds: str, made: Mapping[tuple[str, ...], Row]) -> Iterator[Row]:
    """Rows of one case that were not made before."""
    wanted = stages.split(",")
    if next_budget(case, made) is not None and wanted != ["measure"]:
        write_network(case)
        with tempfile.TemporaryDirectory() as work:
            subject = Subject.profiled(case, Path(work))
            while "plan" in wanted and (wish := next_budget(case, made)) is not None:
                subject.plan(case, *wish, seconds)
    if "measure" in wanted:
        for budget in case.budgets:
            if case.key(budget) not in made and (case.at(budget) / ROW).exists():
                yield measured_row(case, budget)


def next_budget(case: Case, made: Mapping[tuple[str, ...], Row]) -> tuple[str, str] | None:
    """What is planned next, and as the product takes it: enough, then the ladder up to the first that has a plan."""
    floor_bytes = 0
    for budget in case.budgets:
        row = case.row(budget) or made.get(case.key(budget))
        if row is None:
            return budget, f"{floor_bytes}B" if budget == FLOOR else budget
        solution = row["report"]["solution"]
        floor_bytes = solution["floor_bytes"]
        is_reached = row["segments"] > 0 or floor_bytes >= solution["baseline_peak_bytes"]
        if budget in LADDER and is_reached:
            return None
    return None


def write_network(case: Case) -> None:
    """The model file, unless it is there: a network, or its training step with SGD."""
    if case.source.exists():
        return
    case.source.parent.mkdir(parents=True, exist_ok=True)
    name, _, step = case.network.partition(" ")
    sizes = dict(NETWORKS[case.network])
    model = paper_model(name, **{**sizes, "batch": None if step else sizes["batch"]})
    if not step:
        _save(case.source, model)
        return
    with tempfile.TemporaryDirectory() as folder:
        forward = Path(folder) / "forward.onnx"
        _save(forward, model)
        command = [sys.executable, "-m", "remat_cli", "train", str(forward), *TRAIN, "--batch", str(sizes["batch"])]
        subprocess.run([*command, "--output", str(case.source), "--force", "--quiet"], check=True, cwd=ROOT)


def _save(path: Path, model: onnx.ModelProto) -> None:
    path.write_bytes(model.SerializeToString())


@dataclass(frozen=True)
class Subject:
    """A network that was profiled on its devices."""

    prepared: Prepared
    platform: Platform

    @classmethod
    def profiled(cls, case: Case, work: Path) -> Subject:
        """Measure what the cache of profiles does not have."""
        conditions = case.config(ENOUGH, "1s").conditions
        prepared = prepare(case.source, conditions, work, silent())
        return cls(prepared, profile_model(prepared, conditions, silent()))

    def plan(self, case: Case, budget: str, text: str, seconds: str) -> None:
        """Plan within a budget; the folder gets the row so far and, where one was found, the plan."""
        config = case.config(text, seconds)
        with tempfile.TemporaryDirectory() as work:
            request = request_of(config)
            planned = self.counted(request, Path(work))
        folder = case.at(budget)
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(planned, Sessions):
            self.written(folder, planned, request)
        row = {"network": case.network, "set": case.set_name, "budget": budget, **self.facts(planned)}
        row |= {"sizes": NETWORKS[case.network], "limit": seconds, "outcome": _outcome(planned)}
        (folder / ROW).write_text(json.dumps(row))

    def counted(self, request: CompileRequest, work: Path) -> Sessions | Refused:
        """A plan that knows what its sessions hold of weights, as the product makes it: run, count, plan again."""
        planned = plan_on_devices(self.prepared, self.platform, request, silent())
        for attempt in range(ATTEMPTS):
            if isinstance(planned, Refused):
                break
            more = self.session_bytes(planned, request, work / str(attempt))
            if not more:
                break
            counted = planned.platform.with_session_bytes(more)
            planned = plan_again(planned, counted, request.search, silent())
        return planned

    def session_bytes(self, planned: Sessions, request: CompileRequest, folder: Path) -> dict[str, int]:
        """What sessions of a plan hold of weights beyond what was planned, by memory."""
        folder.mkdir()
        save(noted_model(planned), folder / MODEL)
        program = placed_program(record_sessions(planned, request), folder / MODEL, folder)
        held = see_memory(program, self.prepared.feeds).fixed_bytes
        known = zip(program.memories, held, program.planned_fixed_bytes, strict=True)
        return {name: seen - thought for name, seen, thought in known if seen > thought}

    def written(self, folder: Path, planned: Sessions, request: CompileRequest) -> PlanFile:
        """The plan, that of the best single device if it is another one, their model and what it is fed."""
        save(noted_model(planned), folder / MODEL)
        np.savez(folder / FEEDS, **self.prepared.feeds)
        plan = record_sessions(planned, request)
        write_plan(folder / PLAN, written_at(plan, folder / MODEL, folder / PLAN, None))
        best = planned.best_single
        if best is not None and best.schedule != plan.schedule:
            problem = planned.answer.question.problem
            lives = graph_instances(self.prepared.graph, problem, simulate(problem, best.schedule))
            single = msgspec.structs.replace(plan, schedule=best.schedule, instances=lives)
            write_plan(folder / SINGLE, written_at(single, folder / MODEL, folder / SINGLE, None))
        return plan

    def facts(self, planned: Sessions | Refused) -> Row:
        """The product's report without what holds for this run only, and what it was made on."""
        report = msgspec.to_builtins(devices_report(Settled(planned, None)))
        source = self.platform.profiles[0].provenance
        return {
            "report": {key: value for key, value in report.items() if key not in OF_THIS_RUN},
            "segments": report["segments"],
            "profiled_ns": {profile.device: profile.run_ns for profile in self.platform.profiles},
            "machine": {"cpu": source.cpu, "os": source.os, "runtime": _runtime(), "python": platform.python_version()},
        }


def _outcome(planned: Sessions | Refused) -> str:
    if isinstance(planned, Sessions):
        return "planned"
    return "impossible" if planned.answer.run.status is Status.INFEASIBLE else "no plan found"


def _runtime() -> str:
    """The package that brings the runtime, with its version."""
    names = importlib.metadata.packages_distributions().get("onnxruntime", [])
    return ", ".join(sorted({f"{name} {importlib.metadata.version(name)}" for name in names}))


def measured_row(case: Case, budget: str) -> Row:
    """The row of a plan with what running it showed; without a plan the row as it is."""
    row, folder = case.row(budget), case.at(budget)
    assert row is not None
    if not (folder / PLAN).exists():
        return row
    with np.load(folder / FEEDS) as file:
        feeds = {name: file[name] for name in file.files}
    planned = Planned(folder, case.source, feeds, case.specs)
    with tempfile.TemporaryDirectory() as work:
        try:
            seen = measure(planned, Path(work))
        except RematError as error:
            return {**row, "outcome": "failed", "message": str(error)}
    return {**row, "outcome": "measured", "measured": seen}


BENCH = Bench("devices", KEY, lambda rows: markdown(rows, ROUNDS * RUNS), _told, _place)

if __name__ == "__main__":
    main()
