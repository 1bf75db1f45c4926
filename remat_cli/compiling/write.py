"""From a plan to a judged model: rewrite, read it back, judge it again, gates included."""

import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from remat_cli import __version__
from remat_cli.base import progress as stages
from remat_cli.base.errors import RematError
from remat_cli.base.progress import Progress
from remat_cli.compiling.fit import excess_bytes, fit
from remat_cli.compiling.learn.corrections import step_signatures, with_corrections
from remat_cli.compiling.optimise import OptimisedAs
from remat_cli.compiling.planned import Answered, OneModel, Refused, WrittenModel
from remat_cli.compiling.prepare import Prepared, free_names, op_threads, written_interface
from remat_cli.compiling.process.layouts import Layouts, OnProcessor, with_room
from remat_cli.compiling.process.steady import (
    EARLY_SHARE,
    Inside,
    inside,
    kinds_of,
    no_kinds,
    packed_in_bodies,
    with_early_outputs,
)
from remat_cli.compiling.solve import BudgetAnswer, Search, answer_again, tidied
from remat_cli.core.schedule.graph import Graph, without_buffers
from remat_cli.core.schedule.plan import Compute, Plan, Schedule
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.schedule.tidy import calm
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.devices.provider_table import gates_of
from remat_cli.onnx_io.read.compiled import BUDGET_KEY, LEFT, PEAK_KEY, PORTABLE_KEY
from remat_cli.onnx_io.read.interface import weight_uses
from remat_cli.onnx_io.read.layout_scene import differing_ops, in_turn, layout_weights
from remat_cli.onnx_io.read.load import save_work
from remat_cli.onnx_io.read.loaded import Touched, held_back, touched
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.arena_copies import arena_copies
from remat_cli.onnx_io.write.gates import UnheldError
from remat_cli.onnx_io.write.kernel_calls import heaps_of
from remat_cli.onnx_io.write.processor_guard import guard_for
from remat_cli.onnx_io.write.rewrite import RewriteInfo, Rewritten, rewrite, set_model_metadata
from remat_cli.onnx_io.write.steady import steady, weight_bytes_of
from remat_cli.ort_rules.arena_copies import ArenaCopyRules
from remat_cli.ort_rules.forecast import Judged, SessionForecast, Steady
from remat_cli.ort_rules.forms import Formed, InForm, best_form, may_gain, roomy_form
from remat_cli.ort_rules.layout import WholeLayout
from remat_cli.ort_rules.packing import PackingRules
from remat_cli.ort_rules.steady import FLAG_BYTES, SteadyForm
from remat_cli.runtime.sessions.loading import shapes_at_load
from remat_cli.runtime.sessions.session import Level, optimize
from remat_cli.splitting.tiles.build import reordered

P = TypeVar("P", bound=Answered)
FORM_TIME_SHARE = 1.001  # of the time of a plan: what room for the form's few bytes may cost
HOPELESS_SHARE = 1.05  # of the budget: what a plan takes of which no form is looked for
NEAR_SHARE = 1.01  # of the budget: what a plan takes that is told to those who did not get it
MOST_ORDERS = 3  # of a plan that is left to sessions
MOST_HEEDED = 3  # plans that heed what sessions were seen to hold beside the plan before
MOST_PASSES = 6  # of the optimiser, each answered by gates


