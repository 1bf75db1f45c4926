"""XEngine's experiment on two memories, really run: tiny networks on the CPU and on WebGPU, counted below the provider.

`make bench-webgpu` writes bench/results/gpu.md. A driver in software is far slower than the CPU, and plans by its true
times would leave the device idle; so its op times, and what copies cost whatever their size, are divided by one
number, with which the whole network takes a quarter of the CPU's time, or a sixteenth or less where a plan would leave
the device idle else: it plays a GPU. All else is as measured.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
import onnxruntime

from bench.bench import Bench, Key
from bench.bench import Case as Wanted
from bench.compiling import ROOT, Row
from bench.devices import FEEDS, Subject
from bench.devices_measure import MODEL, PLAN
from bench.webgpu_networks import NETWORKS, write_network
from bench.webgpu_report import markdown
from remat_cli.base.progress import silent
from remat_cli.commands.asked import request_of
from remat_cli.compiling.fit import excess_bytes
from remat_cli.compiling.placed.cut import cut_of
from remat_cli.compiling.placed.program import placed_program
from remat_cli.compiling.placed.verify import PlacedRun, verify_sessions
from remat_cli.compiling.planned import Refused, Sessions
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.plan import Compute, Schedule
from remat_cli.core.schedule.program import CopyAction, Program, SessionAction
from remat_cli.core.schedule.simulate import simulate
from remat_cli.runtime.sessions.providers import absence, parse_device
from remat_cli.settings.settings import Settings, load_settings
from tests.webgpu.vulkan_layer import build_layer, counted_environment

GPU = "webgpu:0"
BUDGETS = ("100%", "60%", "40%", "25%")
CPU_BUDGET = "64MiB"  # plenty
TIMES_FASTER = (4, 16, 64)  # than the CPU, the device as it is played: the next one where a plan leaves it idle
LEAST_SHARE = 1 / 3  # of the ops on the device, in a row that is measured


@click.command()
@click.option("--networks", default=",".join(NETWORKS), show_default=True)
@click.option("--budgets", default=",".join(BUDGETS), show_default=True, help="Some of these.")
@click.option("--time-limit", default="15s", show_default=True, help="For one plan.")
@click.option("--write/--no-write", default=False, help="Write bench/results/gpu.{jsonl,md}, row by row.")
@click.option("--force", is_flag=True, help="Make rows again that are there.")
def main(networks: str, budgets: str, time_limit: str, write: bool, force: bool) -> None:
    """Run the bench."""
    if reason := absence(parse_device(GPU)):
        raise click.ClickException(reason)
    with tempfile.TemporaryDirectory() as folder:

        def measured(name: str, keys: Sequence[Key]) -> Iterator[Row]:
            return network_rows(name, [budget for _, budget in keys], time_limit, Path(folder))

        wanted = (Wanted(name, [(name, budget) for budget in budgets.split(",")]) for name in networks.split(","))
        fresh = BENCH.run(wanted, measured, again=force or not write, keeps=write)
    if write:
        BENCH.write()
    rows = BENCH.rows() if write else fresh
    click.echo(BENCH.table(rows))
    if any("FAILED" in row["outcome"] for row in rows):
        sys.exit(1)


def _place(row: Row) -> tuple[int, int]:
    return list(NETWORKS).index(row["network"]), BUDGETS.index(row["budget"])


def _told(row: Row) -> str:
    return f"{row['network']} {row['budget']}: {row['outcome']} {row.get('counted', '')}"


def settings_for(budget: str, time_limit: str) -> Settings:
    """The device has a share of what the whole network takes there, the CPU plenty."""
    budgets = f"cpu={CPU_BUDGET},{GPU}={budget}"
    return load_settings({"devices": ["cpu", "webgpu"], "budget": budgets, "time_limit": time_limit})


def network_rows(name: str, budgets: list[str], time_limit: str, folder: Path) -> Iterator[Row]:
    """A row per budget of a network."""
    path, work = write_network(name, folder), folder / name.replace(" ", "_")
    work.mkdir()
    conditions = settings_for("100%", time_limit).conditions
    prepared = prepare(path, conditions, work, silent())
    measured = profile_model(prepared, conditions, silent())
    for budget in budgets:
        yield {
            "network": name,
            "budget": budget,
            **best_row(prepared, measured, settings_for(budget, time_limit), work),
        }


def best_row(prepared: Prepared, measured: Platform, settings: Settings, work: Path) -> Row:
    """The row of the slowest device that a plan uses enough to be run; of the fastest where none does."""
    row: Row = {}
    for times_faster in TIMES_FASTER:
        folder = Path(tempfile.mkdtemp(dir=work))
        case = Case(prepared, Subject(prepared, played(measured, times_faster)), measured, settings, folder)
        row = {"times_faster": times_faster, **case.row()}
        if row["outcome"] not in ("planned only", "no plan"):
            break
    return row


def played(platform: Platform, times_faster: int) -> Platform:
    """The platform with op times of the device as a GPU's might be, relative to each other as measured; copies too."""
    cpu, gpu = platform.profiles
    both = {cost.name for cost in gpu.ops}
    cpu_ns = sum(cost.time_ns for cost in cpu.ops if cost.name in both)
    factor = cpu_ns / times_faster / sum(cost.time_ns for cost in gpu.ops)
    ops = (msgspec.structs.replace(cost, time_ns=max(1, round(cost.time_ns * factor))) for cost in gpu.ops)
    links = (msgspec.structs.replace(link, latency_ns=round(link.latency_ns * factor)) for link in platform.links)
    profiles = cpu, msgspec.structs.replace(gpu, ops=tuple(ops), run_ns=None)
    return replace(platform, profiles=profiles, links=tuple(links))


