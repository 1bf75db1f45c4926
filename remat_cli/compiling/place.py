"""Plans that say where each op runs: place and recompute together, then cut the plan into sessions that can be run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from remat_cli.base.progress import Progress, aside
from remat_cli.compiling.ask import CompileRequest, ask
from remat_cli.compiling.cut import cut_of, has_cache, in_one_session
from remat_cli.compiling.fit import excess_bytes, fit
from remat_cli.compiling.planned import PlannedModel
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.solve import BudgetAnswer, BudgetQuestion, Search, answer, proved_status, unsolved
from remat_cli.core.schedule.placing import one_device_schedule
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import OpSpec, Problem, input_ops
from remat_cli.core.schedule.segments import Cut
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.profile import Reference
from remat_cli.solvers import make_solver

FIRST_SHARE = 0.4  # of the search on all devices, for the first plan where another one will be needed
SINGLE_SHARE = 0.4  # of the time limit, for plans on one device each
AUTO = "auto"


def plan_on_devices(
    prepared: Prepared, platform: Platform, request: CompileRequest, progress: Progress
) -> PlannedModel:
    """Plan within every memory's budget: first on each device alone, then on all of them.

    `auto` goes on from the best of these, and is never worse; a solver that was named gets no help.

    Raises:
        ModelError: an op runs on no device.
    """
    return _Placing(prepared, platform, request.search, progress).plan(ask(platform, request))


def plan_again(planned: PlannedModel, platform: Platform, search: Search, progress: Progress) -> PlannedModel:
    """The same plan on a platform whose sessions hold more than was thought; another where a budget no longer holds."""
    if (counted := _judged_on(replace(planned, platform=platform), planned.plan.schedule)) is not None:
        return counted
    question = planned.answer.question
    problem = platform.problem(question.budgets, question.problem.overlap)
    again = _Placing(planned.prepared, platform, search, progress).plan(replace(question, problem=problem))
    return replace(again, whole=planned.whole, splitting=planned.splitting)


def on_best_single(planned: PlannedModel) -> PlannedModel | None:
    """The best plan on one device in place of the plan; None where it is the plan, or does not fit as it is cut."""
    best = other_single(planned)
    return None if best is None else _judged_on(replace(planned, way="sessions"), best)


def as_one_session(planned: PlannedModel) -> PlannedModel | None:
    """The plan as one session that the devices share; None where it is one already, or none can be or keeps budgets.

    Sessions hold what was counted of the plan's; this is another one, so it is judged on the platform as it is given.
    """
    question, platform = planned.answer.question, planned.platform
    if planned.cut is None or planned.cut.segments < 2 or planned.paged is not None:
        return None
    problem = platform.problem(question.budgets, question.problem.overlap)
    plan = in_one_session(platform, planned.prepared.reference, problem, planned.plan)
    return None if plan is None else _judged_on(replace(planned, way="one_session"), plan.schedule)


def recounted(planned: PlannedModel, more: Mapping[str, int]) -> PlannedModel | None:
    """The same schedule where sessions hold so many bytes more of weights; None where a budget no longer holds."""
    platform = planned.platform.with_session_bytes(more)
    return _judged_on(replace(planned, platform=platform), planned.plan.schedule)


def other_single(planned: PlannedModel) -> Schedule | None:
    """The best plan on one device, where the plan is another one."""
    best, plan = planned.best_single, planned.answer.plan
    return None if best is None or plan is None or best.schedule == plan.schedule else best.schedule


@dataclass(frozen=True)
class _Placing:
    """One search for a placement."""

    prepared: Prepared
    platform: Platform
    search: Search
    progress: Progress

    def plan(self, question: BudgetQuestion) -> PlannedModel:
        """The best plan found, cut; on one device if that is better than what was found on several."""
        singles = self._singles(question)
        times = {name: found.plan.time_ns if found.plan else None for name, found in singles.items()}
        ranked = sorted(times.items(), key=lambda item: (item[1] is None, item[1] or 0))
        plans = (found.plan for found in singles.values() if found.plan is not None)
        best = min(plans, key=lambda plan: plan.time_ns, default=None)
        helped = self._start(question, best) if self.search.solver.name == AUTO else None
        found, cut = self._fitted(question, helped)
        planned = PlannedModel(
            self.prepared,
            self.platform,
            found,
            self.prepared,
            cut=cut,
            single=tuple(Reference(name, time_ns) for name, time_ns in ranked),
            best_single=best,
        )
        if helped is not None and (found.plan is None or helped.time_ns < found.plan.time_ns):
            return _judged_on(planned, helped.schedule) or planned
        return planned

    def _start(self, question: BudgetQuestion, best: Plan | None) -> Plan | None:
        """What a search goes on from: the best plan on one device, or every op once on one that can run most."""
        problem = question.problem
        schedules = (one_device_schedule(problem, device) for device in range(len(problem.devices)))
        plans = [simulate(problem, schedule) for schedule in schedules]
        fitting = [plan for plan in plans if not any(excess_bytes(problem, plan.peak_bytes))]
        return min([*([best] if best else []), *fitting], key=lambda plan: plan.time_ns, default=None)

    def _fitted(self, question: BudgetQuestion, helped: Plan | None) -> tuple[BudgetAnswer, Cut | None]:
        """Solve on all devices, and where the cut plan needs more than its schedule, solve again for so much less."""
        search = self.search.share(1 - SINGLE_SHARE)

        def build(found: BudgetAnswer) -> tuple[BudgetAnswer, Cut]:
            assert found.plan is not None
            return found, cut_of(self.platform, question.problem, found.plan)

        specs = self.platform.specs
        surely_again = any(has_cache(specs, spec.memory) for spec in specs)  # schedules do not show what is kept
        early = search.share(FIRST_SHARE) if surely_again else search
        first = answer(question, early, self.progress, None if helped is None else helped.schedule)
        return fit(first, build, search, self.progress)

    def _singles(self, question: BudgetQuestion) -> Mapping[str, BudgetAnswer]:
        """The best plan that uses one device only, for each by name; none where it cannot run every op."""
        names = [profile.device for profile in self.platform.profiles]
        alone = replace(self.search.share(SINGLE_SHARE / len(names)), solver=make_solver(AUTO))
        given = input_ops(self.platform.graph, question.problem)
        answers = {}
        for device, name in enumerate(names):
            only = _only(question.problem, device, given)
            if only is None:
                answers[name] = unsolved(question, alone)
            else:
                answers[name] = answer(replace(question, problem=only), alone, aside(self.progress))
        return answers


def _judged_on(planned: PlannedModel, schedule: Schedule) -> PlannedModel | None:
    """A schedule within the same budgets, cut anew; None where it does not keep them."""
    question, platform = planned.answer.question, planned.platform
    problem = platform.problem(question.budgets, question.problem.overlap)
    plan = simulate(problem, schedule)
    cut = cut_of(platform, problem, plan, planned.way)
    if any(excess_bytes(problem, cut.peak_bytes)):
        return None
    run = replace(planned.answer.run, plan=plan, status=proved_status(planned.answer.run, plan))
    return replace(planned, answer=BudgetAnswer(replace(question, problem=problem), run), cut=cut)


def _only(problem: Problem, device: int, given: int) -> Problem | None:
    """The problem with one device that may compute; None where it cannot run some op. Given ops run where they can."""
    if any(op.time_ns[device] is None for op in problem.ops[given:]):
        return None

    def alone(op: OpSpec) -> OpSpec:
        times = tuple(time if d == device else None for d, time in enumerate(op.time_ns))
        return msgspec.structs.replace(op, time_ns=times)

    return msgspec.structs.replace(problem, ops=(*problem.ops[:given], *map(alone, problem.ops[given:])))