def write_within_budget(planned: Answered, search: Search, progress: Progress) -> OneModel | Refused:
    """Rewrite the model by its plan; refused where no plan fits.

    Gates are live tensors of a few bytes, so a plan that uses the budget to the last byte may not survive them, and is
    then planned again for less. For `min` the budget becomes what the written model needs. A share is one of what
    planning can change, so the few bytes that a form holds all the time and those of gates come on top of it.
    """

    def build(found: BudgetAnswer, prepared: Prepared = planned.prepared) -> tuple[BudgetAnswer, WrittenModel]:
        is_first = found is first and prepared is planned.prepared
        if not (is_first and begun):
            progress.stage(stages.REWRITING)
            written = _write_calmly(prepared, planned.profile, tidied(found), search)
            if not is_first:
                return written
            begun.append(written)
        return begun[0]

    first, begun = planned.answer, list[tuple[BudgetAnswer, WrittenModel]]()  # the first one is asked for twice
    heeded = None if planned.prepared.layout is None else _heeding_layouts(planned, build, search, progress)
    answer, written = heeded or fit(first, build, search, progress)
    is_for_form = (
        planned.prepared.layout is None or answer.plan is None
    )  # else a plan heeds copies in other layouts too
    may_be_steady = is_for_form and planned.prepared.conditions.may_be_steady
    if (
        may_be_steady
        and first.plan is not None
        and not first.question.least
        and (answer.plan is None or answer.plan.time_ns > FORM_TIME_SHARE * first.plan.time_ns)
    ):  # room for the small tensors of a form took the plan, or made it slower
        plain_answer, plain = build(first, planned.prepared.without_form())
        if not _excess_bytes(plain_answer, plain):
            answer, written = plain_answer, plain
    if written is None and first.plan is not None and first.question.asks_for_all:
        answer, written = build(first)
    if written is None:
        refused = planned.refused(tidied(answer))
        if not begun:
            return refused
        return replace(refused, near=_near(planned, *begun[0]), needed_bytes=begun[0][1].least_budget_bytes)
    found = replace(planned.as_model(written), answer=answer)
    may_grow = answer.question.least or answer.question.is_share
    is_grown = may_grow and written.least_budget_bytes > answer.question.budget_bytes
    return with_budget(found, written.least_budget_bytes) if is_grown else found


def _near(planned: Answered, answer: BudgetAnswer, written: WrittenModel) -> OneModel | None:
    """The first plan in its form, where that needs hardly more than the budget, as the answer to one that holds it."""
    needed_bytes = written.least_budget_bytes
    if answer.plan is None or needed_bytes > NEAR_SHARE * answer.question.budget_bytes:
        return None
    return with_budget(replace(planned.as_model(written), answer=answer), needed_bytes)


def _heeding_layouts(
    planned: Answered,
    build: Callable[[BudgetAnswer], tuple[BudgetAnswer, WrittenModel]],
    search: Search,
    progress: Progress,
) -> tuple[BudgetAnswer, WrittenModel] | None:
    """The answer, planned again with what copies in other layouts were seen to take beside its ops; None: none fits."""
    first = found = planned.answer
    if found.plan is None or found.question.least:
        return None
    room_bytes = (0,) * len(planned.prepared.graph.ops)
    for _ in range(MOST_HEEDED):
        answer, written = build(found)
        if not _excess_bytes(answer, written):
            return answer, written
        if search.clock.ends(0):
            return None
        room_bytes = tuple(map(max, room_bytes, written.beyond))
        tight = replace(first.question, problem=with_room(first.question.problem, room_bytes))
        again = answer_again(replace(first, question=tight), (0,), search, progress)
        if again.plan is None or again.plan.schedule == found.known_plan.schedule:
            return None
        run = replace(again.run, plan=simulate(first.question.problem, again.plan.schedule))
        found = replace(again, question=first.question, run=run)
    return None


def save_in_order(prepared: Prepared, profile: Profile, path: Path, most_bytes: int) -> Path:
    """Save the model with gates that hold its ops in the graph's order, so that it runs as a plan of it will.

    But for what plans of `most_bytes` put into a calmer order at no cost. Nothing of the profile matters but what it
    is a profile of.
    """
    free = tuple(OpCost(op.name, 0) for op in prepared.graph.ops)
    problem = make_problem(prepared.graph, msgspec.structs.replace(profile, ops=free))
    plan = baseline(problem)
    plan = calm(problem.with_budget(max(plan.peak, most_bytes)), plan, "free")
    plan, written = written_in_order(prepared, problem, plan, plan.peak)
    _IN_ORDER[prepared.reference] = _InOrder(
        prepared.graph, prepared.layout, prepared.conditions, prepared.optimised_as, plan.schedule, written
    )
    save_work(written.model, path)
    return path


