"""Small reports and plans with figures that are easy to recognise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from remat_cli.core.files.plan_file import (
    ExactSession,
    FileRef,
    PlanFile,
    PlanRequest,
    Promise,
    Solved,
    graph_instances,
)
from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.solver_run import ProvedFloor, SolverRun, Status, StatusName
from remat_cli.core.schedule.splits import Region, RegionFacts, Splitting
from remat_cli.core.values.file_check import FileVerification
from remat_cli.core.values.profile import OpCost, Profile, Provenance
from remat_cli.core.values.training import StepFacts
from remat_cli.core.values.verification import OneModelSeen, SessionsSeen
from remat_cli.report.compile import OneModelReport, OneModelVerifyReport
from remat_cli.report.devices.sessions import SessionsVerifyReport
from remat_cli.report.explain import alive_at, recomputes
from remat_cli.report.file_report import FileReport
from remat_cli.report.inspection import InspectReport, inspect_model, inspect_plan
from remat_cli.report.profile import ProfileReport
from remat_cli.report.regions import estimated_regions, region_reports
from remat_cli.report.solution import SolutionReport, solution_report
from remat_cli.report.solve import SolveReport
from remat_cli.report.targets import TargetReport, TargetsReport
from remat_cli.report.training import BatchProbe, MaxBatchReport, TrainReport

MIB = 2**20
SKIP_STEPS = (0, 1, 2, 0, 3)  # `make_skip` runs again just before its reader


def graph() -> Graph:
    """input x -> make_skip -> s (8 MiB); s -> grow -> g (16 MiB); g -> shrink -> h (1 MiB); s, h -> join -> y."""
    size = 2 * MIB  # elements of 4 bytes

    def tensor(name: str, elements: int, producer: int | None, kept: bool = False) -> Tensor:
        return Tensor(name, "float", (1, elements), 4 * elements, producer, kept=kept)

    return Graph(
        ops=(
            Op("make_skip", "Conv", (0,), (1,), weights=(0,)),
            Op("grow", "Conv", (1,), (2,)),
            Op("shrink", "MaxPool", (2,), (3,)),
            Op("join", "Concat", (1, 3), (4,)),
        ),
        tensors=(
            tensor("x", MIB // 4, None),
            tensor("s", size, 0),
            tensor("g", 2 * size, 1),
            tensor("h", MIB // 4, 2),
            tensor("y", MIB // 4, 3, kept=True),
        ),
        weights=(Weight("w", 1024),),
    )


def profile() -> Profile:
    came = Provenance("Test CPU", "TestOS", "onnxruntime", "1.31.1", "CPUExecutionProvider", 2, "all", 10, 2)
    costs = (("make_skip", 1_000_000, 0), ("grow", 6_000_000, 65536), ("shrink", 2_000_000, 0), ("join", 1_000_000, 0))
    ops = tuple(OpCost(name, time, workspace, 1.5) for name, time, workspace in costs)
    return Profile("cpu", "b" * 64, came, ops, weight_bytes=1024, input_bytes=MIB)


def problem(budget_bytes: int = 26 * MIB) -> Problem:
    return make_problem(graph(), profile(), budget_bytes)


def plan() -> Plan:
    return simulate(problem(), Schedule.of_ops(SKIP_STEPS))


def run(status: StatusName = "feasible", bound: int | None = 10_500_000, found: Plan | None = None) -> SolverRun:
    return SolverRun(
        solver="local-search",
        status=Status(status),
        space="free",
        plan=found,
        floor=ProvedFloor(25 * MIB),
        seed=7,
        seconds=1.25,
        seconds_to_best=0.5,
        bound_ns=bound,
        options={"restarts": 4},
        facts={"moves": 1000},
    )


def solution() -> SolutionReport:
    return solution_report(run(found=plan()), problem(), baseline(problem()))


def no_solution(status: StatusName) -> SolutionReport:
    return solution_report(run(status, None), problem(2 * MIB), baseline(problem()))


def verification(*, outputs_identical: bool = True) -> OneModelSeen:
    return OneModelSeen(
        outputs_identical=outputs_identical,
        order_honoured=True,
        predicted_peak_bytes=24 * MIB,
        measured_peak_bytes=24 * MIB,
        measured_peak_default_session_bytes=24 * MIB,
        original_default_session_peak_bytes=28 * MIB,
        runtime_version="1.31.1",
        inferences=43,
        within_budget=True,
        smallest_cap_bytes=25 * MIB,
        original_smallest_cap_bytes=33 * MIB,
        capped_run_ok=True,
        capped_run_bytes=25 * MIB,
        cap_options="default",
        later_runs_block_bytes=24 * MIB,
        measured_workspace_bytes=None,
        predicted_workspace_bytes=None,
        outputs_max_relative_error=None,
        predicted_overhead_percent=10.0,
        measured_overhead_percent=9.25,
        notes=("slack between live bytes and smallest cap: 1.00 MiB",),
    )


def close_verification() -> OneModelSeen:
    """Of a split whose sums are added in another order."""
    return msgspec.structs.replace(
        verification(outputs_identical=False), outputs_close=True, outputs_max_relative_error=3.1e-6
    )


def compile_report(seen: OneModelSeen | None = None) -> OneModelReport:
    return OneModelReport(
        model="net.onnx",
        device="cpu",
        budget="80%",
        solution=solution(),
        ops=4,
        output="net.remat.onnx",
        plan="net.plan.json",
        verification=seen or verification(),
        recomputes=recomputes(graph(), problem(), plan()),
        gates=1,
        snippet='import onnxruntime as ort\n\nsession = ort.InferenceSession("net.remat.onnx")\n',
        one_line='session = onnxruntime.InferenceSession("net.remat.onnx")',
        warnings=("later runs of a default session allocate one block of 24.00 MiB",),
        seconds=3.5,
    )


def failed_report() -> OneModelReport:
    report = compile_report(verification(outputs_identical=False))
    return msgspec.structs.replace(report, output=None, plan=None, failed_output="net.remat.failed.onnx")


def targets_report(count: int = 3) -> TargetsReport:
    """Of three targets one has a file, one has no plan, and one cannot be read; the first ones of them."""
    return TargetsReport(
        model="skip.onnx",
        targets=(
            TargetReport(name="here", exit_code=0, known={"x86-64-avx512": "run"}, compiled=compile_report()),
            TargetReport(name="arm64", exit_code=3, known={"arm64": "predicted"}, compiled=impossible_report()),
            TargetReport(name="wasm", exit_code=2, error="skip.onnx is too large for it"),
        )[:count],
        seconds=2.5,
    )


def impossible_report() -> OneModelReport:
    return OneModelReport(
        model="net.onnx",
        device="cpu",
        budget="2MiB",
        solution=no_solution("infeasible"),
        ops=4,
        blocking_op="grow",
        blockers=alive_at(graph(), problem(), plan(), 1),
    )


def inspect_report() -> InspectReport:
    return inspect_plan(Path("net.plan.json"), plan_file())


def solve_report(status: StatusName = "feasible") -> SolveReport:
    found = solution() if status in ("feasible", "optimal") else no_solution(status)
    return SolveReport(instance="rl.json", ops=4, budget="0.9", solution=found)


def verify_report(seen: OneModelSeen | None = None) -> OneModelVerifyReport:
    return OneModelVerifyReport(**_verified(), verification=seen or verification())


def sessions_verify_report(seen: SessionsSeen) -> SessionsVerifyReport:
    return SessionsVerifyReport(**_verified(), verification=seen)


def _verified() -> dict[str, Any]:
    """What both of them are about."""
    return {"plan": "net.plan.json", "model": "net.remat.onnx", "source": "net.onnx", "budget_bytes": 26 * MIB}


def file_report(measured_bytes: int = 24 * MIB) -> FileReport:
    """A file that says that it takes 24 MiB."""
    seen = FileVerification(
        outputs_identical=True,
        order_honoured=True,
        predicted_peak_bytes=24 * MIB,
        budget_bytes=26 * MIB,
        measured_peak_bytes=measured_bytes,
        measured_peak_default_session_bytes=measured_bytes,
        runtime_version="1.32.0",
        inferences=5,
    )
    return FileReport(model="net.remat.onnx", source="net.onnx", verification=seen, promises=seen.promises)


def profile_report() -> ProfileReport:
    return ProfileReport(model="net.onnx", profiles=(profile(),))


def plan_file() -> PlanFile:
    judged, first = plan(), baseline(problem())
    return PlanFile(
        remat_version="0.1.0",
        source=FileRef("net.onnx", "a" * 64),
        optimized_sha256="b" * 64,
        output=FileRef("net.remat.onnx", "c" * 64),
        request=PlanRequest("80%", 26 * MIB, dims={"batch": 8}, input_shapes={"x": (1, 3)}),
        device="cpu",
        graph=graph(),
        profile=profile(),
        schedule=judged.schedule,
        instances=graph_instances(graph(), problem(), judged),
        solved=Solved(
            solver="local-search",
            options={"restarts": 4},
            seed=7,
            space="free",
            status="feasible",
            time_ns=judged.time_ns,
            baseline_time_ns=first.time_ns,
            bound_ns=None,
            overhead_percent=10.0,
            lower_bound_percent=5.0,
            floor_bytes=25 * MIB + 66560,
            seconds=1.25,
        ),
        promise=Promise(
            order=("make_skip", "grow", "shrink", "make_skip/remat_1", "join"),
            gates=(),
            peak_bytes=judged.peak,
            live_peak_bytes=judged.live_peak - MIB - 1024,
            fixed_bytes=MIB + 1024,
            baseline_peak_bytes=first.peak,
            memory_bytes=judged.memory_bytes[0],
            baseline_memory_bytes=first.memory_bytes[0],
            exact_session=ExactSession(),
            holds_by_default=True,
        ),
        snippet="import onnxruntime as ort\n",
        verification=verification(),
    )


def split_graph() -> Graph:
    """The same net with `grow` and `shrink` in two tiles, joined to h again."""

    def tensor(name: str, mib: float, producer: int | None, kept: bool = False) -> Tensor:
        return Tensor(name, "float", (1, int(mib * MIB) // 4), int(mib * MIB), producer, kept=kept)

    return Graph(
        ops=(
            Op("make_skip", "Conv", (0,), (1,), weights=(0,)),
            Op("s/slice_0", "Slice", (1,), (2,)),
            Op("grow/tile_0", "Conv", (2,), (3,)),
            Op("shrink/tile_0", "MaxPool", (3,), (4,)),
            Op("s/slice_1", "Slice", (1,), (5,)),
            Op("grow/tile_1", "Conv", (5,), (6,)),
            Op("shrink/tile_1", "MaxPool", (6,), (7,)),
            Op("h/join", "Concat", (4, 7), (8,)),
            Op("join", "Concat", (1, 8), (9,)),
        ),
        tensors=(
            tensor("x", 1, None),
            tensor("s", 8, 0),
            tensor("s/slice_0", 4, 1),
            tensor("g/tile_0", 8, 2),
            tensor("h/tile_0", 0.5, 3),
            tensor("s/slice_1", 4, 4),
            tensor("g/tile_1", 8, 5),
            tensor("h/tile_1", 0.5, 6),
            tensor("h", 1, 7),
            tensor("y", 1, 8, kept=True),
        ),
        weights=(Weight("w", 1024),),
    )


def split_profile() -> Profile:
    times = (1_000_000, 50_000, 3_100_000, 1_050_000, 50_000, 3_100_000, 1_050_000, 20_000, 1_000_000)
    ops = tuple(OpCost(op.name, time) for op, time in zip(split_graph().ops, times, strict=True))
    return msgspec.structs.replace(profile(), model_sha256="d" * 64, ops=ops)


def region_facts() -> RegionFacts:
    return RegionFacts(112, 3.1, 26 * MIB + 66560, 21 * MIB, 8_000_000, 8_420_000)


def splitting() -> Splitting:
    region = Region(("grow", "shrink"), ("h",), (2,), 8, ("g",))
    return Splitting((region,), (region_facts(),), "b" * 64, profile(), 25 * MIB + 66560)


def split_plan_file() -> PlanFile:
    """A plan of the split net; a gate stands before the second tile."""
    file, first = plan_file(), baseline(problem())
    asked = make_problem(split_graph(), split_profile(), 22 * MIB)
    judged = baseline(asked)
    names = [op.name for op in split_graph().ops]
    curve = judged.memory_bytes[0]
    promise = msgspec.structs.replace(
        file.promise,
        order=(*names[:4], "gate_1", *names[4:]),
        gates=("gate_1",),
        peak_bytes=judged.peak,
        live_peak_bytes=judged.live_peak - file.promise.fixed_bytes,
        baseline_peak_bytes=first.peak,
        memory_bytes=(*curve[:4], curve[4], *curve[4:]),
    )
    return msgspec.structs.replace(
        file,
        optimized_sha256="d" * 64,
        request=PlanRequest("22MiB", 22 * MIB, split="auto", max_tiles=8, split_axis="height"),
        graph=split_graph(),
        profile=split_profile(),
        schedule=judged.schedule,
        instances=graph_instances(split_graph(), asked, judged),
        solved=msgspec.structs.replace(
            file.solved,
            time_ns=judged.time_ns,
            overhead_percent=4.2,
            lower_bound_percent=4.2,
            floor_with_splitting_bytes=21 * MIB + 1024,
        ),
        promise=promise,
        splitting=splitting(),
    )


def split_problem() -> Problem:
    return make_problem(split_graph(), split_profile(), 22 * MIB)


def split_solution() -> SolutionReport:
    """Judged against the whole net's baseline."""
    asked = make_problem(split_graph(), split_profile(), 22 * MIB)
    judged = baseline(asked)
    found = solution_report(run("optimal", judged.time_ns, judged), split_problem(), baseline(problem()))
    return msgspec.structs.replace(found, floor_with_splitting_bytes=21 * MIB + 1024)


