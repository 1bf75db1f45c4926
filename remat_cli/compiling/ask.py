"""What a compile is asked for, and the one place where a budget is resolved: against a model, an instance, a plan."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.compiling.placed.cut import cut_of, has_cache
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.solve import BudgetQuestion, Search
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.placing import one_device_schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, fixed_bytes_of, simulate
from remat_cli.core.schedule.splits import SplitOptions
from remat_cli.core.values.budget import AskedBudget, Budget, Origin, Scope, resolve
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.resident import WeightFiles
from remat_cli.core.values.verification import Checks

CHECKS = Checks()
IN_FILES = WeightFiles()
STRONGEST: Final[tuple[Origin, ...]] = ("min", "process", "share")
"""Of the origins of several memories' budgets: the first of these is that of the question."""


@dataclass(frozen=True)
class CompileRequest:
    """Conditions, the budget as it was asked for, the search, and which splits may be made.

    `files` says where weights go, and `count_mapped` counts pages of a data file against a budget on the process.
    `overlap` lets copies between memories run beside ops; `checks` says how the plan is verified. For `min` the plan
    has the `least` of live bytes, or the smallest process. Model and plan go to `outputs`, where these are known,
    on whose disk there must be room.
    """

    conditions: Conditions
    asked: AskedBudget
    search: Search
    splits: SplitOptions
    overlap: bool = False
    checks: Checks = CHECKS
    files: WeightFiles = IN_FILES
    count_mapped: bool = False
    least: Literal["live", "process"] = "live"
    outputs: tuple[Path, Path] | None = None

    @property
    def process_budget_bytes(self) -> int | None:
        """What a process may hold; None where the budget bounds what is live."""
        return self.asked.process_bytes

    def as_here(self) -> "CompileRequest":
        """The same of a model that all processors that it is for run as this one does.

        Copies of weights as kernels pack them stay out of its files: other processors pack them in their way.
        """
        conditions = msgspec.structs.replace(self.conditions, portable=False, target="")
        return replace(self, conditions=conditions, files=msgspec.structs.replace(self.files, packed=False))


def ask(platform: Platform, request: CompileRequest) -> BudgetQuestion:
    """The problem under the user's budgets; `min` starts at the baseline's peak.

    A percentage of a memory refers to what the best device on it needs when that runs the whole model by itself, with
    what its provider keeps of free buffers; that number of bytes is 100 %. Where the target's memory is bounded, the
    budget is what that leaves beside the file, if it is less.
    """
    roomy = platform.problem(overlap=request.overlap)
    budgets = {}
    for number, memory in enumerate(roomy.memories):
        # Every op once, on the fastest of the devices that use the memory.
        users = [d for d, device in enumerate(roomy.devices) if device.memory == number]
        plans = [simulate(roomy, one_device_schedule(roomy, device)) for device in users]
        plan = min(plans, key=lambda plan: plan.time_ns)
        peak_bytes = plan.peak_bytes[number]
        if has_cache(platform.specs, memory.name):
            peak_bytes = max(peak_bytes, cut_of(platform, roomy, plan).peak_bytes[number])
        fixed_bytes = fixed_bytes_of(roomy, plan.schedule)[number]
        budget = resolve(request.asked.for_device(memory.name), fixed_bytes, peak_bytes)
        most_bytes = request.conditions.most_live_bytes(sum(each.weight_bytes for each in platform.profiles))
        if most_bytes is not None and budget.bytes > most_bytes:
            budget = Budget(most_bytes, "live", "typed")
        budgets[memory.name] = budget
    problem = platform.problem({name: budget.bytes for name, budget in budgets.items()}, request.overlap)
    names = tuple(op.name for op in platform.graph.ops) if len(problem.ops) == len(platform.graph.ops) else ()
    origins: set[Origin] = {budget.origin for budget in budgets.values()}
    origin: Origin = next((each for each in STRONGEST if each in origins), "typed")
    return BudgetQuestion(problem, baseline(problem), request.asked.text, origin, names)


def ask_abstract(problem: Problem, asked: AskedBudget, names: tuple[str, ...] = ()) -> BudgetQuestion:
    """The user's budget on a problem without a model.

    Raises:
        ConfigError: a budget per device that does not name the problem's.
    """
    asked, plan = asked.for_device(problem.devices[0].name), baseline(problem)
    budget = resolve(asked, problem.memories[0].fixed_bytes, plan.peak)
    return BudgetQuestion(problem.with_budget(budget.bytes), plan, asked.text, budget.origin, names)


def budget_of_plan(plan: PlanFile, asked: AskedBudget, scope: Scope | None) -> Budget:
    """A budget that a plan is looked at under, in shares of what it was compiled from.

    It bounds what words say (`scope`), else, where it is bytes, the process that was predicted.

    Raises:
        ConfigError: another device is named; a process is to be bound of which
            nothing was predicted, or by what is not bytes; or the least budget is asked for.
    """
    asked = asked.for_device(plan.device)
    can_be = asked.kind == "bytes" and plan.promise.process is not None and not plan.request.portable
    if scope == "process" and not can_be:
        why = "is not bytes" if asked.kind != "bytes" else "cannot be judged: this plan predicts no process"
        raise ConfigError(f"--budget-scope process: budget '{asked.text}' {why}: write --budget-scope live")
    if asked.kind == "min":
        raise ConfigError("--budget min: a plan is judged by bytes or a share; `remat compile MODEL` searches for min")
    profile = plan.profile if plan.splitting is None else plan.splitting.whole_profile
    asked = asked.bounding(scope or ("process" if can_be else "live"))
    return resolve(asked, profile.fixed_bytes, plan.promise.baseline_peak_bytes)
