"""What no schedule of a chain over devices can beat."""

from fractions import Fraction

from remat_cli.pipelines.plan.chain import MemoryModel, PipelineChain


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