def split_report() -> OneModelReport:
    return msgspec.structs.replace(
        compile_report(),
        budget="22MiB",
        solution=split_solution(),
        verification=msgspec.structs.replace(
            verification(),
            **dict.fromkeys(
                ("predicted_peak_bytes", "measured_peak_bytes", "measured_peak_default_session_bytes"), 43 * MIB // 2
            ),
        ),
        recomputes=(),
        regions=region_reports(splitting()),
        split_obstacle="tensor 's' (8.00 MiB) is read by 'join', which has no slicing rule",
    )


def obstacle_report() -> OneModelReport:
    return msgspec.structs.replace(
        impossible_report(), split_obstacle="output 'y' (1.00 MiB) is a model output and must exist whole"
    )


def split_inspect_report() -> InspectReport:
    report = inspect_plan(Path("net.plan.json"), split_plan_file())
    return msgspec.structs.replace(report, promises=())  # as if nobody had verified it


def proposal_report() -> InspectReport:
    """What the search would split in the net as it is."""
    asked = splitting()
    return msgspec.structs.replace(
        inspect_model(Path("net.onnx"), graph(), profile(), problem(22 * MIB), "22MiB"),
        regions=estimated_regions(asked.regions, asked.facts, graph()),
    )


def step_facts() -> StepFacts:
    return StepFacts(
        forward_ops=5,
        backward_ops=9,
        update_ops=4,
        parameters=1_234,
        trained=("w1", "w2"),
        frozen=("scale", "table"),
        state={"w1.next": "w1", "w2.next": "w2"},
        inputs=("x",),
        loss="loss",
        target="target",
        notes=("output 'y' is a Softmax: the loss is computed from what goes into it",),
    )