def write_with_room(planned: OneModel, room_bytes: int, search: Search, progress: Progress) -> OneModel | Refused:
    """Write the model within its budget and leave so many bytes of that over."""
    answer, budget_bytes = planned.answer, planned.answer.question.budget_bytes
    if answer.plan is None or answer.plan.peak > budget_bytes - room_bytes:
        answer = answer_again(answer, (room_bytes,), search, progress)
    narrow = write_within_budget(
        with_budget(replace(planned, answer=answer), budget_bytes - room_bytes), search, progress
    )
    return with_budget(narrow, budget_bytes)


def with_budget(planned: P, budget_bytes: int) -> P:
    """The same plan and model as the answer to a question with another budget."""
    question = planned.answer.question
    asked = replace(question, problem=question.problem.with_budget(budget_bytes))
    return replace(planned, answer=replace(planned.answer, question=asked))


def as_asked(planned: P, budget_bytes: int) -> P:
    """A plan for less as the answer to what was asked; a bound that was proved for less memory is none for more."""
    if planned.answer.plan is None:
        return planned
    answer, least_ns = planned.answer, planned.answer.question.problem.baseline_time_ns
    status = Status.OPTIMAL if planned.plan.time_ns <= least_ns else Status.FEASIBLE
    told = replace(answer, run=replace(answer.run, bound_ns=least_ns, status=status))
    return with_budget(replace(planned, answer=told), budget_bytes)


def _write_calmly(
    prepared: Prepared, profile: Profile, found: BudgetAnswer, search: Search
) -> tuple[BudgetAnswer, WrittenModel]:
    """Write the plan in its calm order; where gates push that over the budget, calm within less, else as it was found.

    The last one tried where none fits.
    """
    answer = _as_measured(prepared, found, search) or _calmed(found, search, 0)
    if prepared.layout is not None:
        leanest = min(_as_run(prepared, profile, answer), key=attrgetter("first_run_bytes"))
        return leanest.answer, _write(leanest)
    drawn = _drawn(prepared, profile, answer)
    answer, written = drawn.answer, _write(drawn)
    excess = _excess_bytes(answer, written)
    if not excess or found.question.least:
        return answer, written
    for other in (_calmed(found, search, excess), found):
        if other.plan != answer.plan:
            drawn = _drawn(prepared, profile, other)
            answer, written = drawn.answer, _write(drawn)
            if not _excess_bytes(answer, written):
                break
    return answer, written


@dataclass(frozen=True)
class _Drawn:
    """A plan as a model that is not yet in the steady form, judged as it is and as each kind of processor runs it."""

    answer: BudgetAnswer
    exact: Judged
    layouts: Layouts

    @cached_property
    def on_each(self) -> tuple[OnProcessor, ...]:
        """The model as each kind of processor runs it in a default session."""
        return self.layouts.on_each(self.exact)

    @property
    def first_run_bytes(self) -> int:
        """What a default session holds in one run, on the kind of processor where that is most."""
        return self.layouts.first_run_bytes(self.on_each)

    @property
    def may_fit(self) -> bool:
        """Whether the form is worth looking for: what is far beyond the budget in one run is planned again anyway."""
        if self.layouts.prepared.layout is None or self.answer.question.least:
            return True
        return self.first_run_bytes <= HOPELESS_SHARE * self.answer.question.budget_bytes


def _drawn(prepared: Prepared, profile: Profile, answer: BudgetAnswer) -> _Drawn:
    question = answer.question
    plan, rewritten = written_in_order(prepared, question.problem, answer.known_plan, question.budget_bytes)
    exact = judge_again(prepared, profile, plan, rewritten)
    return _Drawn(answer.with_plan(plan), exact, Layouts(prepared, profile, plan, rewritten))


