"""The best contiguous partition: cuts and 1F1B* chosen together, in polynomial time."""

from dataclasses import dataclass

from remat_cli.core.pipeline import PipelineChain
from remat_cli.solvers._pipeline.memory import StageFigures
from remat_cli.solvers._pipeline.onef1b_star import ContiguousPlan, best_period


@dataclass(frozen=True)
class _Tail:
    """Stages that cover the end of the chain: the delay V in front of them, and their cuts."""

    delay: int
    cuts: tuple[int, ...]


def add_delay(delay: int, load: int, period: int) -> int:
    """V after one more item, as 1F1B* groups: it joins the last group if it fits there, else opens the next."""
    groups = -(-delay // period)
    return delay + load if -(-(delay + load) // period) == groups else period * groups + load


def best_contiguous(chain: PipelineChain, devices: int, memory: int) -> ContiguousPlan | None:
    """The least period of all contiguous allocations in stages that run as blocks, with buffers; none: there is none.

    Bisection over whole periods (the best is a sum of loads); per period O(devices * layers^2).
    """
    figures = StageFigures(chain)
    low = max(1, -(-figures.load(1, chain.layers) // devices))
    high = max(low, chain.longest_period)
    found = contiguous_within(chain, devices, memory, high)
    if found is None:
        return None
    while low < high:
        middle = (low + high) // 2
        cuts = contiguous_within(chain, devices, memory, middle)
        if cuts is None:
            low = middle + 1
        else:
            high, found = middle, cuts
    return best_period(chain, found, memory)


def contiguous_within(chain: PipelineChain, devices: int, memory: int, period: int) -> tuple[int, ...] | None:
    """Cuts of a contiguous allocation that keeps the period within the memory per device; none: there are none.

    From the end; for a first layer and a number of stages the least delay is best, for needs grow with it.
    """
    figures = StageFigures(chain)
    tails = [None] * chain.layers + [_Tail(0, ())]
    for _ in range(min(devices, chain.layers)):
        tails = _one_more(figures, memory, period, tails)
        if tails[0] is not None:
            return tails[0].cuts
    return None


def _one_more(figures: StageFigures, memory: int, period: int, tails: list[_Tail | None]) -> list[_Tail | None]:
    """`tails` by how many layers stand before; the same with one stage more."""
    found: list[_Tail | None] = [None] * len(tails)
    for j, tail in enumerate(tails):
        if tail is None:
            continue
        for i in range(j, 0, -1):
            load = figures.load(i, j)
            if load > period:
                break
            link = figures.link_load(i - 1)
            if link > period or figures.bytes(i, j, max(1, -(-(tail.delay + load) // period))) > memory:
                continue
            delay = add_delay(add_delay(tail.delay, load, period), link, period)
            best = found[i - 1]
            if best is None or delay < best.delay:
                found[i - 1] = _Tail(delay, (j, *tail.cuts))
    return found
