"""A plan on several devices joined with what reports need to tell of it: devices, links, memories, the matrix."""

from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec

from remat_cli.base.present import present
from remat_cli.core.schedule.floor import working_set_bytes
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Compute, Copy, Instance, Plan, Step
from remat_cli.core.schedule.problem import OpSpec, Problem, device_tensor_ids, input_ops
from remat_cli.core.schedule.simulate import baseline, fixed_bytes_of
from remat_cli.core.schedule.timeline import timeline
from remat_cli.core.values.profile import Placement
from remat_cli.report.explain import (
    DeviceReport,
    LinkReport,
    LiveTensor,
    MemoryReport,
    PlacedLife,
    PlacedStep,
    PlacementMatrix,
    Recompute,
    StepKind,
    fullest_step,
    gaps_of,
    held_at,
    live_tensor,
    lives_of,
    repeats,
)


class PlacedPlan(msgspec.Struct, frozen=True):
    """The problem of several devices with its judged plan; `graph` and `placement` say what its numbers stand for.

    Where no plan was found, `plan` is None and what is told of it is nothing.
    """

    graph: Graph
    problem: Problem
    placement: Placement
    plan: Plan | None = None

    @property
    def known_plan(self) -> Plan:
        """The plan of what has one."""
        return present(self.plan, "a plan to report steps of")

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the plan."""
        return self.plan.schedule.steps if self.plan else ()

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Planned start and end of each step, in nanoseconds."""
        return timeline(self.problem, self.plan.schedule) if self.plan else ()

    @property
    def given(self) -> int:
        """How many ops in front stand for model inputs."""
        return input_ops(self.graph, self.problem)

    @property
    def op_names(self) -> tuple[str, ...]:
        """Name of each op of the problem; that of the tensor where it stands for a model input."""
        ids = device_tensor_ids(self.graph, self.problem)
        return (*(self.graph.tensors[i].name for i in ids[: self.given]), *(op.name for op in self.graph.ops))


def device_reports(
    placed: PlacedPlan,
    peak_bytes: Mapping[str, int | None] | None = None,
    busy_ns: Mapping[str, int] | None = None,
) -> tuple[DeviceReport, ...]:
    """One report per device; measured peaks by memory (or device) and measured times by device, where there are any."""
    first, seen, busy = baseline(placed.problem), peak_bytes or {}, busy_ns or {}
    energy = placed.plan.energy_nj if placed.plan else ()
    # Of each device how many ops it computes and how long that takes.
    planned = [(0, 0)] * len(placed.problem.devices)
    for step, (start, end) in zip(placed.steps, placed.spans, strict=True):
        if isinstance(step, Compute) and step.op >= placed.given:
            count, time = planned[step.device]
            planned[step.device] = (count + 1, time + end - start)
    reports = []
    for number, (spec, profile) in enumerate(zip(placed.placement.devices, placed.placement.profiles, strict=True)):
        memory = placed.problem.devices[number].memory
        reports.append(
            DeviceReport(
                name=spec.name,
                provider=spec.provider,
                memory=profile.memory,
                is_measured=profile.provenance.measured,
                budget_bytes=placed.problem.memories[memory].budget_bytes,
                baseline_peak_bytes=first.peak_bytes[memory],
                predicted_peak_bytes=predicted_peak(placed, memory),
                measured_peak_bytes=seen.get(profile.memory, seen.get(spec.name)),
                ops=planned[number][0],
                time_ns=planned[number][1],
                measured_time_ns=busy.get(spec.name),
                energy_nj=energy[number] if energy and profile.power_watts is not None else None,
                unsupported=len(profile.unsupported),
            )
        )
    return tuple(reports)


def predicted_peak(placed: PlacedPlan, memory: int) -> int | None:
    """What the plan needs of a memory as it is cut to be run, or by its schedule where that is not known."""
    if placed.plan is None:
        return None
    return placed.placement.peak_bytes.get(placed.problem.memories[memory].name, placed.plan.peak_bytes[memory])


