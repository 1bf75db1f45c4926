"""From what runs showed to better facts: correct what is known of ops, keep it, and plan again."""

from collections.abc import Sequence
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
    prepared = replace(prepared, graph=graph, corrections=corrections)
    platform = planned.platform.of_model(graph, planned.profile)
    question = planned.answer.question
    if planned.splitting is None:
        question = ask(platform, request)  # a share of the baseline, which may be another one now
    else:
        question = replace(question, problem=make_problem(graph, planned.profile, question.budget_bytes))
    found = answer(question, request.search, progress)
    first = replace(planned, prepared=prepared, platform=platform, answer=found)
    return write_within_budget(first, request.search, progress)


def plan_with_more_inside(
    planned: OneModel, more_bytes: int, request: CompileRequest, progress: Progress
) -> OneModel | Refused:
    """Plan and write the same model again, with so much more inside each loop over tiles.

    Default sessions may run the ops of a loop's body in another order than exact ones, in which costs were measured.
    """
    costs = [
        msgspec.structs.replace(cost, workspace_bytes=cost.workspace_bytes + more_bytes) if is_loop(cost.name) else cost
        for cost in planned.profile.ops
    ]
    profile, graph = msgspec.structs.replace(planned.profile, ops=tuple(costs)), planned.prepared.graph
    question = planned.answer.question
    question = replace(question, problem=make_problem(graph, profile, question.budget_bytes))
    found = answer(question, request.search, progress)
    platform = planned.platform.of_model(graph, profile)
    return write_within_budget(replace(planned, platform=platform, answer=found), request.search, progress)
