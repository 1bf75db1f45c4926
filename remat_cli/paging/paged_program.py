"""A plan that pages as actions and transfers by the names of what they work on."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from remat_cli.compiling.placed.program import program_of, segment_source, step_workspace, write_cut
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.paging.paged_plan import PagedPlan, file_offsets
from remat_cli.core.paging.paged_sessions import Image, PagedSessions, PagedStep
from remat_cli.core.paging.paging_rules import MoveRule
from remat_cli.core.schedule.problem import input_ops
from remat_cli.core.schedule.program import (
    LoadAction,
    PageMove,
    PagePlace,
    Program,
    ProgramAction,
    SessionAction,
    Spill,
    WeightImage,
)
from remat_cli.core.schedule.segments import held_bytes_of
from remat_cli.core.schedule.timeline import timeline
from remat_cli.onnx_io.write.segment_models import WrittenSegments


def paged_program(read: PlanFile, path: Path, folder: Path) -> Program:
    """A plan that pages as a model per session, and when each is opened, run, written and read.

    Raises:
        ModelError: the plan does not fit the model.
    """
    source = segment_source(read, path)
    problem, plan = source.problem, source.plan
    paged = read.paged(plan)
    written = write_cut(source, paged.sessions.cut, folder)
    held, *others = held_bytes_of(problem, plan.schedule, input_ops(read.graph, problem))
    fixed_bytes = (held - paged.sessions.released_bytes, *others)
    # Sessions when they are opened and run, stalls included, with what is held meanwhile.
    sessions, first = paged.sessions, paged.sessions.first_action
    fixed = problem.memories[0].fixed_bytes - sessions.released_bytes
    spans, ticks = timeline(problem, plan.schedule), paged.paging.memory.link.ticks  # so many to a nanosecond
    found: list[ProgramAction] = []
    for number, held in enumerate(paged.held_bytes, first):
        step, start = sessions.steps[number], paged.schedule.starts[number]
        when = (start // ticks, (start + sessions.problem.durations[number]) // ticks)
        if step.kind == "load":
            images = _images(sessions, step)
            packed = tuple(_name(image) for image in images if image.is_packed)
            found.append(LoadAction(step.session, tuple(map(_name, images)), packed, when, (fixed + held,)))
            continue
        file = written.files[step.session]
        shift = when[0] - spans[file.op_steps[0]][0]
        ops = {
            name: (spans[step][0] + shift, spans[step][1] + shift)
            for name, step in zip(file.ops, file.op_steps, strict=True)
        }
        drops = [written.instances[instance] for instance in sessions.cut.actions[step.session].drops]
        drops += [_name(image) for image in _images(sessions, step) if not image.is_packed]
        needs = step_workspace(problem, plan, file)
        found.append(SessionAction(0, file, tuple(drops), needs, when, (fixed + held,), ops))
    program = program_of(read, source, written, tuple(found), folder, fixed_bytes)
    spill = _spill_of(paged, written, [weight.name for weight in read.graph.weights])
    return msgspec.structs.replace(program, spill=spill, planned_ns=paged.paging.time_ns)


def _images(sessions: PagedSessions, step: PagedStep) -> list[Image]:
    return [image for image in sessions.images if image.session == step.session]


def _name(image: Image) -> str:
    """What an image is called among values; users see it in traces."""
    return f"weights of session {image.session + 1}, {'packed' if image.is_packed else 'in place'}"


def _spill_of(paged: PagedPlan, written: WrittenSegments, weights: Sequence[str]) -> Spill:
    """Transfers by the names of what they move; `weights` are names by number."""
    sessions, rules = paged.sessions, paged.paging.rules
    first, values = sessions.first_action, len(sessions.instances)
    names = [written.instances[instance] for instance in sessions.instances]
    names += [_name(image) for image in sessions.images]
    images = {
        _name(image): WeightImage(
            tuple(weights[weight] for weight in image.weights), sessions.problem.tensors[values + number].size_bytes
        )
        for number, image in enumerate(sessions.images)
    }
    starts = {(m.tensor, m.direction, m.gap): m.start for m in paged.schedule.transfers}
    offsets = file_offsets(sessions.problem, rules)

    def move_of(rule: MoveRule) -> PageMove:
        move, tensor, link = rule.move, sessions.problem.tensors[rule.move.tensor], sessions.problem.link
        begin = starts[move.tensor, move.direction, move.gap]
        end = begin + sessions.problem.transfer_ticks(move.tensor, move.direction)
        return PageMove(
            value=names[move.tensor],
            direction=move.direction,
            offset=offsets.get(move.tensor, 0),
            size_bytes=tensor.size_bytes,
            after_action=max(-1, rule.after_step - first),
            after_others=rule.after_others,
            away_after=max(-1, tensor.uses[move.gap] - first) if move.direction == "read" else -1,
            planned_ns=(begin // link.ticks, end // link.ticks),
        )

    return Spill(
        folder=paged.paging.memory.folder,
        file_bytes=paged.paging.file_bytes,
        lanes=tuple(tuple(map(move_of, lane)) for lane in rules.lanes),
        waits=rules.waits[first:],
        room_bytes=tuple(paged.paging.peak_bytes - inner for inner in sessions.inner_bytes[first:]),
        stall_ns=paged.paging.stall_ns,
        memory=paged.paging.memory.memory,
        images=images,
        places=tuple(
            PagePlace(names[life.tensor], begin, life.size_bytes)
            for life, begin in zip(paged.places.lives, paged.places.begins, strict=True)
            if not life.is_apart
        ),
    )
