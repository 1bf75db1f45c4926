"""Compile on several devices: profile each, place and recompute together, cut the plan into what can be run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from remat_cli.base.progress import Progress, aside
from remat_cli.core.budget import Budget, resolve
from remat_cli.core.device import DeviceSpec
from remat_cli.core.device_problem import device_tensor_ids, input_ops, make_device_problem
from remat_cli.core.graph import Graph, TensorType
from remat_cli.core.placement import Reference
from remat_cli.core.placing import one_device_schedule
from remat_cli.core.plan import Plan
from remat_cli.core.problem import OpSpec, Problem
from remat_cli.core.profile import LinkCost, Profile
from remat_cli.core.schedule import Schedule
from remat_cli.core.segments import Cut, cut_plan
from remat_cli.core.simulate import baseline, fixed_bytes_of, simulate
from remat_cli.onnx_io.element_types import size_bytes
from remat_cli.report.report import StatusName
from remat_cli.settings.config import Config, require_budget
from remat_cli.stages.solve import LEAST_SECONDS, Answer, Question, answer, unsolved

ATTEMPTS = 4  # to fit a cut plan into the budgets
SINGLE_SHARE = 0.4  # of the time limit, for plans on one device each
NO_LIMIT = 2**62
AUTO = "auto"


@dataclass(frozen=True)
class Platform:
    """Devices with what a model costs on them; `session_bytes` as in a placement."""

    graph: Graph
    specs: tuple[DeviceSpec, ...]
    profiles: tuple[Profile, ...]
    links: tuple[LinkCost, ...]
    session_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def opaque(self) -> frozenset[int]:
        """Devices that compile what they are given."""
        return frozenset(d for d, profile in enumerate(self.profiles) if profile.is_opaque)

    def with_session_bytes(self, more: Mapping[str, int]) -> Platform:
        """The same platform, whose sessions hold so many bytes more of weights."""
        known = self.session_bytes
        total = {name: known.get(name, 0) + more.get(name, 0) for name in {**known, **more}}
        return dataclasses.replace(self, session_bytes=total)

    def problem(self, budgets: dict[str, int] | None = None, overlap: bool = False) -> Problem:
        """The problem on these devices; without budgets, with all the memory there could be."""
        roomy = {profile.memory: NO_LIMIT for profile in self.profiles}
        rest = (budgets or roomy, overlap, self.session_bytes)
        return make_device_problem(self.graph, self.profiles, self.links, *rest)


@dataclass(frozen=True)
class DevicePlan:
    """A judged plan, cut so that each memory stays within its budget, beside the best plans of single devices.

    `cut` is None where no plan was found. `best_single` is the best of the plans on one device, if there is any.
    """

    answer: Answer
    cut: Cut | None
    single: tuple[Reference, ...]
    best_single: Plan | None


def plan_on_devices(platform: Platform, budgets: dict[str, Budget], config: Config, progress: Progress) -> DevicePlan:
    """Plan within every memory's budget: first on each device alone, then on all of them.

    `auto` goes on from the best of these, and is never worse; a solver that was named gets no help.

    Raises:
        ModelError: an op runs on no device.
    """
    question = ask_on_devices(platform, budgets, config)
    singles = _singles(platform, question, config, progress)
    names = [profile.device for profile in platform.profiles]
    single = [Reference(name, a.plan.time_ns if a.plan else None) for name, a in zip(names, singles, strict=True)]
    ranked = tuple(sorted(single, key=lambda reference: (reference.time_ns is None, reference.time_ns or 0)))
    best = min((a.plan for a in singles if a.plan is not None), key=lambda plan: plan.time_ns, default=None)
    rest = msgspec.structs.replace(config, time_limit_seconds=config.time_limit_seconds * (1 - SINGLE_SHARE))
    helped = best if config.solver == AUTO else None
    found, cut = _fitted(platform, question, rest, progress, helped.schedule if helped is not None else None)
    planned = DevicePlan(found, cut, ranked, best)
    if helped is not None and (found.plan is None or helped.time_ns < found.plan.time_ns):
        return _judged_on(platform, planned, helped.schedule) or planned
    return planned


def judged_again(platform: Platform, planned: DevicePlan) -> DevicePlan | None:
    """The same plan on a platform whose sessions hold more than was thought; None where a budget no longer holds."""
    assert planned.answer.plan is not None
    return _judged_on(platform, planned, planned.answer.plan.schedule)


def on_best_single(platform: Platform, planned: DevicePlan) -> DevicePlan | None:
    """The best plan on one device in place of the plan; None where it is the plan, or does not fit as it is cut."""
    best, plan = planned.best_single, planned.answer.plan
    if best is None or plan is None or best.schedule == plan.schedule:
        return None
    return _judged_on(platform, planned, best.schedule)


def _judged_on(platform: Platform, planned: DevicePlan, schedule: Schedule) -> DevicePlan | None:
    """A schedule within the same budgets, cut anew; None where it does not keep them."""
    question = planned.answer.question
    budgets = {memory.name: memory.budget_bytes for memory in question.problem.memories}
    problem = platform.problem(budgets, question.problem.overlap)
    plan = simulate(problem, schedule)
    cut = cut_of(platform, problem, plan)
    if any(_excess(problem, cut)):
        return None
    run = msgspec.structs.replace(planned.answer.run, status=_status(planned.answer, plan))
    again = Answer(dataclasses.replace(question, problem=problem), run, plan)
    return dataclasses.replace(planned, answer=again, cut=cut)


def _status(found: Answer, plan: Plan) -> StatusName:
    """What is known of a plan that is better than the one found."""
    return "optimal" if found.run.bound is not None and plan.time_ns <= found.run.bound else "feasible"


def ask_on_devices(platform: Platform, budgets: dict[str, Budget], config: Config) -> Question:
    """The problem under the user's budgets.

    A percentage of a memory refers to what the best device on it needs when that runs the whole model by itself.
    """
    roomy = platform.problem(overlap=config.overlap)
    bytes_ = {}
    for number, memory in enumerate(roomy.memories):
        plan = _reference_plan(roomy, number)
        fixed = fixed_bytes_of(roomy, plan.schedule)[number]
        bytes_[memory.name] = resolve(budgets[memory.name], fixed, plan.peak_bytes[number], config.budget_scope)
    problem = platform.problem(bytes_, config.overlap)
    return Question(problem, baseline(problem), require_budget(config).text)


def _reference_plan(problem: Problem, memory: int) -> Plan:
    """Every op once on the fastest of the devices that use a memory."""
    mine = [d for d, device in enumerate(problem.devices) if device.memory == memory]
    plans = [simulate(problem, one_device_schedule(problem, device)) for device in mine]
    return min(plans, key=lambda plan: plan.time_ns)


def _singles(platform: Platform, question: Question, config: Config, progress: Progress) -> list[Answer]:
    """The best plan that uses one device only, for each; none where it cannot run every op."""
    share = config.time_limit_seconds * SINGLE_SHARE / len(platform.profiles)
    limited = msgspec.structs.replace(config, time_limit_seconds=share, solver=AUTO, options={})
    given = input_ops(platform.graph, question.problem)
    answers = []
    for device in range(len(platform.profiles)):
        only = _only(question.problem, device, given)
        asked = dataclasses.replace(question, problem=only or question.problem)
        answers.append(unsolved(asked, limited) if only is None else answer(asked, limited, aside(progress)))
    return answers


def _only(problem: Problem, device: int, given: int) -> Problem | None:
    """The problem with one device that may compute; None where it cannot run some op. Given ops run where they can."""
    if any(op.time_ns[device] is None for op in problem.ops[given:]):
        return None

    def alone(op: OpSpec) -> OpSpec:
        times = tuple(time if d == device else None for d, time in enumerate(op.time_ns))
        return msgspec.structs.replace(op, time_ns=times)

    return msgspec.structs.replace(problem, ops=(*problem.ops[:given], *map(alone, problem.ops[given:])))


def _fitted(
    platform: Platform, question: Question, config: Config, progress: Progress, start: Schedule | None
) -> tuple[Answer, Cut | None]:
    """Solve, and where the cut plan needs more than its schedule, solve again for so much less."""
    problem, slack = question.problem, [0] * len(question.problem.memories)
    found = answer(question, config, progress, start)
    for attempt in range(ATTEMPTS):
        if found.plan is None:
            return found, None
        cut = cut_of(platform, problem, found.plan)
        excess = _excess(problem, cut)
        if not any(excess):
            return found, cut
        if attempt < ATTEMPTS - 1:
            slack = [less + more for less, more in zip(slack, excess, strict=True)]
            found = _solved_again(found, slack, config, progress)
    run = msgspec.structs.replace(found.run, status="not_found")
    return Answer(question, run, None), None


def _solved_again(first: Answer, slack: Sequence[int], config: Config, progress: Progress) -> Answer:
    """An answer to the same question that leaves so many bytes of each memory; bound and floor stay the first's."""
    tight = first.question.problem
    for memory, bytes_ in enumerate(slack):
        tight = tight.with_budget(tight.memories[memory].budget_bytes - bytes_, memory)
    left = max(LEAST_SECONDS, config.time_limit_seconds - first.run.seconds)
    limited = msgspec.structs.replace(config, time_limit_seconds=left)
    again = answer(dataclasses.replace(first.question, problem=tight), limited, progress)
    run = msgspec.structs.replace(
        again.run,
        status="not_found" if again.plan is None else "feasible",
        bound=first.run.bound,
        space=first.run.space,
        floor_bytes=first.run.floor_bytes,
        floor_op=first.run.floor_op,
        seconds=first.run.seconds + again.run.seconds,
    )
    plan = None if again.plan is None else simulate(first.question.problem, again.plan.schedule)
    return Answer(first.question, run, plan)


def cut_of(platform: Platform, problem: Problem, plan: Plan) -> Cut:
    """The plan as sessions and copies, each memory's budget kept where that is possible."""
    tensors = [platform.graph.tensors[tensor] for tensor in device_tensor_ids(platform.graph, problem)]
    sizes = [size_bytes(TensorType(tensor.dtype, tensor.shape)) for tensor in tensors]
    return cut_plan(problem, plan, platform.opaque, input_ops(platform.graph, problem), sizes)


def _excess(problem: Problem, cut: Cut) -> tuple[int, ...]:
    """By how many bytes each memory is over its budget."""
    pairs = zip(cut.peak_bytes, problem.memories, strict=True)
    return tuple(max(0, peak - memory.budget_bytes) for peak, memory in pairs)
