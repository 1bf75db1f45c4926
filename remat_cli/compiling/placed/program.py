"""The program of a plan that says where ops run: a model per session, and copies between them."""

from pathlib import Path

from remat_cli.base.errors import ModelError
from remat_cli.compiling.placed.cut import cut_of, sides_of
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.program import input_specs
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.plan import Compute, Copy, Plan
from remat_cli.core.schedule.problem import Problem, input_ops
from remat_cli.core.schedule.program import CopyAction, Program, ProgramAction, SegmentFile, SessionAction
from remat_cli.core.schedule.segments import Cut, Segment, held_bytes_of
from remat_cli.core.schedule.timeline import timeline
from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.onnx_io.read.load import outputs_of, prepare_optimized
from remat_cli.onnx_io.write.segment_models import SegmentSource, WrittenSegments, write_one_session, write_segments


def placed_program(read: PlanFile, path: Path, folder: Path) -> Program:
    """A plan for several devices as a model per segment, written into a folder.

    Raises:
        ModelError: the plan does not fit the model.
    """
    place, source = read.placed(), segment_source(read, path)
    problem, plan = source.problem, source.plan
    platform = Platform(read.graph, place.devices, place.profiles, place.links, place.session_bytes)
    cut = cut_of(platform, problem, plan, place.way)
    if place.way == "one_session":
        actions, written = _one_session(source, platform, cut, folder)
    else:
        written = write_cut(source, cut, folder)
        actions = _actions(problem, plan, cut, written)
    held = held_bytes_of(problem, plan.schedule, input_ops(read.graph, problem))
    return program_of(read, source, written, actions, folder, held)


def segment_source(read: PlanFile, path: Path) -> SegmentSource:
    """What models of segments are cut from.

    Raises:
        ModelError: the plan does not fit the model.
    """
    model = prepare_optimized(path)
    missing = {op.name for op in read.graph.ops} - {node.name for node in model.graph}
    if missing:
        raise ModelError(f"the plan's model {path} lacks op '{min(missing)}': compile again")
    return SegmentSource(model, read.graph, read.problem(), read.plan())


def write_cut(source: SegmentSource, cut: Cut, folder: Path) -> WrittenSegments:
    """Write the model of each session of a cut."""
    return write_segments(source, [action for action in cut.actions if isinstance(action, Segment)], folder)


def program_of(
    read: PlanFile,
    source: SegmentSource,
    written: WrittenSegments,
    actions: tuple[ProgramAction, ...],
    folder: Path,
    fixed_bytes: tuple[int, ...],
) -> Program:
    """Actions with what they work on; `fixed_bytes` is what each memory holds all through."""
    problem = source.problem
    return Program(
        folder=str(folder.resolve()),
        devices=read.placed().devices,
        memories=tuple(memory.name for memory in problem.memories),
        memory_of=tuple(device.memory for device in problem.devices),
        budgets=tuple(memory.budget_bytes for memory in problem.memories),
        actions=actions,
        inputs=input_specs(read),
        outputs=outputs_of(source.model),
        values=written.values,
        weights=written.weights,
        overlap=problem.overlap,
        custom_ops=read.request.custom_ops,
        planned_ns=source.plan.time_ns,
        planned_fixed_bytes=fixed_bytes,
    )


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


def step_workspace(problem: Problem, plan: Plan, file: SegmentFile) -> dict[str, int]:
    """Workspace in bytes of each op of a segment, by name."""
    needs = {}
    for name, number in zip(file.ops, file.op_steps, strict=True):
        step = plan.schedule.steps[number]
        assert isinstance(step, Compute)
        needs[name] = problem.ops[step.op].workspace_bytes[step.device]
    return needs
