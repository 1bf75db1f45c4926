"""Plans for several devices made without a solver: real models, invented costs, schedules that jump to and fro."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from remat_cli.base.files import sha256
from remat_cli.base.progress import silent
from remat_cli.compiling.placed.cut import cut_of, workspaces
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, prepare
from remat_cli.core.files.plan_file import (
    ExactSession,
    FileRef,
    PlanFile,
    PlanRequest,
    Promise,
    Solved,
    graph_instances,
    write_plan,
)
from remat_cli.core.schedule.placing import placed_schedule
from remat_cli.core.schedule.plan import Compute, Plan, Schedule, Step
from remat_cli.core.schedule.problem import Problem, input_ops
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.profile import DeviceSpec, LinkCost, OpCost, Placement, Profile
from remat_cli.devices.provider_table import named_spec
from remat_cli.onnx_io.read.load import save
from remat_cli.runtime.measure.profile_cache import provenance
from remat_cli.settings.settings import load_settings

ONE, TWO = named_spec("cpu:1threads"), named_spec("cpu:2threads")
SHARED = (ONE, TWO)
APART = (ONE, replace(TWO, memory="node1"))
PLENTY = 2**50


@dataclass(frozen=True)
class Placed:
    """A plan on disk with what it was made from."""

    path: Path
    plan: PlanFile
    prepared: Prepared
    judged: Plan
    problem: Problem


def prepared_model(model: Path, folder: Path) -> Prepared:
    config = load_settings({"cache_dir": str(folder / "cache"), "intra_op_threads": 1, "quiet": True})
    return prepare(model, config.conditions, folder, silent())


def place(
    prepared: Prepared,
    folder: Path,
    devices: tuple[DeviceSpec, ...] = SHARED,
    *,
    block: int = 3,
    recompute_every: int = 4,
    overlap: bool = False,
    budget: int = PLENTY,
) -> Placed:
    """Blocks of ops on the devices in turn, some ops computed again; written as `m.onnx` and `m.plan.json`."""
    platform = _platform(prepared, devices)
    budgets = {device.memory: budget for device in devices}
    problem = platform.problem(budgets, overlap)
    given = input_ops(prepared.graph, problem)
    turns = [0] * given + [(i // block) % len(devices) for i in range(len(prepared.graph.ops))]
    schedule = with_recomputes(problem, placed_schedule(problem, turns), recompute_every)
    judged = simulate(problem, schedule)
    output = folder / "m.onnx"
    save(prepared.reference, output)
    plan = _plan_file(prepared, platform, problem, judged, output)
    path = folder / "m.plan.json"
    write_plan(path, plan)
    return Placed(path, plan, prepared, judged, problem)


def with_recomputes(problem: Problem, schedule: Schedule, every: int) -> Schedule:
    """Before every so many computes, an op that they read from and that may be repeated runs again where it ran."""
    steps: list[Step] = []
    ran: dict[int, int] = {}
    read: set[int] = set()  # a first run that nobody read would be a waste
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            sources = [problem.tensors[t].producer for t in problem.ops[step.op].inputs]
            again = [s for s in sources if s in read and problem.ops[s].repeatable and ran.get(s) == step.device]
            if every and number % every == 0 and again:
                steps.append(Compute(again[0], step.device))
            ran[step.op] = step.device
            read.update(sources)
        steps.append(step)
    return Schedule(tuple(steps))


def _platform(prepared: Prepared, devices: tuple[DeviceSpec, ...]) -> Platform:
    profiles = tuple(_profile(prepared, spec, n) for n, spec in enumerate(devices))
    memories = tuple(dict.fromkeys(spec.memory for spec in devices))
    links = tuple(LinkCost(a, b, 1000, 1e9) for a, b in itertools.permutations(memories, 2))
    return Platform(prepared.graph, devices, profiles, links)


def _profile(prepared: Prepared, spec: DeviceSpec, number: int) -> Profile:
    graph, needs = prepared.graph, workspaces(prepared.graph, prepared.reference, spec)
    return Profile(
        device=spec.name,
        model_sha256="",
        provenance=provenance("cpu", spec.threads, "all", 1, 0),
        ops=tuple(OpCost(op.name, 1000 * (1 + (i + number) % 7), needs[op.name]) for i, op in enumerate(graph.ops)),
        weight_bytes=graph.weight_bytes,
        input_bytes=graph.input_bytes,
        memory=spec.memory,
    )


def _plan_file(prepared: Prepared, platform: Platform, problem: Problem, plan: Plan, output: Path) -> PlanFile:
    cut = cut_of(platform, problem, plan)
    names = [memory.name for memory in problem.memories]
    return PlanFile(
        remat_version="0",
        source=FileRef(str(prepared.source.path), prepared.source.sha256),
        optimized_sha256=prepared.reference_sha256,
        output=FileRef(output.name, sha256(output)),
        request=PlanRequest(budget="100%", budget_bytes=PLENTY),
        device=",".join(spec.name for spec in platform.specs),
        graph=prepared.graph,
        profile=platform.profiles[0],
        schedule=plan.schedule,
        instances=graph_instances(prepared.graph, problem, plan),
        solved=Solved("none", {}, 0, "free", "feasible", plan.time_ns, plan.time_ns, None, 0.0, None, 0, 0.0),
        promise=_promise(cut.peak_bytes[0]),
        snippet="",
        placement=Placement(
            devices=platform.specs,
            profiles=platform.profiles,
            links=platform.links,
            budgets={memory.name: memory.budget_bytes for memory in problem.memories},
            overlap=problem.overlap,
            peak_bytes=dict(zip(names, cut.peak_bytes, strict=True)),
            memory_bytes=dict(zip(names, cut.memory_bytes, strict=True)),
            segments=cut.segments,
        ),
    )


def _promise(peak_bytes: int, order: Sequence[str] = ()) -> Promise:
    return Promise(tuple(order), (), peak_bytes, 0, 0, peak_bytes, (), (), ExactSession(), holds_by_default=False)