def _as_run(prepared: Prepared, profile: Profile, answer: BudgetAnswer) -> Iterator[_Drawn]:
    """The answer with its steps as they are, and in orders in which default sessions would rather run them.

    No gate may hold them where it would take a tensor out of the layout. Of two ops that a session explores one after
    the other the second runs first, so that their order may change each time. A plan that runs ops again keeps its
    order, but for sums: in another one readers would read another run than the file lets them.
    """
    op_ids = answer.known_plan.schedule.op_ids()
    if len(set(op_ids)) < len(op_ids):
        yield _drawn(prepared, profile, _with_sums_in_turn(prepared, answer))
        return
    for _ in range(MOST_ORDERS):
        drawn = _drawn(prepared, profile, _with_sums_in_turn(prepared, answer))
        yield drawn
        answer = drawn.answer
        steps, order = answer.known_plan.schedule.steps, drawn.layouts.rewritten.run_steps
        if order == tuple(range(len(steps))):
            return
        schedule = Schedule(tuple(steps[number] for number in order))
        answer = answer.with_plan(simulate(answer.question.problem, schedule))


def _with_sums_in_turn(prepared: Prepared, answer: BudgetAnswer) -> BudgetAnswer:
    """The answer, of two convolutions that are added up the one first that must stand first in the file."""
    if prepared.layout is None:
        return answer
    ids = {op.name: number for number, op in enumerate(prepared.graph.ops)}
    order = list(answer.known_plan.schedule.op_ids())
    for names in in_turn(prepared.reference, prepared.layout):
        first, other = (ids[name] for name in names)
        if order.count(first) > 1 or order.count(other) > 1:
            continue
        between = order[order.index(other) + 1 : order.index(first) + 1]
        made = set(prepared.graph.ops[other].outputs)
        if between and not any(made & set(prepared.graph.ops[op].inputs) for op in between):
            order.remove(other)
            order.insert(order.index(first) + 1, other)
    schedule = Schedule(tuple(Compute(op, 0) for op in order))
    return answer.with_plan(simulate(answer.question.problem, schedule))


def _calmed(found: BudgetAnswer, search: Search, room_bytes: int) -> BudgetAnswer:
    """The answer with its steps in an order that needs few gates, some room left below budget and baseline."""
    problem = found.question.problem.with_budget(found.question.calm_bytes - room_bytes)
    return found.with_plan(calm(problem, found.known_plan, search.limits.order))


def _as_measured(prepared: Prepared, found: BudgetAnswer, search: Search) -> BudgetAnswer | None:
    """The answer in the order in which the model was measured; None where that is not as good, or another was asked."""
    kept, problem = _IN_ORDER.get(prepared.reference), found.question.problem
    if kept is None or kept.graph is not prepared.graph or search.limits.order != "free" or found.question.least:
        return None
    plan = simulate(problem, kept.schedule)
    is_as_good = plan.time_ns <= found.known_plan.time_ns and plan.peak <= found.question.calm_bytes
    return found.with_plan(plan) if is_as_good else None


def _excess_bytes(answer: BudgetAnswer, written: WrittenModel) -> int:
    """By how much the written model is over the budget."""
    return excess_bytes(answer.question.problem, written.needed_bytes)[0]