@dataclass(frozen=True)
class Case:
    """A network within one budget."""

    prepared: Prepared
    subject: Subject
    measured: Platform
    settings: Settings
    folder: Path

    def row(self) -> Row:
        """What was planned and what was seen."""
        (self.folder / "work").mkdir()
        request = request_of(self.settings)
        planned = self.subject.counted(request, self.folder / "work")
        if isinstance(planned, Refused):
            return {"outcome": "no plan", "floor_bytes": planned.answer.run.facts.get("floor_bytes")}
        found = with_recompute(planned)
        by_hand = found is not planned
        plan = self.subject.written(self.folder, found, request)
        facts = self.facts(found, plan) | {"by_hand": by_hand}
        if facts["gpu_ops"] < LEAST_SHARE * facts["ops"] or not facts["gpu_recomputes"]:
            return {"outcome": "planned only", **facts}
        run = PlacedRun(plan, self.folder / MODEL)
        seen, _ = verify_sessions(run, (self.prepared.feeds,), self.folder / "work", silent())
        counted = counted_run(self.folder)
        checks = {
            "outputs": seen.outputs_close,
            "memory": counted["steady_bytes"] <= facts["gpu_planned_bytes"],
            "copies": counted["staging_copies"] == facts["copies"],
            "repetition": counted["same_bits_in_every_run"],
        }
        broken = [name for name, holds in checks.items() if not holds]
        outcome = f"FAILED: {', '.join(broken)}" if broken else "measured"
        return {"outcome": outcome, **facts, "difference": seen.largest_difference, "counted": counted}

    def facts(self, planned: Sessions, plan: PlanFile) -> Row:
        """What the plan says."""
        judged = planned.plan
        steps = [step for step in judged.schedule.steps if isinstance(step, Compute)]
        computes = [step for step in steps if step.op >= len(planned.answer.question.problem.ops) - self.op_count]
        on_gpu = [step.op for step in computes if step.device == 1]
        problem = planned.answer.question.problem
        program = placed_program(plan, self.folder / MODEL, self.made("segments"))
        return {
            "ops": self.op_count,
            "gpu_ops": len(set(on_gpu)),
            "gpu_recomputes": len(on_gpu) - len(set(on_gpu)),
            "recomputes": len(computes) - self.op_count,
            "sessions": planned.cut.segments,
            "copies": staged_copies(program),
            "gpu_budget_bytes": problem.memories[1].budget_bytes,
            "gpu_planned_bytes": planned.cut.peak_bytes[1],
            "gpu_live_bytes": judged.peak_bytes[1],
            "cpu_planned_bytes": planned.cut.peak_bytes[0],
            "planned_ns": judged.time_ns,
            "as_measured_ns": self.true_ns(judged.schedule),
            "runtime": onnxruntime.__version__,
        }

    @property
    def op_count(self) -> int:
        """Ops of the network."""
        return len(self.prepared.graph.ops)

    def made(self, name: str) -> Path:
        """A new folder."""
        (self.folder / name).mkdir()
        return self.folder / name

    def true_ns(self, schedule: Schedule) -> int:
        """What the plan takes by the op times that were measured on the driver in software."""
        return simulate(self.measured.problem(), schedule).time_ns


