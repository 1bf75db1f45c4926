"""The small net of `samples` on several devices: shared memory, two memories, an estimated device, repeats, copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import msgspec

from remat_cli.core.files.plan_file import PlanFile, graph_instances
from remat_cli.core.schedule.plan import Compute, Copy, Schedule
from remat_cli.core.schedule.problem import make_device_problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.solver_run import SolverRun, StatusName
from remat_cli.core.values.profile import DeviceSpec, LinkCost, OpCost, Placement, Profile, Reference, Unsupported
from remat_cli.core.values.verification import SessionsSeen
from remat_cli.report.devices.placed import PlacedPlan, predicted_peak
from remat_cli.report.devices.placed_inspection import inspect_placed
from remat_cli.report.devices.sessions import SessionsReport, sessions_report
from remat_cli.report.inspection import InspectReport
from remat_cli.report.solution import solution_report
from tests.report import samples

MIB = samples.MIB

SLOW = DeviceSpec("cpu:1threads", "CPUExecutionProvider", threads=1, power_watts=15.0)
FAST = DeviceSpec("cpu:2threads", "CPUExecutionProvider", threads=2, power_watts=25.0)
GPU = DeviceSpec("cuda:0", "CUDAExecutionProvider", memory="cuda:0")

# Ops: make_skip 0, grow 1, shrink 2, join 3; make_skip runs again just before its reader.
SHARED_STEPS = (Compute(0, 1), Compute(1, 1), Compute(2, 0), Compute(0, 1), Compute(3, 0))
# Op and tensor 0 stand for input x, which is copied; `join` cannot run on the GPU, and make_skip runs again at home.
STEPS = (
    Compute(0, 0),
    Copy(0, 0, 2),
    Compute(1, 2),
    Compute(2, 2),
    Compute(3, 2),
    Copy(3, 2, 0),
    Compute(1, 1),
    Compute(4, 1),
)
LINKS = (LinkCost("cpu", "cuda:0", 10_000, 8e9), LinkCost("cuda:0", "cpu", 12_000, 6e9, measured=False))


def profile(spec: DeviceSpec, times_us: tuple[int | None, ...], *, measured: bool = True) -> Profile:
    """Costs of the small net on a device; None where it cannot run an op."""
    names = [op.name for op in samples.graph().ops]
    whole = samples.profile()
    return msgspec.structs.replace(
        whole,
        device=spec.name,
        memory=spec.memory,
        provenance=msgspec.structs.replace(whole.provenance, provider=spec.provider, measured=measured),
        ops=tuple(OpCost(n, 1000 * t, 65536 * (n == "grow")) for n, t in zip(names, times_us, strict=True) if t),
        unsupported=tuple(Unsupported(n, "no kernel") for n, t in zip(names, times_us, strict=True) if not t),
        power_watts=spec.power_watts,
        call_ns=5_000,
    )


def placement(specs: tuple[DeviceSpec, ...], budgets: Mapping[str, int]) -> Placement:
    """The placement without a plan yet."""
    costs = {SLOW.name: (1000, 6000, 2000, 1000), FAST.name: (600, 3500, 1900, 900), GPU.name: (150, 400, 300, None)}
    profiles = tuple(profile(spec, costs[spec.name], measured=spec is not GPU) for spec in specs)
    links = LINKS if GPU in specs else ()
    return Placement(devices=specs, profiles=profiles, links=links, budgets=dict(budgets), peak_bytes={})


def placed(specs: tuple[DeviceSpec, ...], budgets: Mapping[str, int], steps: tuple[Compute | Copy, ...]) -> PlacedPlan:
    """A judged plan."""
    place = placement(specs, budgets)
    problem = make_device_problem(samples.graph(), place.profiles, place.links, place.budgets)
    plan = simulate(problem, Schedule(steps))
    peaks = {memory.name: peak for memory, peak in zip(problem.memories, plan.peak_bytes, strict=True)}
    alone = tuple(
        Reference(spec.name, None if spec is GPU else 1_000_000 * (7 + 3 * (spec is SLOW)))
        for spec in sorted(specs, key=lambda spec: spec.name, reverse=True)
    )
    place = msgspec.structs.replace(place, peak_bytes=peaks, segments=3, single=alone)
    return PlacedPlan(samples.graph(), problem, place, plan)


def shared() -> PlacedPlan:
    """Two settings of the processor, one memory."""
    return placed((SLOW, FAST), {"cpu": 27 * MIB}, SHARED_STEPS)


def several() -> PlacedPlan:
    """Three devices, two memories, the GPU estimated."""
    found = placed((SLOW, FAST, GPU), {"cpu": 14 * MIB, "cuda:0": 28 * MIB}, STEPS)
    peaks = {name: peak + MIB * (name == "cpu") for name, peak in found.placement.peak_bytes.items()}
    return msgspec.structs.replace(found, placement=msgspec.structs.replace(found.placement, peak_bytes=peaks))


def one() -> PlacedPlan:
    """One device, named as a placement."""
    return placed((FAST,), {"cpu": 30 * MIB}, tuple(Compute(op, 0) for op in range(4)))


def verification(time_ns: int = 6_100_000) -> SessionsSeen:
    """Of a run with shared memory."""
    return SessionsSeen(
        reference="cpu:2threads",
        outputs_identical=True,
        must_be_identical=True,
        outputs_close=True,
        largest_difference=None,
        predicted_peak_bytes={"cpu": 27 * MIB},
        measured_peak_bytes={"cpu": 26 * MIB},
        predicted_time_ns=6_000_000,
        measured_time_ns=time_ns,
        measured_single_time_ns={"cpu:2threads": 6_400_000},
        within_budget=True,
        runs=10,
        runtime_version="1.31.1",
        predicted_fixed_bytes={},
        measured_fixed_bytes={},
        rejected_time_ns=None,
        notes=("the peak is that of the runtime's arena",),
    )


def wrong_verification() -> SessionsSeen:
    """The GPU hides its memory, and the outputs are too far."""
    return msgspec.structs.replace(
        verification(),
        outputs_identical=False,
        must_be_identical=False,
        outputs_close=False,
        largest_difference=0.02,
        predicted_peak_bytes={"cpu": 13 * MIB, "cuda:0": 26 * MIB},
        measured_peak_bytes={"cpu": 11 * MIB, "cuda:0": None},
    )


def told(found: PlacedPlan, run: SolverRun, budget: str, seen: SessionsSeen | None = None) -> SessionsReport:
    """What is known of a plan before anything is written."""
    run = dataclasses.replace(run, plan=found.plan)
    solution = solution_report(run, found.problem, baseline(found.problem))
    solution = msgspec.structs.replace(solution, peak_bytes=predicted_peak(found, 0))
    ops = len(found.graph.ops)
    return sessions_report(model="net.onnx", budget=budget, solution=solution, ops=ops, placed=found, seen=seen)


def compile_report(
    found: PlacedPlan, seen: SessionsSeen | None = None, status: StatusName = "feasible"
) -> SessionsReport:
    """What compiling gave."""
    run = dataclasses.replace(samples.run(status, None), solver="placement", options={}, facts={})
    budget = ",".join(f"{name}={size // MIB}MiB" for name, size in found.placement.budgets.items())
    report = told(found, run, budget, seen)
    if found.plan is None:
        return report
    if report.exit_code:
        return msgspec.structs.replace(report, failed_output="net.remat.failed.onnx")
    snippet = 'import remat_cli\n\noutputs = remat_cli.load("net.plan.json").run(inputs)\n'
    warnings = (*(seen.notes if seen is not None else ()), "the plan is for two threads")
    return msgspec.structs.replace(
        report, output="net.remat.onnx", plan="net.plan.json", snippet=snippet, warnings=warnings
    )


def no_plan(status: StatusName) -> SessionsReport:
    """Nothing fits, or nothing was found."""
    found = several()
    place = msgspec.structs.replace(found.placement, peak_bytes={}, single=(), segments=0)
    return compile_report(msgspec.structs.replace(found, placement=place, plan=None), None, status)


def plan_file(found: PlacedPlan) -> PlanFile:
    """The plan as a file."""
    file, plan = samples.plan_file(), found.plan
    assert plan is not None
    first = baseline(found.problem)
    return msgspec.structs.replace(
        file,
        device=found.placement.devices[0].name,
        request=msgspec.structs.replace(
            file.request, budget=",".join(f"{n}={size // MIB}MiB" for n, size in found.placement.budgets.items())
        ),
        schedule=plan.schedule,
        instances=graph_instances(found.graph, found.problem, plan),
        solved=msgspec.structs.replace(
            file.solved,
            solver="placement",
            time_ns=plan.time_ns,
            baseline_time_ns=first.time_ns,
            overhead_percent=100 * (plan.time_ns - first.time_ns) / first.time_ns,
            lower_bound_percent=-90.0,
        ),
        placement=found.placement,
    )


def inspect_report(found: PlacedPlan) -> InspectReport:
    """The plan inspected."""
    return inspect_placed(Path("net.plan.json"), plan_file(found))