def _write(drawn: _Drawn) -> WrittenModel:
    """Write the plan, in the form in which a process holds least."""
    answer, plain, layouts, fixed_bytes = drawn.answer, drawn.exact, drawn.layouts, 0
    prepared, rewritten = layouts.prepared, layouts.rewritten
    sessions = layouts.sessions(plain, drawn.on_each)
    is_wanted = prepared.conditions.family is not None or (drawn.may_fit and may_gain(sessions.runs))
    found = inside(rewritten, plain.graph, prepared.conditions) if is_wanted else None
    form, packing, as_written = None, prepared.rules.packing, rewritten
    if found is not None:
        found, form = _leanest_form(layouts, answer, sessions, found)
    if found is not None and form is not None:
        judged = judge_again(prepared, layouts.profile, layouts.plan, rewritten, replace(found, form=form))
        sessions = layouts.sessions(judged, layouts.on_each(judged, found))
        model = found.model
        own = packed_in_bodies(model, packing)
        if prepared.layout is not None:
            own |= layout_weights(model)
        in_form = steady(model, form, _packed_away(model, packing), own)
        as_written = replace(rewritten, model=in_form)
        fixed_bytes = FLAG_BYTES + weight_bytes_of(model, form) + _kept_in_branch_bytes(model, packing)
    unlike, beyond = frozenset[str](), tuple[int, ...]()
    if prepared.layout is not None:
        beyond = layouts.beyond(drawn.on_each)
        shapes = plain.graph.shapes
        unlike = differing_ops(prepared.layout, rewritten.model, shapes | dict(rewritten.known))
        if found is not None and form is not None:
            unlike |= differing_ops(prepared.layout, found.model, shapes | dict(found.known))
    set_model_metadata(as_written.model, PEAK_KEY, str(sessions.judged.plan.peak))
    if prepared.conditions.portable:
        target = prepared.conditions.target
        left = f"{LEFT}:{target}" if target else LEFT
        set_model_metadata(as_written.model, PORTABLE_KEY, "yes" if prepared.layout is None else left)
    written = WrittenModel(as_written, sessions, is_left=prepared.layout is not None, unlike=unlike, beyond=beyond)
    on_top_bytes = 0
    if answer.question.is_share:
        gates_bytes = max(0, written.least_budget_bytes - fixed_bytes - answer.known_plan.peak)
        on_top_bytes = fixed_bytes + (gates_bytes if gates_bytes <= answer.question.own_bytes else 0)
    elif answer.question.origin == "process" and found is not None and form is not None:
        on_top_bytes = fixed_bytes + sum(found.early[name] for name in form.early)
    return replace(written, on_top_bytes=on_top_bytes)


def _leanest_form(
    layouts: Layouts, answer: BudgetAnswer, plain: SessionForecast, found: Inside
) -> tuple[Inside, SteadyForm | None]:
    """The form in which a process holds least, with small outputs made beforehand where that is leaner."""
    prepared, conditions, question = layouts.prepared, layouts.prepared.conditions, answer.question
    judge = partial(judge_again, prepared, layouts.profile, answer.known_plan, layouts.rewritten)

    def formed(inside: Inside, within: Judged, below_bytes: int | None) -> Formed:
        most_bytes = max(question.budget_bytes, within.plan.peak) - within.fixed_bytes
        in_form = InForm(
            tuple(each.judged for each in layouts.on_each(within, inside)),
            inside.branch,
            inside.form.early,
            prepared.runtime,
        )
        if conditions.family is not None:
            return roomy_form(in_form, most_bytes)
        return best_form(plain.runs, in_form, most_bytes, below_bytes)

    late, other = judge(found), None
    if conditions.family is None and not question.least:
        other = with_early_outputs(found, plain.judged.graph, conditions, int(EARLY_SHARE * late.plan.peak))
    if other is not None:
        early = judge(other)
        if question.origin == "process" or early.plan.peak <= max(question.budget_bytes, late.plan.peak):
            best = formed(other, early, None)
            if best.form is not None:  # first, since others need not be simulated for longer than they hold no more
                as_lean = formed(found, late, best.runs.most_bytes + 1)
                return (other, best.form) if as_lean.form is None else (found, as_lean.form)
    return found, formed(found, late, None).form


