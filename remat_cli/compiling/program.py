"""From PLAN.json to a program: the models, names and figures that are needed to run a plan."""

from pathlib import Path

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.base.files import sha256
from remat_cli.compiling.cut import cut_of, sides_of
from remat_cli.compiling.paged_program import paged_actions, spill_of, step_workspace
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.record import find_file
from remat_cli.compiling.runs_on import refuse_other_processors
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.schedule.graph import Tensor
from remat_cli.core.schedule.plan import Copy, Plan
from remat_cli.core.schedule.problem import Problem, input_ops
from remat_cli.core.schedule.program import (
    CopyAction,
    InputSpec,
    Program,
    ProgramAction,
    SessionAction,
    Value,
    WeightUse,
)
from remat_cli.core.schedule.segments import Cut, Segment, held_bytes_of
from remat_cli.core.schedule.timeline import timeline
from remat_cli.devices.provider_table import PROVIDERS, named_spec
from remat_cli.onnx_io.read.load import outputs_of, prepare_optimized
from remat_cli.onnx_io.write.segment_models import (
    SegmentSource,
    WrittenSegments,
    whole_segment,
    write_one_session,
    write_segments,
)


def make_program(read: PlanFile, path: Path, folder: Path) -> Program:
    """Write what a plan needs to be run into a folder.

    Raises:
        ModelError: its model is gone or was changed, the plan does not fit it, or was made for other processors.
    """
    model = find_file(read.output, path, "model")
    if sha256(model) != read.output.sha256:
        raise ModelError(f"{model} is not the model that the plan was written with: compile again")
    refuse_other_processors(read)
    if read.placement is None:
        return _whole_program(read, model)
    return placed_program(read, model, folder)


