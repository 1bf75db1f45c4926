"""The best contiguous partition: cuts and 1F1B* chosen together, in polynomial time."""

from dataclasses import dataclass
from typing import TypeAlias

from remat_cli.pipelines.plan.chain import MemoryModel, PipelineChain
from remat_cli.pipelines.solve.memory import StageFigures
from remat_cli.pipelines.solve.onef1b_star import ContiguousPlan, best_period


@dataclass(frozen=True)
class _Tail:
    """Stages that cover the end of the chain: the delay V in front of them, and their cuts."""

    delay: int
    cuts: tuple[int, ...]


def add_delay(delay: int, load: int, period: int) -> int:
    """V after one more item, as 1F1B* groups: it joins the last group if it fits there, else opens the next."""
    groups = -(-delay // period)
    return delay + load if -(-(delay + load) // period) == groups else period * groups + load


def best_contiguous(
    chain: PipelineChain, devices: int, memory: int, model: MemoryModel = "buf"
) -> ContiguousPlan | None:
    """The least period of all contiguous allocations in stages that run as blocks; none: there is none.

    Bisection over whole periods (the best is a sum of loads); per period O(devices * layers^2).
    """
    figures = StageFigures(chain)
    low = max(1, -(-figures.load(1, chain.layers) // devices))
    high = max(low, chain.longest_period)
    found = _within(figures, devices, (memory, high, model))
    if found is None:
        return None
    while low < high:
        middle = (low + high) // 2
        cuts = _within(figures, devices, (memory, middle, model))
        if cuts is None:
            low = middle + 1
        else:
            high, found = middle, cuts
    return best_period(chain, found, memory, model)


def least_contiguous_bytes(chain: PipelineChain, devices: int, model: MemoryModel = "buf") -> int:
    """The least memory per device within which some contiguous allocation of blocks runs, however slowly."""
    figures = StageFigures(chain)
    low, high = 0, figures.bytes(1, chain.layers, 1, model)
    while low < high:
        middle = (low + high) // 2
        if _within(figures, devices, (middle, max(1, chain.longest_period), model)) is None:
            low = middle + 1
        else:
            high = middle
    return low


_Limits: TypeAlias = tuple[int, int, MemoryModel]  # memory, period, and what counts as memory


def _within(figures: StageFigures, devices: int, limits: _Limits) -> tuple[int, ...] | None:
    """Cuts of a contiguous allocation that keeps the period within the memory per device; none: there are none.

    From the end; for a first layer and a number of stages the least delay is best, for needs grow with it.
    """
    layers = figures.chain.layers
    tails = [None] * layers + [_Tail(0, ())]
    for _ in range(min(devices, layers)):
        # `tails` by how many layers stand before; here with one stage more.
        memory, period, model = limits
        found: list[_Tail | None] = [None] * len(tails)
        for j, tail in enumerate(tails):
            if tail is None:
                continue
            for i in range(j, 0, -1):
                load = figures.load(i, j)
                if load > period:
                    break
                link = figures.link_load(i - 1)
                if link > period or figures.bytes(i, j, max(1, -(-(tail.delay + load) // period)), model) > memory:
                    continue
                delay = add_delay(add_delay(tail.delay, load, period), link, period)
                best = found[i - 1]
                if best is None or delay < best.delay:
                    found[i - 1] = _Tail(delay, (j, *tail.cuts))
        tails = found
        if tails[0] is not None:
            return tails[0].cuts
    return None
