"""From a plan to a judged model: rewrite, read it back, judge it again, gates included."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec

from remat_cli import __version__
from remat_cli.base import progress as stages
from remat_cli.base.errors import RematError
from remat_cli.base.progress import Progress
from remat_cli.core.calm import calm
from remat_cli.core.graph import Graph
from remat_cli.core.plan import Plan
from remat_cli.core.problem import make_problem
from remat_cli.core.profile import OpCost, Profile
from remat_cli.core.simulate import baseline
from remat_cli.onnx_io.rewrite import RewriteInfo, Rewritten, rewrite, set_model_metadata
from remat_cli.onnx_io.to_graph import to_graph
from remat_cli.onnx_io.weights import weight_uses
from remat_cli.settings.config import Config
from remat_cli.stages.prepare import Prepared
from remat_cli.stages.solve import Answer, answer_again, tidied

ATTEMPTS = 4


@dataclass(frozen=True)
class Written:
    """A rewritten model as the judge sees it: `graph` and `plan` are those of the file, gates included."""

    rewritten: Rewritten
    graph: Graph
    plan: Plan
    fixed_bytes: int

    @property
    def order(self) -> tuple[str, ...]:
        """Op names in the order in which the runtime must run them, gates included."""
        return tuple(op.name for op in self.graph.ops)


def write_within_budget(
    prepared: Prepared, profile: Profile, first: Answer, config: Config, progress: Progress
) -> tuple[Answer, Written | None]:
    """Rewrite, and where gates push the peak over the budget, plan again for that much less; None: no plan fits.

    Gates are live tensors of a few bytes, so a plan that uses the budget to the last byte may not survive them.
    """
    answer, slack_bytes = tidied(first), 0
    for _ in range(ATTEMPTS):
        if answer.plan is None:
            return answer, None
        progress.stage(stages.REWRITING)
        answer, written = _write_calmly(prepared, profile, answer, config)
        excess_bytes = _excess_bytes(answer, written)
        if excess_bytes <= 0:
            return answer, written
        if answer.question.least:
            return with_budget(answer, written, written.plan.peak)
        slack_bytes += excess_bytes
        answer = tidied(answer_again(first, slack_bytes, config, progress))
    run = msgspec.structs.replace(answer.run, status="not_found")
    return Answer(answer.question, run, None), None


def _write_calmly(prepared: Prepared, profile: Profile, found: Answer, config: Config) -> tuple[Answer, Written]:
    """Write the plan in its calm order; where gates push that over the budget, calm within less, else as it was found.

    The last one tried where none fits.
    """
    answer = _calmed(found, config, 0)
    written = _write(prepared, profile, answer)
    excess_bytes = _excess_bytes(answer, written)
    if excess_bytes <= 0 or found.question.least:
        return answer, written
    for other in (_calmed(found, config, excess_bytes), found):
        if other.plan != answer.plan:
            answer, written = other, _write(prepared, profile, other)
            if _excess_bytes(answer, written) <= 0:
                break
    return answer, written


def _calmed(found: Answer, config: Config, room_bytes: int) -> Answer:
    """The answer with its steps in an order that needs few gates, some room left below budget and baseline."""
    assert found.plan is not None
    most_bytes = min(found.question.budget_bytes, found.question.baseline.peak) - room_bytes
    plan = calm(found.question.problem.with_budget(most_bytes), found.plan, config.order)
    return dataclasses.replace(found, plan=plan)


def _excess_bytes(answer: Answer, written: Written) -> int:
    """By how much the written model is over the budget."""
    return written.plan.peak - answer.question.budget_bytes


def _write(prepared: Prepared, profile: Profile, answer: Answer) -> Written:
    assert answer.plan is not None
    source = prepared.source
    info = RewriteInfo(answer.question.budget_bytes, source.sha256, __version__, source.bound_dims, source.interface)
    rewritten = rewrite(prepared.reference, prepared.graph, answer.plan, info)
    written = _judge_again(prepared, profile, answer.plan, rewritten)
    set_model_metadata(rewritten.model, "remat.predicted_peak_bytes", str(written.plan.peak))
    return written


def _judge_again(prepared: Prepared, profile: Profile, plan: Plan, rewritten: Rewritten) -> Written:
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
    problem = make_problem(graph, judged, 0)
    return Written(rewritten, graph, baseline(problem), judged.fixed_bytes)


def _added_weight_bytes(prepared: Prepared, rewritten: Rewritten) -> int:
    """Bytes of the small constants that gates brought along."""
    before = sum(use.size_bytes for use in weight_uses(prepared.reference))
    return sum(use.size_bytes for use in weight_uses(rewritten.model)) - before


def write_with_room(
    prepared: Prepared, profile: Profile, found: Answer, room_bytes: int, config: Config, progress: Progress
) -> tuple[Answer, Written | None]:
    """Like `write_within_budget`, with so many bytes of the budget left over."""
    budget_bytes = found.question.budget_bytes
    if found.plan is None or found.plan.peak > budget_bytes - room_bytes:
        found = answer_again(found, room_bytes, config, progress)
    narrow = _asking(found, budget_bytes - room_bytes)
    answer, written = write_within_budget(prepared, profile, narrow, config, progress)
    return with_budget(answer, written, budget_bytes) if written is not None else (answer, None)


def with_budget(answer: Answer, written: Written, budget_bytes: int) -> tuple[Answer, Written]:
    """The same plan and model as the answer to a question with another budget."""
    set_model_metadata(written.rewritten.model, "remat.budget_bytes", str(budget_bytes))
    return _asking(answer, budget_bytes), written


def _asking(answer: Answer, budget_bytes: int) -> Answer:
    """The same answer to a question with another budget."""
    question = dataclasses.replace(answer.question, problem=answer.question.problem.with_budget(budget_bytes))
    return Answer(question, answer.run, answer.plan)
