"""What a compile is asked for, and what its budget comes to in each memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from remat_cli.compiling.placed.cut import cut_of, has_cache
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.solve import BudgetQuestion, Search
from remat_cli.core.schedule.placing import one_device_schedule
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, fixed_bytes_of, simulate
from remat_cli.core.schedule.splits import SplitOptions
from remat_cli.core.values.budget import Budget, Scope, resolve
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.resident import WeightFiles
from remat_cli.core.values.verification import Checks

CHECKS = Checks()
IN_FILES = WeightFiles()


@dataclass(frozen=True)
class CompileRequest:
    """Conditions, budgets by memory (`budget` is how the user wrote them), the search, and which splits may be made.

    `files` says where weights go, and `count_mapped` counts pages of a data file against a budget on the process.
    `overlap` lets copies between memories run beside ops; `checks` says how the plan is verified. `for_process`: the
    budget of live bytes is one that a budget for the process came to.
    """

    conditions: Conditions
    budget: str
    budgets: Mapping[str, Budget]
    scope: Scope
    search: Search
    splits: SplitOptions
    overlap: bool = False
    checks: Checks = CHECKS
    files: WeightFiles = IN_FILES
    count_mapped: bool = False
    for_process: bool = False

    @property
    def process_budget_bytes(self) -> int | None:
        """What a process may hold; None where the budget bounds what is live."""
        return next(iter(self.budgets.values())).bytes if self.scope == "process" else None


def ask(platform: Platform, request: CompileRequest) -> BudgetQuestion:
    """The problem under the user's budgets; `min` starts at the baseline's peak.

    A percentage of a memory refers to what the best device on it needs when that runs the whole model by itself, with
    what its provider keeps of free buffers; that number of bytes is 100 %.
    """
    roomy = platform.problem(overlap=request.overlap)
    bytes_, least, is_share = {}, False, False
    for number, memory in enumerate(roomy.memories):
        budget, plan = request.budgets[memory.name], _reference_plan(roomy, number)
        least = least or budget.kind == "min"
        fixed_bytes = fixed_bytes_of(roomy, plan.schedule)[number]
        peak_bytes = plan.peak_bytes[number]
        if has_cache(platform.specs, memory.name):
            peak_bytes = max(peak_bytes, cut_of(platform, roomy, plan).peak_bytes[number])
        bytes_[memory.name] = _bytes_of(budget, fixed_bytes, peak_bytes, request.scope)
        is_whole = bytes_[memory.name] == peak_bytes and request.scope != "process"
        is_share = is_share or budget.kind == "fraction" or is_whole
    problem = platform.problem(bytes_, request.overlap)
    names = tuple(op.name for op in platform.graph.ops) if len(problem.ops) == len(platform.graph.ops) else ()
    return BudgetQuestion(problem, baseline(problem), request.budget, least, names, is_share, request.for_process)


def ask_abstract(problem: Problem, budget: Budget, scope: Scope, names: tuple[str, ...] = ()) -> BudgetQuestion:
    """The user's budget on a problem without a model.

    Raises:
        ConfigError: a budget per device that does not name the problem's.
    """
    budget, plan = budget.for_device(problem.devices[0].name), baseline(problem)
    bytes_ = _bytes_of(budget, problem.memories[0].fixed_bytes, plan.peak, scope)
    return BudgetQuestion(problem.with_budget(bytes_), plan, budget.text, budget.kind == "min", names)


def _bytes_of(budget: Budget, fixed_bytes: int, peak_bytes: int, scope: Scope) -> int:
    return peak_bytes if budget.kind == "min" else resolve(budget, fixed_bytes, peak_bytes, scope)


def _reference_plan(problem: Problem, memory: int) -> Plan:
    """Every op once on the fastest of the devices that use a memory."""
    mine = [d for d, device in enumerate(problem.devices) if device.memory == memory]
    plans = [simulate(problem, one_device_schedule(problem, device)) for device in mine]
    return min(plans, key=lambda plan: plan.time_ns)
