"""Between schedules and the stage matrices of `xengine`: what a solution says to do, and a schedule as a solution."""

from dataclasses import dataclass, field

from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.timeline import energy_of
from remat_cli.solvers.published._xengine.layout import Layout, ModelRules
from remat_cli.solvers.published._xengine.model import XEngineModel


def read_schedule(model: XEngineModel, values: list[int]) -> Schedule:
    """Stage by stage, op by op, device by device; copies directly before the compute that reads them."""
    problem, steps = model.layout.problem, list[Step]()
    for stage in range(len(problem.ops)):
        for op in model.layout.running(stage):
            for device in range(len(problem.devices)):
                run = model.runs.get((stage, op, device))
                if run is not None and values[run]:
                    steps += [
                        Copy(tensor, source, device)
                        for tensor in dict.fromkeys(problem.ops[op].inputs)
                        for source in model.layout.sources[device][tensor]
                        if values[model.copies[stage, tensor, op, source, device]]
                    ]
                    steps.append(Compute(op, device))
    return Schedule(tuple(steps))


@dataclass
class Staged:
    """A schedule in stages: copies dropped at once, recomputes of a stage in the order of ops and devices.

    Runs are (stage, op, device), holds (stage, tensor, memory), copies (stage, tensor, op, source, target).
    """

    runs: list[tuple[int, int, int]] = field(default_factory=list)
    holds: set[tuple[int, int, int]] = field(default_factory=set)
    copies: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def schedule(self) -> Schedule:
        """The schedule of all steps, stage by stage."""
        before: dict[tuple[int, int, int], list[Step]] = {}
        for stage, tensor, op, source, target in self.copies:
            before.setdefault((stage, op, target), []).append(Copy(tensor, source, target))
        return Schedule(tuple(step for run in self.runs for step in (*before.get(run, ()), Compute(run[1], run[2]))))

    def hint(self, model: XEngineModel) -> dict[int, int]:
        """Values of the variables that say what is run, held and copied."""
        done: set[tuple[int, ...]] = {*self.runs, *self.copies}
        steps = {variable: int(key in done) for key, variable in (*model.runs.items(), *model.copies.items())}
        return steps | {variable: int(key in self.holds) for key, variable in model.holds.items()}


def stage_schedule(layout: Layout, schedule: Schedule) -> Staged | None:
    """The staged schedule nearest to a schedule; None where first computations are in another order.

    Copies that were kept for several readers are made anew for each, so it may take longer.
    """
    runs = _staged_runs(layout, schedule)
    if runs is None:
        return None
    staged = Staged(runs)
    made: dict[tuple[int, int], int] = {}
    for stage, op, device in runs:
        for tensor in dict.fromkeys(layout.problem.ops[op].inputs):
            # The device itself if its memory has the tensor, or else the cheapest to copy it from.
            usable = [s for s in (device, *layout.sources[device][tensor]) if (layout.memory(s), tensor) in made]
            if not usable:
                return None
            source = device if device in usable else min(usable, key=lambda s: layout.copy_cost(tensor, s, device))
            home = layout.memory(source)
            staged.holds |= {(t, tensor, home) for t in range(made[home, tensor] + 1, stage + 1)}
            if home != layout.memory(device):
                staged.copies.append((stage, tensor, op, source, device))
        made |= {(layout.memory(device), tensor): stage for tensor in layout.problem.ops[op].outputs}
    end = len(layout.problem.ops)
    for tensor, spec in enumerate(layout.problem.tensors):
        if spec.kept:
            stage, home = max((at, memory) for (memory, x), at in made.items() if x == tensor)
            staged.holds |= {(t, tensor, home) for t in range(stage + 1, end + 1)}
    return staged


def _staged_runs(layout: Layout, schedule: Schedule) -> list[tuple[int, int, int]] | None:
    runs: list[tuple[int, int, int]] = []
    stage, again = 0, set[tuple[int, int]]()
    for step in schedule.steps:
        if isinstance(step, Copy):
            continue
        if step.op < stage:
            again |= {(step.op, step.device)}
        elif step.op == stage:
            runs += [(stage, *run) for run in sorted(again)]
            runs.append((stage, step.op, step.device))
            stage, again = stage + 1, set()
        else:
            return None
    return runs if stage == len(layout.problem.ops) else None


def is_affordable(problem: Problem, rules: ModelRules, schedule: Schedule) -> bool:
    """Whether a schedule keeps the limits on energy; a stage ends with the first computation of an op."""
    if not rules.is_limited:
        return True
    parts, seen = [list[Step]()], set[int]()
    for step in schedule.steps:
        parts[-1].append(step)
        if isinstance(step, Compute) and step.op not in seen:
            seen.add(step.op)
            parts.append([])
    stages = [energy_of(problem, Schedule(tuple(steps))) for steps in parts]
    run = energy_of(problem, schedule)
    checks = [
        (max(run), rules.energy_limit_nj),
        (max(map(max, stages)), rules.stage_energy_limit_nj),
        (max(map(sum, stages)), rules.total_stage_energy_limit_nj),
    ]
    return all(limit is None or spent <= limit for spent, limit in checks)
