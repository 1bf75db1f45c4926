"""From a plan to a judged model: rewrite, read it back, judge it again, gates included."""

from dataclasses import replace

import msgspec

from remat_cli import __version__
from remat_cli.base import progress as stages
from remat_cli.base.errors import RematError
from remat_cli.base.progress import Progress
from remat_cli.core.plan import Plan
from remat_cli.core.problem import make_problem
from remat_cli.core.profile import OpCost, Profile
from remat_cli.core.simulate import baseline
from remat_cli.core.tidy import calm
from remat_cli.onnx_io.interface import weight_uses
from remat_cli.onnx_io.rewrite import RewriteInfo, Rewritten, rewrite, set_model_metadata
from remat_cli.onnx_io.to_graph import to_graph
from remat_cli.stages.fit import excess_bytes, fit
from remat_cli.stages.planned import PlannedModel, WrittenModel
from remat_cli.stages.prepare import Prepared
from remat_cli.stages.solve import BudgetAnswer, Search, answer_again, tidied


def write_within_budget(planned: PlannedModel, search: Search, progress: Progress) -> PlannedModel:
    """Rewrite the model by its plan; without a written model where no plan fits.

    Gates are live tensors of a few bytes, so a plan that uses the budget to the last byte may not survive them, and is
    then planned again for less. For `min` the budget becomes what the written model needs.
    """

    def build(found: BudgetAnswer) -> tuple[BudgetAnswer, WrittenModel]:
        progress.stage(stages.REWRITING)
        return _write_calmly(planned.prepared, planned.profile, tidied(found), search)

    answer, written = fit(planned.answer, build, search, progress)
    if written is not None and answer.question.least and written.plan.peak > answer.question.budget_bytes:
        return with_budget(replace(planned, answer=answer, written=written), written.plan.peak)
    return replace(planned, answer=answer if written is not None else tidied(answer), written=written)


def write_with_room(planned: PlannedModel, room_bytes: int, search: Search, progress: Progress) -> PlannedModel:
    """Like `write_within_budget`, with so many bytes of the budget left over."""
    answer, budget_bytes = planned.answer, planned.answer.question.budget_bytes
    if answer.plan is None or answer.plan.peak > budget_bytes - room_bytes:
        answer = answer_again(answer, (room_bytes,), search, progress)
    narrow = write_within_budget(_asking(replace(planned, answer=answer), budget_bytes - room_bytes), search, progress)
    return with_budget(narrow, budget_bytes)


def with_budget(planned: PlannedModel, budget_bytes: int) -> PlannedModel:
    """The same plan and model as the answer to a question with another budget."""
    if planned.written is not None:
        set_model_metadata(planned.written.rewritten.model, "remat.budget_bytes", str(budget_bytes))
    return _asking(planned, budget_bytes)


def _asking(planned: PlannedModel, budget_bytes: int) -> PlannedModel:
    """The same answer to a question with another budget."""
    question = planned.answer.question
    asked = replace(question, problem=question.problem.with_budget(budget_bytes))
    return replace(planned, answer=replace(planned.answer, question=asked))


def _write_calmly(
    prepared: Prepared, profile: Profile, found: BudgetAnswer, search: Search
) -> tuple[BudgetAnswer, WrittenModel]:
    """Write the plan in its calm order; where gates push that over the budget, calm within less, else as it was found.

    The last one tried where none fits.
    """
    answer = _calmed(found, search, 0)
    written = _write(prepared, profile, answer)
    excess = _excess_bytes(answer, written)
    if not excess or found.question.least:
        return answer, written
    for other in (_calmed(found, search, excess), found):
        if other.plan != answer.plan:
            answer, written = other, _write(prepared, profile, other)
            if not _excess_bytes(answer, written):
                break
    return answer, written


def _calmed(found: BudgetAnswer, search: Search, room_bytes: int) -> BudgetAnswer:
    """The answer with its steps in an order that needs few gates, some room left below budget and baseline."""
    assert found.plan is not None
    most_bytes = min(found.question.budget_bytes, found.question.baseline.peak) - room_bytes
    return found.with_plan(calm(found.question.problem.with_budget(most_bytes), found.plan, search.limits.order))


def _excess_bytes(answer: BudgetAnswer, written: WrittenModel) -> int:
    """By how much the written model is over the budget."""
    return excess_bytes(answer.question.problem, written.peak_bytes)[0]


def _write(prepared: Prepared, profile: Profile, answer: BudgetAnswer) -> WrittenModel:
    assert answer.plan is not None
    source = prepared.source
    info = RewriteInfo(answer.question.budget_bytes, source.sha256, __version__, source.bound_dims, source.interface)
    rewritten = rewrite(prepared.reference, prepared.graph, answer.plan, info)
    written = _judge_again(prepared, profile, answer.plan, rewritten)
    set_model_metadata(rewritten.model, "remat.predicted_peak_bytes", str(written.plan.peak))
    return written


def _judge_again(prepared: Prepared, profile: Profile, plan: Plan, rewritten: Rewritten) -> WrittenModel:
    """Judge the written model from its own graph: the plan's steps at their measured cost, gates at none.

    Raises:
        RematError: the file would not run in the plan's order.
    """
    graph = to_graph(rewritten.model, rewritten.observed)
    executed = tuple(op.name for op in graph.ops if op.name not in rewritten.gate_ops)
    if executed != rewritten.step_ops:
        raise RematError("the rewritten model would not run in the plan's order: a bug in remat, please report it")
    known = {op.name: cost for op, cost in zip(prepared.graph.ops, profile.ops, strict=True)}
    costs = {
        name: msgspec.structs.replace(known[prepared.graph.ops[op].name], name=name)
        for name, op in zip(rewritten.step_ops, plan.schedule.op_ids(), strict=True)
    }
    ops = tuple(costs.get(op.name, OpCost(op.name, 0)) for op in graph.ops)
    fixed = _added_weight_bytes(prepared, rewritten)
    judged = msgspec.structs.replace(profile, ops=ops, weight_bytes=profile.weight_bytes + fixed)
    problem = make_problem(graph, judged)
    return WrittenModel(rewritten, graph, baseline(problem), judged.fixed_bytes)


def _added_weight_bytes(prepared: Prepared, rewritten: Rewritten) -> int:
    """Bytes of the small constants that gates brought along."""
    before = sum(use.size_bytes for use in weight_uses(prepared.reference))
    return sum(use.size_bytes for use in weight_uses(rewritten.model)) - before