@dataclass(frozen=True)
class _InOrder:
    """A model as it was written to be measured, so that the plan of it that is chosen then need not be written anew."""

    graph: Graph
    layout: WholeLayout | None
    conditions: Conditions
    optimised_as: OptimisedAs
    schedule: Schedule
    rewritten: Rewritten

    def as_plan(self, prepared: Prepared, schedule: Schedule, budget_bytes: int) -> Rewritten | None:
        """A copy as the same plan within a budget; None: it is of another plan, or would be written otherwise."""
        mine, other = (msgspec.structs.replace(each, plain=False) for each in (self.conditions, prepared.conditions))
        is_same = self.graph is prepared.graph and self.layout is prepared.layout and mine == other
        if not is_same or self.optimised_as != prepared.optimised_as or self.schedule != schedule:
            return None
        model = self.rewritten.model.clone()
        set_model_metadata(model, BUDGET_KEY, str(budget_bytes))
        return replace(self.rewritten, model=model)


_IN_ORDER: WeakKeyDictionary[Any, _InOrder] = WeakKeyDictionary()
"""By the optimised models that were measured."""


def written_in_order(prepared: Prepared, problem: Problem, plan: Plan, budget_bytes: int) -> tuple[Plan, Rewritten]:
    """The plan as a model; where ops that read nothing, as some that draw numbers, cannot wait, with these first."""
    try:
        return plan, _left_alone(prepared, plan, budget_bytes)
    except UnheldError:
        sources = {number for number, op in enumerate(prepared.graph.ops) if not (op.inputs or op.weights)}
        op_ids = sorted(plan.schedule.op_ids(), key=lambda op: op not in sources)
        first = simulate(problem, Schedule.of_ops(op_ids))
        return first, _left_alone(prepared, first, budget_bytes)


def _left_alone(prepared: Prepared, plan: Plan, budget_bytes: int) -> Rewritten:
    """The plan as a model in which the runtime's optimiser finds nothing to do when a default session loads it.

    Where it would touch some ops, gates hide them from each other. What it touches after some rounds too is left to
    verification, which says so. A portable model is meant to be optimised again, but not to other bits for its sizes.
    """
    kept = _IN_ORDER.get(prepared.reference)
    again = None if kept is None else kept.as_plan(prepared, plan.schedule, budget_bytes)
    if again is not None:
        return again
    source, conditions = prepared.source, prepared.conditions
    form = gates_of(conditions.device.provider)
    interface = written_interface(source, conditions)
    free = free_names(conditions)
    bound = {name: size for name, size in source.bound_dims.items() if name not in free}
    guard = guard_for(platform.machine(), prepared.layout_block)
    hidden = frozenset(port.name for port in interface.inputs if prepared.optimised_as.hides_sizes)
    info = RewriteInfo(
        budget_bytes,
        source.sha256,
        __version__,
        bound,
        interface,
        hidden,
        gates=form,
        guard=guard,
        source_name=source.path.name,
        layout=prepared.layout,
    )
    infer = partial(shapes_at_load, custom_ops=conditions.custom_ops)
    rewritten = rewrite(prepared.reference, prepared.graph, plan, info, infer)
    may_be_touched = conditions.portable and prepared.optimised_as.ports is None
    for _ in range(0 if may_be_touched else MOST_PASSES):
        found = _touched(rewritten, conditions, prepared.reference_path.parent)
        more = held_back(rewritten.model, found, info.barriers) if found else frozenset()
        if not more:
            break
        info = replace(info, barriers=info.barriers | more)
        rewritten = rewrite(prepared.reference, prepared.graph, plan, info, infer)
    return rewritten


def _touched(rewritten: Rewritten, conditions: Conditions, work: Path) -> Touched:
    """What a default session makes of the file."""
    with tempfile.TemporaryDirectory(prefix="load_", dir=work) as folder:
        path, loaded = Path(folder) / "written.onnx", Path(folder) / "loaded.onnx"
        save_work(rewritten.model, path)
        level: Level = "extended" if conditions.portable else "all"
        optimize(path, loaded, level, conditions.intra_op_threads, conditions.custom_ops)
        return touched(rewritten.model, loaded)