def link_reports(placed: PlacedPlan) -> tuple[LinkReport, ...]:
    """One report per link between two memories of the plan, whether it is used or not."""
    names = [memory.name for memory in placed.problem.memories]
    used: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for step, (start, end) in zip(placed.steps, placed.spans, strict=True):
        if isinstance(step, Copy):
            source, target = (names[placed.problem.devices[d].memory] for d in (step.source, step.target))
            used[source, target].append((placed.problem.tensors[step.tensor].size_bytes, end - start))
    return tuple(
        LinkReport(
            source=link.source,
            target=link.target,
            copies=len(used[link.source, link.target]),
            bytes=sum(size for size, _ in used[link.source, link.target]),
            time_ns=sum(time for _, time in used[link.source, link.target]),
            is_measured=link.measured,
        )
        for link in placed.placement.links
        if link.source in names and link.target in names
    )


def memory_reports(placed: PlacedPlan) -> tuple[MemoryReport, ...]:
    """What each memory holds over the steps of the plan, and what is there when it is fullest."""
    plan = placed.known_plan
    fixed = fixed_bytes_of(placed.problem, plan.schedule)
    reports = []
    for number, (memory, curve) in enumerate(zip(placed.problem.memories, plan.memory_bytes, strict=True)):
        step = fullest_step(curve)
        reports.append(
            MemoryReport(
                name=memory.name,
                devices=tuple(device.name for device in placed.problem.devices if device.memory == number),
                budget_bytes=memory.budget_bytes,
                fixed_bytes=fixed[number],
                peak_bytes=placed.placement.peak_bytes.get(memory.name, plan.peak_bytes[number]),
                peak_step=step,
                peak_op=None if step is None else step_label(placed, step),
                memory_bytes=curve,
                run_memory_bytes=placed.placement.memory_bytes.get(memory.name, ()),
                alive=() if step is None else alive_in(placed, plan, number, step),
                workspace_bytes=0 if step is None else curve[step] - plan.live_bytes[number][step],
            )
        )
    return tuple(reports)


def step_label(placed: PlacedPlan, number: int) -> str:
    """The op that a step runs, or what it copies where."""
    step = placed.steps[number]
    if isinstance(step, Compute):
        return placed.op_names[step.op]
    tensor = placed.graph.tensors[device_tensor_ids(placed.graph, placed.problem)[step.tensor]].name
    return f"copy of {tensor} to {placed.problem.devices[step.target].name}"


def alive_in(
    placed: PlacedPlan, plan: Plan, memory: int, step: int, gone: Collection[int] = ()
) -> tuple[LiveTensor, ...]:
    """The tensors held in a memory during a step, largest first; a storage is listed under its owner's name.

    Instances that are `gone` meanwhile, by identity, are not among them.
    """

    def rank(pair: tuple[Instance, Instance]) -> tuple[int, int, bool]:
        instance, owner = pair
        return -placed.problem.tensors[owner.tensor].size_bytes, owner.storage, instance is not owner

    found = sorted((pair for pair in held_at(plan, memory, step) if id(pair[0]) not in gone), key=rank)
    return tuple(live_tensor(placed.graph, placed.problem, *pair) for pair in found)


def placement_matrix(placed: PlacedPlan) -> PlacementMatrix:
    """Where and when every op is computed, copied and kept."""
    plan = placed.known_plan
    problem, producers = placed.problem, [tensor.producer for tensor in placed.problem.tensors]
    seen: set[int] = set()
    steps = []
    for step, (start, end) in zip(placed.steps, placed.spans, strict=True):
        if isinstance(step, Copy):
            steps.append(PlacedStep("copy", producers[step.tensor], step.source, start, end, step.target))
        else:
            kind: StepKind = "given" if step.op < placed.given else "recompute" if step.op in seen else "compute"
            steps.append(PlacedStep(kind, step.op, step.device, start, end))
            seen.add(step.op)
    return PlacementMatrix(
        rows=placed.op_names,
        devices=tuple(device.name for device in problem.devices),
        memories=tuple(memory.name for memory in problem.memories),
        memory_of=tuple(device.memory for device in problem.devices),
        steps=tuple(steps),
        lives=tuple(PlacedLife(producers[i.tensor], i.memory, i.birth, i.death) for i in plan.instances),
    )


