"""From what runs showed to better facts: correct what is known of ops, keep it, and plan again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest, ask
from remat_cli.compiling.learn.corrections import Corrections, remember_corrections, step_signatures, with_corrections
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.solve import answer
from remat_cli.compiling.write import write_within_budget
from remat_cli.core.schedule.loops import is_loop
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.values.learning import NOTHING, Correction
from remat_cli.core.values.profile import Profile
from remat_cli.ort_rules.lessons import Lesson


def corrections_of(planned: OneModel, lessons: Sequence[Lesson]) -> dict[str, Correction]:
    """What is known of ops where runs add to it, by signature. Runs with default options say nothing of ops."""
    names = step_signatures(planned.prepared.signatures, planned.written.rewritten.step_ops, planned.plan)
    found: dict[str, Correction] = {}
    for lesson in lessons:
        signature = names.get(lesson.learnt.op)
        if signature is None or lesson.correction == NOTHING or lesson.learnt.session != "exact":
            continue
        known = planned.prepared.corrections.get(signature, NOTHING)
        if known.and_also(lesson.correction) != known:
            found[signature] = found.get(signature, known).and_also(lesson.correction)
    return found


def workspaces_of(planned: OneModel, lessons: Sequence[Lesson]) -> dict[str, int]:
    """Bytes of workspace of ops that took more than profiled, by name: how much may depend on the values of a run."""
    ops = dict(zip(planned.written.rewritten.step_ops, planned.plan.schedule.op_ids(), strict=True))
    found: dict[str, int] = {}
    for lesson in lessons:
        learnt, op = lesson.learnt, ops.get(lesson.learnt.op)
        if op is None or learnt.cause != "workspace" or learnt.session != "exact":
            continue
        if learnt.measured_bytes > learnt.predicted_bytes:
            name = planned.prepared.graph.ops[op].name
            found[name] = max(learnt.measured_bytes, found.get(name, 0))
    return found


def noted(lessons: Sequence[Lesson], corrections: Corrections) -> tuple[Lesson, ...]:
    """The lessons to tell: those that led to corrections, else the first."""
    if not corrections:
        return tuple(lessons[:1])
    return tuple(
        replace(lesson, learnt=msgspec.structs.replace(lesson.learnt, is_corrected=True))
        for lesson in lessons
        if lesson.correction != NOTHING
    )


def plan_corrected(
    planned: OneModel, more: Corrections, request: CompileRequest, progress: Progress
) -> OneModel | Refused:
    """Plan and write the same model again, knowing more of its ops; what is new is kept for other models."""
    prepared = planned.prepared
    corrections = {**prepared.corrections, **more}
    remember_corrections(more, request.conditions)
    graph = with_corrections(prepared.graph, prepared.signatures, corrections)
    again = replace(planned, prepared=replace(prepared, graph=graph, corrections=corrections))
    return _plan_again(again, planned.profile, request, progress)


def plan_with_workspace(
    planned: OneModel, seen_bytes: Mapping[str, int], request: CompileRequest, progress: Progress
) -> OneModel | Refused:
    """Plan and write the same model again, with the workspace that a run showed, by op."""
    costs = tuple(
        msgspec.structs.replace(cost, workspace_bytes=max(cost.workspace_bytes, seen_bytes.get(cost.name, 0)))
        for cost in planned.profile.ops
    )
    return _plan_again(planned, msgspec.structs.replace(planned.profile, ops=costs), request, progress)


def plan_with_more_inside(
    planned: OneModel, more_bytes: int, request: CompileRequest, progress: Progress
) -> OneModel | Refused:
    """Plan and write the same model again, with so much more inside each loop over tiles.

    Default sessions may run the ops of a loop's body in another order than exact ones, in which costs were measured.
    """
    costs = tuple(
        msgspec.structs.replace(cost, workspace_bytes=cost.workspace_bytes + more_bytes) if is_loop(cost.name) else cost
        for cost in planned.profile.ops
    )
    return _plan_again(planned, msgspec.structs.replace(planned.profile, ops=costs), request, progress)


def _plan_again(planned: OneModel, profile: Profile, request: CompileRequest, progress: Progress) -> OneModel | Refused:
    graph, question = planned.prepared.graph, planned.answer.question
    platform = planned.platform.of_model(graph, profile)
    if planned.splitting is None:
        question = ask(platform, request)  # a share of the baseline, which may be another one now
    else:
        question = replace(question, problem=make_problem(graph, profile, question.budget_bytes))
    found = answer(question, request.search, progress)
    return write_within_budget(replace(planned, platform=platform, answer=found), request.search, progress)
