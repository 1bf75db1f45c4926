"""What no schedule of a chain over devices can beat; and loads alone, without memory or transfers."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from math import lcm
from typing import Any

from ortools.sat.python import cp_model

from remat_cli.core.pipelines.pipeline import MemoryModel, PipelineChain


def period_bound(chain: PipelineChain, devices: int) -> Fraction:
    """Least time per mini-batch of any schedule: one layer is on one device, and all load is on some."""
    loads = list(map(sum, zip(chain.forward, chain.backward, strict=True)))
    return max(Fraction(max(loads)), Fraction(sum(loads), devices))


def memory_bound(chain: PipelineChain, devices: int, model: MemoryModel = "buf") -> int:
    """Least bytes that the fullest device needs, at any period.

    A device holds the weights of each of its layers and one mini-batch; and when a mini-batch turns round at the end
    of the chain, all that its layers save is held somewhere, beside all weights.
    """
    weights = [chain.copies * each for each in chain.weights]
    layers = [held + saved for held, saved in zip(weights, chain.saved_bytes, strict=True)]
    shared = -(-sum(layers) // devices)
    if model == "full":
        works = zip(chain.forward_work_bytes, chain.backward_work_bytes, strict=True)
        layers = [held + max(work) for held, work in zip(layers, works, strict=True)]
    return max(*layers, shared)


def contiguous_bottleneck(loads: Sequence[Fraction | int], devices: int) -> Fraction:
    """Least largest load of a device where each owns neighbouring layers; O(devices * layers^2)."""
    sums = [Fraction(0), *accumulate(map(Fraction, loads))]
    best = sums[:]
    for _ in range(devices - 1):
        best = [min(max(best[i], sums[j] - sums[i]) for i in range(j + 1)) for j in range(len(sums))]
    return best[-1]


def general_bottleneck(loads: Sequence[Fraction | int], devices: int, seconds: float = 60.0) -> Fraction | None:
    """Least largest load of a device where each may own any layers; none: not proved in time (it is NP-hard)."""
    parts = [Fraction(load) for load in loads]
    scale = lcm(*(part.denominator for part in parts))
    model: Any = cp_model.CpModel()
    largest = model.new_int_var(0, int(sum(parts) * scale), "largest")
    owns = [[model.new_bool_var(f"x{layer},{device}") for device in range(devices)] for layer in range(len(parts))]
    for row in owns:
        model.add_exactly_one(row)
    for device in range(devices):
        model.add(sum(int(part * scale) * row[device] for part, row in zip(parts, owns, strict=True)) <= largest)
    model.add(largest * devices >= int(sum(parts) * scale))
    model.minimize(largest)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    proved = solver.solve(model) == cp_model.OPTIMAL
    return Fraction(solver.value(largest), scale) if proved else None