def judge_again(
    prepared: Prepared, profile: Profile, plan: Plan, rewritten: Rewritten, found: Inside | None = None
) -> Judged:
    """Judge the written model from its own graph: the plan's steps at their measured cost, gates at none.

    With `found` it is judged as it is inside the steady form; outputs that are made beforehand are then fixed.

    Raises:
        RematError: the file would not run in the plan's order.
    """
    known = rewritten.known if found is None else found.known
    graph = to_graph(rewritten.model, rewritten.observed, known)
    if prepared.layout is not None:
        places = {node.name: place for place, node in enumerate(rewritten.model.graph)}
        graph = reordered(graph, sorted(range(len(graph.ops)), key=lambda op: places[graph.ops[op].name]))
    executed = tuple(op.name for op in graph.ops if op.name not in rewritten.gate_ops)
    if executed != rewritten.step_ops:
        raise RematError("the rewritten model would not run in the plan's order: a bug in remat, please report it")
    signatures = step_signatures(prepared.signatures, rewritten.step_ops, plan)
    graph = with_corrections(graph, [signatures.get(op.name, "") for op in graph.ops], prepared.corrections)
    costs_of = {op.name: cost for op, cost in zip(prepared.graph.ops, profile.ops, strict=True)}
    costs = {
        name: msgspec.structs.replace(costs_of[prepared.graph.ops[op].name], name=name)
        for name, op in zip(rewritten.step_ops, plan.schedule.op_ids(), strict=True)
    }
    steps = zip(rewritten.step_ops, plan.schedule.op_ids(), strict=True)
    named = ((name, prepared.graph.ops[op].name) for name, op in steps)
    bodies = {name: profile.bodies[whole] for name, whole in named if whole in profile.bodies}
    ops = tuple(costs.get(op.name, OpCost(op.name, 0)) for op in graph.ops)
    # small constants that gates brought along, and copies of weights that computing again makes
    in_arena = prepared.rules.packing.in_arena
    fixed = _weight_bytes(rewritten.model, in_arena) - _weight_bytes(prepared.reference, in_arena)
    if found is not None:
        graph = without_buffers(graph, found.early)
        fixed += found.branch.held_bytes + weight_bytes_of(rewritten.model, found.form)
        fixed += _kept_in_branch_bytes(rewritten.model, prepared.rules.packing)
    judged = msgspec.structs.replace(profile, ops=ops, weight_bytes=profile.weight_bytes + fixed)
    again = baseline(make_problem(graph, judged))
    is_known = not prepared.conditions.portable  # in a default session that is another model
    return Judged(
        graph,
        again,
        judged.fixed_bytes,
        kinds_of(graph, known) if is_known else no_kinds(graph),
        tuple(copy.bytes for copy in arena_copies(rewritten.model, in_arena)),
        None if found is None else Steady(found.form, found.branch),
        bodies,
        heaps_of(rewritten.model, graph, op_threads(prepared.conditions), prepared.rules.loading),
    )


def _packed_away(model: Any, packing: PackingRules) -> dict[str, int]:
    """Sizes, by name, of the small weights of which only packed copies stay, unless they belong to a branch."""
    uses = zip(model.graph.initializers, weight_uses(model), strict=True)
    return {name: use.size_bytes for name, use in uses if packing.is_packed_away(use)}


def _kept_in_branch_bytes(model: Any, packing: PackingRules) -> int:
    """Bytes of small weights that the form moves into its branch, which keeps originals beside packed copies."""
    moved = packed_in_bodies(model, packing)
    return sum(size_bytes for name, size_bytes in _packed_away(model, packing).items() if name in moved)


def _weight_bytes(model: Any, rules: ArenaCopyRules) -> int:
    """Weights in the file, and copies in the arena, of which each op has its own."""
    return sum(use.size_bytes for use in weight_uses(model)) + sum(copy.bytes for copy in arena_copies(model, rules))