def train_report(compiled: OneModelReport | None = None) -> TrainReport:
    return TrainReport(
        model="net.onnx",
        step="net.train.onnx",
        state="net.train.state.npz",
        facts=step_facts(),
        snippet="for batch in batches:\n    print(loss)\n",
        compiled=compiled,
    )


def max_batch_report(*, is_proved: bool = True) -> MaxBatchReport:
    return MaxBatchReport(
        model="net.onnx",
        budget="32MiB",
        budget_bytes=32 * MIB,
        keep_all_batch=2,
        max_batch=3,
        best=_probe(3, fits=True),
        probes=(
            BatchProbe(2, 30 * MIB, 2_000_000, 600_000, True, 30 * MIB, 0.0),
            _probe(3, fits=True),
            _probe(4, is_ruled_out=is_proved),
        ),
    )


def no_batch_report() -> MaxBatchReport:
    return MaxBatchReport(
        model="net.onnx",
        budget="8MiB",
        budget_bytes=8 * MIB,
        keep_all_batch=None,
        max_batch=None,
        best=None,
        probes=(_probe(1),),
    )


def _probe(batch: int, *, fits: bool = False, is_ruled_out: bool = False) -> BatchProbe:
    peak, overhead = (31 * MIB, 12.5) if fits else (None, None)
    return BatchProbe(batch, 15 * batch * MIB, 1_000_000 * batch, 300_000 * batch, fits, peak, overhead, is_ruled_out)
