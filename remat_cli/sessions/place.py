"""Plans that say where each op runs: place and recompute together, then cut the plan into sessions that can be run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from remat_cli.base.progress import Progress, aside
from remat_cli.compiling.ask import CompileRequest, ask
from remat_cli.compiling.fit import excess_bytes, fit
from remat_cli.compiling.placed.cut import cut_of, has_cache, in_one_session
from remat_cli.compiling.planned import Answered, Refused, Sessions
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.solve import (
    LEAST_SECONDS,
    BudgetAnswer,
    BudgetQuestion,
    Search,
    answer,
    proved_status,
    unsolved,
)
from remat_cli.core.schedule.placing import one_device_schedule
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import OpSpec, Problem, input_ops
from remat_cli.core.schedule.segments import Cut
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.profile import Reference, SessionForm
from remat_cli.solvers import make_solver

FIRST_SHARE = 0.4  # of the search on all devices, for the first plan where another one will be needed
SINGLE_SHARE = 0.4  # of the time limit, for plans on one device each
AUTO = "auto"


def plan_on_devices(
    prepared: Prepared, platform: Platform, request: CompileRequest, progress: Progress
) -> Sessions | Refused:
    """Plan within every memory's budget: first on each device alone, then on all of them.

    `auto` goes on from the best of these, and is never worse; a solver that was named gets no help.

    Raises:
        ModelError: an op runs on no device.
    """
    return _Placing(prepared, platform, request.search, progress).plan(ask(platform, request))


def plan_again(planned: Sessions, platform: Platform, search: Search, progress: Progress) -> Sessions | Refused:
    """The same plan on a platform whose sessions hold more than was thought; another where a budget no longer holds."""
    if (counted := _judged_on(replace(planned, platform=platform), planned.plan.schedule)) is not None:
        return counted
    question = planned.answer.question
    problem = platform.problem(question.budgets, question.problem.overlap)
    again = _Placing(planned.prepared, platform, search, progress).plan(replace(question, problem=problem))
    return replace(again, whole=planned.whole, splitting=planned.splitting)


def on_best_single(planned: Sessions) -> Sessions | None:
    """The best plan on one device in place of the plan; None where it is the plan, or does not fit as it is cut."""
    best = other_single(planned)
    return None if best is None else _judged_on(replace(planned, way="sessions"), best)


def as_one_session(planned: Sessions) -> Sessions | None:
    """The plan as one session that the devices share; None where it is one already, or none can be or keeps budgets.

    Sessions hold what was counted of the plan's; this is another one, so it is judged on the platform as it is given.
    """
    question, platform = planned.answer.question, planned.platform
    if planned.cut.segments < 2:
        return None
    problem = platform.problem(question.budgets, question.problem.overlap)
    plan = in_one_session(platform, planned.prepared.reference, problem, planned.plan)
    return None if plan is None else _judged_on(replace(planned, way="one_session"), plan.schedule)


def recounted(planned: Sessions, more: Mapping[str, int]) -> Sessions | None:
    """The same schedule where sessions hold so many bytes more of weights; None where a budget no longer holds."""
    platform = planned.platform.with_session_bytes(more)
    return _judged_on(replace(planned, platform=platform), planned.plan.schedule)


def other_single(planned: Sessions) -> Schedule | None:
    """The best plan on one device, where the plan is another one."""
    best = planned.best_single
    return None if best is None or best.schedule == planned.plan.schedule else best.schedule


@dataclass(frozen=True)
class _Placing:
    """One search for a placement."""

    prepared: Prepared
    platform: Platform
    search: Search
    progress: Progress

    def plan(self, question: BudgetQuestion) -> Sessions | Refused:
        """The best plan found, cut; on one device if that is better than what was found on several."""
        # The best plan that uses one device only, for each; none where it cannot run every op.
        names = [profile.device for profile in self.platform.profiles]
        apart = replace(self.search.share(SINGLE_SHARE / len(names)), solver=make_solver(AUTO))
        given = input_ops(self.platform.graph, question.problem)
        singles = {}
        for device, device_name in enumerate(names):
            only = _only(question.problem, device, given)
            if only is None:
                singles[device_name] = unsolved(question, apart)
            else:
                singles[device_name] = answer(replace(question, problem=only), apart, aside(self.progress))
        times = {name: found.plan.time_ns if found.plan else None for name, found in singles.items()}
        ranked = sorted(times.items(), key=lambda item: (item[1] is None, item[1] or 0))
        plans = (found.plan for found in singles.values() if found.plan is not None)
        best = min(plans, key=lambda plan: plan.time_ns, default=None)
        helped = None
        if self.search.solver.name == AUTO:  # goes on from the best of these, and of every op once on one device
            problem = question.problem
            alone = [simulate(problem, one_device_schedule(problem, d)) for d in range(len(problem.devices))]
            fitting = [plan for plan in alone if not any(excess_bytes(problem, plan.peak_bytes))]
            helped = min([*([best] if best else []), *fitting], key=lambda plan: plan.time_ns, default=None)
        found, cut = self._fitted(question, helped)
        if helped is not None and (found.plan is None or helped.time_ns < found.plan.time_ns):
            found, cut = _judged(found, self.platform, helped.schedule) or (found, cut)
        answered = Answered(prepared=self.prepared, platform=self.platform, answer=found, whole=self.prepared)
        single = tuple(Reference(name, time_ns) for name, time_ns in ranked)
        if cut is None:
            return replace(answered.refused(), single=single)
        return Sessions(**answered.known, cut=cut, single=single, best_single=best)

    def _fitted(self, question: BudgetQuestion, helped: Plan | None) -> tuple[BudgetAnswer, Cut | None]:
        """Solve on all devices, and where the cut plan needs more than its schedule, solve again for so much less."""
        search = self.search.share(1 - SINGLE_SHARE)

        def build(found: BudgetAnswer) -> tuple[BudgetAnswer, Cut]:
            return found, cut_of(self.platform, question.problem, found.known_plan)

        specs = self.platform.specs
        surely_again = any(has_cache(specs, spec.memory) for spec in specs)  # schedules do not show what is kept
        early = search.share(FIRST_SHARE) if surely_again else search
        first = answer(question, early, self.progress, None if helped is None else helped.schedule)
        if first.plan is not None and not question.least:
            built = build(first)
            if not any(excess_bytes(question.problem, built[1].needed_bytes)):
                return built
            if (apart := self._without_reuse(first)) is not None:
                return apart
        return fit(first, build, search, self.progress)

    def _without_reuse(self, first: BudgetAnswer) -> tuple[BudgetAnswer, Cut] | None:
        """A plan of ops that write over nothing, where another one does not fit as it is cut; None: nor does this.

        A session cannot write over what another one, or a copy, made, and the caller holds what it gave all through:
        only these its schedule does not show. The plan is judged as any other.
        """
        question, problem = first.question, first.question.problem
        ops = tuple(msgspec.structs.replace(op, in_place=()) for op in problem.ops)
        given = problem.ops[: input_ops(self.platform.graph, problem)]
        held_bytes = [0] * len(problem.memories)
        for op in given:
            for memory in {problem.devices[d].memory for d, time_ns in enumerate(op.time_ns) if time_ns is not None}:
                held_bytes[memory] += sum(problem.tensors[tensor].size_bytes for tensor in op.outputs)
        apart = replace(question, problem=msgspec.structs.replace(problem, ops=ops)).with_slack(held_bytes)
        search = self.search.within(max(LEAST_SECONDS, self.search.clock.left / 2))
        found = answer(apart, search, self.progress)
        return None if found.plan is None else _judged(first, self.platform, found.plan.schedule)


def _judged_on(planned: Sessions, schedule: Schedule) -> Sessions | None:
    """A schedule within the same budgets, cut anew; None where it does not keep them."""
    found = _judged(planned.answer, planned.platform, schedule, planned.way)
    return None if found is None else replace(planned, answer=found[0], cut=found[1])


def _judged(
    answer: BudgetAnswer, platform: Platform, schedule: Schedule, way: SessionForm = "sessions"
) -> tuple[BudgetAnswer, Cut] | None:
    """A schedule as the answer, and as it is cut; None where it does not keep the budgets."""
    question = answer.question
    problem = platform.problem(question.budgets, question.problem.overlap)
    plan = simulate(problem, schedule)
    cut = cut_of(platform, problem, plan, way)
    if any(excess_bytes(problem, cut.peak_bytes)):
        return None
    run = replace(answer.run, plan=plan, status=proved_status(answer.run, plan))
    return BudgetAnswer(replace(question, problem=problem), run), cut


def _only(problem: Problem, device: int, given: int) -> Problem | None:
    """The problem with one device that may compute; None where it cannot run some op. Given ops run where they can."""
    if any(op.time_ns[device] is None for op in problem.ops[given:]):
        return None

    def alone(op: OpSpec) -> OpSpec:
        times = tuple(time if d == device else None for d, time in enumerate(op.time_ns))
        return msgspec.structs.replace(op, time_ns=times)

    return msgspec.structs.replace(problem, ops=(*problem.ops[:given], *map(alone, problem.ops[given:])))
