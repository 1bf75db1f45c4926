"""A budget that a plan is looked at under: what is asked of it now, which may be another than it was made for."""

from remat_cli.base.errors import ConfigError
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.budget import Budget, Scope, resolve


def scope_of(plan: PlanFile, budget: Budget, asked: Scope | None) -> Scope:
    """What a budget bounds of a plan: as words say (`asked`), else bytes the process where that was predicted.

    Raises:
        ConfigError: a process is to be bound of which nothing was predicted, or by what is not bytes.
    """
    can_be = budget.kind == "bytes" and plan.promise.process is not None and not plan.request.portable
    if asked == "process" and not can_be:
        why = "is not bytes" if budget.kind != "bytes" else "cannot be judged: this plan predicts no process"
        raise ConfigError(f"--budget-scope process: budget '{budget.text}' {why}: write --budget-scope live")
    return asked or ("process" if can_be else "live")


def live_budget_bytes(plan: PlanFile, budget: Budget, scope: Scope) -> int:
    """A budget as live bytes of the plan's own model, in the shares that it was compiled with.

    Raises:
        ConfigError: a plan is not judged by such a budget.
    """
    if budget.kind == "min":
        raise ConfigError("--budget min: a plan is judged by bytes or a share; `remat compile MODEL` searches for min")
    profile = plan.profile if plan.splitting is None else plan.splitting.whole_profile
    return resolve(budget, profile.fixed_bytes, plan.promise.baseline_peak_bytes, scope)