def placed_recomputes(placed: PlacedPlan) -> tuple[Recompute, ...]:
    """Every op that runs more than once on whatever devices, the costliest first."""
    plan, ids = placed.known_plan, device_tensor_ids(placed.graph, placed.problem)
    lives = lives_of(plan)
    found = []
    for op, places in repeats(plan).items():
        # Explained by the gap in its results' lives that frees most; where none does, it saves a copy.
        spec, made = placed.graph.ops[op - placed.given], placed.problem.ops[op]
        memory, tensor, dropped, again = max(
            gaps_of(lives, made.outputs, {step for step, _ in places[1:]}),
            key=lambda gap: (placed.problem.tensors[gap[1]].size_bytes if gap[2] < gap[3] - 1 else 0, gap[3] - gap[2]),
        )
        freed = placed.problem.tensors[tensor].size_bytes if dropped < again - 1 else 0
        held = plan.memory_bytes[memory][dropped + 1 : again]
        one = Recompute(
            op=spec.name,
            op_type=spec.op_type,
            runs=len(places),
            time=sum(made.time_ns[device] or 0 for _, device in places[1:]),
            tensor=placed.graph.tensors[ids[tensor]].name,
            freed_bytes=freed,
            dropped_after=dropped,
            made_again_at=again,
            peak_without_bytes=max(held, default=0) + freed,
            memory=placed.problem.memories[memory].name,
            devices=tuple(placed.problem.devices[device].name for _, device in places),
        )
        found.append(one)
    return tuple(sorted(found, key=lambda r: (-r.time, r.op)))


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """An op, and the least bytes that each memory in which it could run would have to hold meanwhile."""

    op: str
    op_type: str
    needs: dict[str, int]


def find_obstacle(placed: PlacedPlan) -> Obstacle | None:
    """The op furthest above the budget of every memory in which it could run; None where each op fits somewhere."""
    problem, found = placed.problem, []
    for index, op in enumerate(problem.ops[placed.given :]):
        # The least that each memory needs while the op runs there.
        workspace: dict[int, int] = {}
        for device, time in enumerate(op.time_ns):
            if time is not None:
                memory, bytes_ = problem.devices[device].memory, op.workspace_bytes[device]
                workspace[memory] = min(workspace.get(memory, bytes_), bytes_)
        needs = {memory: bytes_ + _held(problem, op, memory, placed.given) for memory, bytes_ in workspace.items()}
        excess = min(need - problem.memories[memory].budget_bytes for memory, need in needs.items())
        if excess > 0:
            found.append((excess, -index, needs))
    if not found:
        return None
    _, negative, needs = max(found, key=lambda entry: entry[:2])
    op_node = placed.graph.ops[-negative]
    named = {problem.memories[memory].name: need for memory, need in needs.items()}
    return Obstacle(op=op_node.name, op_type=op_node.op_type, needs=named)


def _held(problem: Problem, op: OpSpec, memory: int, given: int) -> int:
    """What lies in a memory beside workspace; model inputs are in the fixed part of the caller's memory already."""
    held = problem.memories[memory].fixed_bytes + working_set_bytes(problem, op)
    if len(problem.memories) > 1:
        held += sum(problem.weight_bytes[weight] for weight in op.weights)
    if problem.memories[memory].fixed_bytes:
        held -= sum(problem.tensors[tensor].size_bytes for tensor in op.inputs if tensor < given)
    return held