def with_recompute(planned: Sessions) -> Sessions:
    """The plan; where it computes nothing again on the device, with one op again, if the budgets allow one.

    The op is one that may be repeated; it runs once more before the last of several reads of what it makes.
    """
    question, steps = planned.answer.question, planned.plan.schedule.steps
    seen: set[tuple[int, int]] = set()
    for step in steps:
        if isinstance(step, Compute) and step.device == 1:
            if (step.op, 1) in seen:
                return planned
            seen.add((step.op, 1))
    for number, step in reversed(tuple(enumerate(steps))):
        if not isinstance(step, Compute) or step.device != 1:
            continue
        for tensor in question.problem.ops[step.op].inputs:
            producer = question.problem.tensors[tensor].producer
            if (producer, 1) not in seen or not question.problem.ops[producer].repeatable:
                continue
            again = Schedule((*steps[:number], Compute(producer, 1), *steps[number:]))
            if (found := _fitting(planned, again)) is not None:
                return found
    return planned


def _fitting(planned: Sessions, schedule: Schedule) -> Sessions | None:
    """The plan with another schedule, where that is within the budgets and reads all that the device computes."""
    answer = planned.answer
    problem = answer.question.problem
    judged = simulate(problem, schedule)
    read = {number for numbers in judged.reads for number in numbers}
    newest = {instance.tensor: number for number, instance in enumerate(judged.instances)}
    kept = {number for tensor, number in newest.items() if problem.tensors[tensor].kept}
    mine = [number for number, instance in enumerate(judged.instances) if instance.memory == 1]
    if not read | kept >= set(mine):
        return None
    cut = cut_of(planned.platform, problem, judged)
    if any(excess_bytes(problem, cut.peak_bytes)):
        return None
    return dataclasses.replace(planned, answer=replace(answer, run=replace(answer.run, plan=judged)), cut=cut)


def staged_copies(program: Program) -> int:
    """Copies between the host and the device in a run: planned ones, inputs given to sessions, outputs fetched.

    What has no bytes, such as a part of nothing that is cut out, takes no staging buffer.
    """
    gpu = program.memories.index(GPU)
    has_bytes = {name for name, value in program.values.items() if value.size_bytes}
    there = {name for name, value in program.values.items() if value.memory == gpu}
    found = 0
    for action in program.actions:
        if isinstance(action, CopyAction):
            ends = program.memory_of[action.source_device], program.memory_of[action.target_device]
            found += gpu in ends and action.source in has_bytes
        elif isinstance(action, SessionAction) and program.memory_of[action.device] == gpu:
            found += sum(name in has_bytes - there for name in action.segment.reads)
    return found + sum(name in has_bytes & there for name in program.outputs)


def counted_run(folder: Path) -> Row:
    """What the layer below the provider counted in a process that runs a plan."""
    environment = counted_environment(build_layer(folder))
    command = [sys.executable, "-m", "bench.webgpu_measure", str(folder / PLAN), str(folder / FEEDS)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


BENCH = Bench("gpu", ("network", "budget"), markdown, _told, _place)

if __name__ == "__main__":
    main()