def input_specs(read: PlanFile) -> tuple[InputSpec, ...]:
    """What a caller feeds."""
    tensors = [read.graph.tensors[i] for i in read.graph.model_inputs]
    return tuple(InputSpec(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)


def _whole_program(read: PlanFile, path: Path) -> Program:
    """The rewritten model of a plan for one device, in one session under the plan's exact options."""
    model = prepare_optimized(path)
    inputs = input_specs(read)
    segment = whole_segment(model, path.name, tuple(spec.name for spec in inputs), read.promise.order)
    spec = named_spec(read.device)
    if not spec.threads:
        spec = msgspec.structs.replace(spec, threads=read.promise.exact_session.intra_op_num_threads)
    kept: dict[str, Tensor | WeightUse] = {tensor.name: tensor for tensor in read.graph.tensors if tensor.kept}
    kept |= {name: use for name, use in segment.weights.items() if name in segment.makes}
    action = SessionAction(
        device=0,
        segment=segment,
        workspace_bytes=_workspace(read),
        planned_ns=(0, read.solved.time_ns),
        planned_ops_ns=dict(zip(_ops(read), timeline(read.problem(), read.schedule), strict=True)),
        planned_bytes=(read.promise.peak_bytes,),
    )
    return Program(
        folder=str(path.resolve().parent),
        devices=(spec,),
        memories=(spec.memory,),
        memory_of=(0,),
        budgets=(read.request.budget_bytes,),
        actions=(action,) if segment.makes else (),  # outputs that are inputs are the caller's already
        inputs=inputs,
        outputs=outputs_of(model),
        values={name: Value(kept[name].dtype, kept[name].shape, kept[name].size_bytes) for name in segment.makes},
        planned_ns=read.solved.time_ns,
        planned_fixed_bytes=(read.promise.fixed_bytes,),
        custom_ops=read.request.custom_ops,
    )


def _workspace(read: PlanFile) -> dict[str, int]:
    """Workspace in bytes of each op that runs, repeated ones too, by its name in the rewritten model."""
    costs = {cost.name: cost.workspace_bytes for cost in read.profile.ops}
    return {name: costs[read.graph.ops[op].name] for name, op in zip(_ops(read), read.schedule.op_ids(), strict=True)}


def _ops(read: PlanFile) -> list[str]:
    """Names of the ops that run in a rewritten model, gates left out."""
    gates = set(read.promise.gates)
    return [name for name in read.promise.order if name not in gates]


def placed_program(read: PlanFile, path: Path, folder: Path) -> Program:
    """A plan for several devices as a model per segment, written into a folder.

    Raises:
        ModelError: the plan does not fit the model.
    """
    place = read.placement
    assert place is not None
    problem, plan = read.problem(), read.plan()
    platform = Platform(read.graph, place.devices, place.profiles, place.links, place.session_bytes)
    paged = None if read.paging is None else read.paged(plan)
    cut = cut_of(platform, problem, plan, place.way) if paged is None else paged.sessions.cut
    model = prepare_optimized(path)
    missing = {op.name for op in read.graph.ops} - {node.name for node in model.graph}
    if missing:
        raise ModelError(f"the plan's model {path} lacks op '{min(missing)}': compile again")
    source = SegmentSource(model, read.graph, problem, plan)
    if place.way == "one_session":
        actions, written = _one_session(source, platform, cut, folder)
    else:
        segments = [action for action in cut.actions if isinstance(action, Segment)]
        written = write_segments(source, segments, folder)
        actions = (
            _actions(problem, plan, cut, written) if paged is None else paged_actions(problem, plan, paged, written)
        )
    return Program(
        folder=str(folder.resolve()),
        devices=place.devices,
        memories=tuple(memory.name for memory in problem.memories),
        memory_of=tuple(device.memory for device in problem.devices),
        budgets=tuple(memory.budget_bytes for memory in problem.memories),
        actions=actions,
        inputs=input_specs(read),
        outputs=outputs_of(model),
        values=written.values,
        weights=written.weights,
        overlap=problem.overlap,
        custom_ops=read.request.custom_ops,
        planned_ns=plan.time_ns if paged is None else paged.paging.time_ns,
        spill=None if paged is None else spill_of(paged, written, [weight.name for weight in read.graph.weights]),
        planned_fixed_bytes=_fixed_bytes(read, problem, plan, paged),
    )


def _fixed_bytes(read: PlanFile, problem: Problem, plan: Plan, paged: PagedPlan | None) -> tuple[int, ...]:
    """What each memory holds all through, without weights that page."""
    held = held_bytes_of(problem, plan.schedule, input_ops(read.graph, problem))
    return held if paged is None else (held[0] - paged.sessions.released_bytes, *held[1:])


def _one_session(
    source: SegmentSource, platform: Platform, cut: Cut, folder: Path
) -> tuple[tuple[ProgramAction, ...], WrittenSegments]:
    """The session that holds all ops, those on the host too."""
    problem, plan = source.problem, source.plan
    sides = sides_of(platform.specs, plan, input_ops(source.graph, problem))
    mixing = None if sides is None else PROVIDERS[platform.specs[sides[1]].provider].mixing
    if sides is None or mixing is None:
        raise ModelError("the plan's devices cannot share a session: compile again")
    host, device = sides
    (segment,) = (action for action in cut.actions if isinstance(action, Segment))
    written, part = write_one_session(source, segment, host, mixing.label, folder)
    spans, (file,) = timeline(problem, plan.schedule), written.files
    action = SessionAction(
        device=device,
        segment=file,
        workspace_bytes=step_workspace(problem, plan, file),
        planned_ns=(0, plan.time_ns),
        planned_bytes=cut.peak_bytes,
        planned_ops_ns={name: spans[step] for name, step in zip(file.ops, file.op_steps, strict=True)},
        host_ops=part.ops,
        host_device=host,
        host_weights=part.weights,
    )
    return (action,), written


def _actions(problem: Problem, plan: Plan, cut: Cut, written: WrittenSegments) -> tuple[ProgramAction, ...]:
    spans = timeline(problem, plan.schedule)
    files = iter(written.files)
    actions: list[ProgramAction] = []
    for number, action in enumerate(cut.actions):
        held = tuple(curve[number] for curve in cut.memory_bytes)
        drops = tuple(written.instances[instance] for instance in action.drops)
        if isinstance(action, Segment):
            file = next(files)
            ends = (spans[action.steps[0]][0], spans[action.steps[-1]][1])
            needs = step_workspace(problem, plan, file)
            ops = {name: spans[step] for name, step in zip(file.ops, file.op_steps, strict=True)}
            actions.append(SessionAction(action.device, file, drops, needs, ends, held, ops))
        else:
            step = plan.schedule.steps[action.step]
            assert isinstance(step, Copy)
            names = (written.instances[action.source], written.instances[action.target])
            actions.append(CopyAction(step.source, step.target, *names, drops, spans[action.step], held))
    return tuple(actions)
