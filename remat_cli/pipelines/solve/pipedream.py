"""PipeDream-style partitioning (after Narayanan et al. 2019): balance loads, guess that stage k from the end holds k.

Its value is no promise: `onef1b_star.best_period` of its cuts is. No stage is replicated.
"""

from dataclasses import dataclass

from remat_cli.pipelines.plan.chain import MemoryModel, PipelineChain
from remat_cli.pipelines.solve.memory import StageFigures
from remat_cli.pipelines.solve.onef1b_star import ContiguousPlan, best_period


@dataclass(frozen=True)
class PipeDreamCuts:
    """The largest load of a stage or link, and the last layer of each stage."""

    bottleneck: int
    cuts: tuple[int, ...]


def pipedream(chain: PipelineChain, devices: int, memory: int, model: MemoryModel = "buf") -> PipeDreamCuts | None:
    """The cuts with the least bottleneck under the guess of 1F1B; none: it finds none.

    O(devices * layers^2).
    """
    figures = StageFigures(chain)
    n = chain.layers
    rows: list[PipeDreamCuts | None] = [None] * (n + 2)  # by first layer; at first of one stage, to the end
    for i in range(1, n + 1):
        if figures.bytes(i, n, 1, model) <= memory:
            rows[i] = PipeDreamCuts(figures.load(i, n), (n,))
    best = rows[1]
    for position in range(2, min(devices, n) + 1):
        after, rows = rows, [None] * (n + 2)
        for i in range(1, n):
            for j in range(i, n):
                rest = after[j + 1]
                if rest is None or figures.bytes(i, j, position, model) > memory:
                    continue
                value = max(figures.load(i, j), figures.link_load(j), rest.bottleneck)
                found = rows[i]
                if found is None or value < found.bottleneck:
                    rows[i] = PipeDreamCuts(value, (j, *rest.cuts))
        if rows[1] is not None and (best is None or rows[1].bottleneck < best.bottleneck):
            best = rows[1]
    return best


def pipedream_1f1b_star(
    chain: PipelineChain, devices: int, memory: int, model: MemoryModel = "buf"
) -> ContiguousPlan | None:
    """The baseline of the literature: PipeDream's cuts, scheduled with 1F1B*."""
    found = pipedream(chain, devices, memory, model)
    return None if found is None else best_period(chain, found.cuts, memory, model)
