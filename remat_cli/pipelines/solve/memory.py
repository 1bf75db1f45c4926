"""What a stage that runs as a block takes of its device: bytes, by how many mini-batches are alive in it."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from remat_cli.pipelines.plan.chain import MemoryModel, PipelineChain


@dataclass(frozen=True)
class StageFigures:
    """Sums over layers i..j of a chain, both counted from 1; constant time each."""

    chain: PipelineChain

    @cached_property
    def _loads(self) -> list[int]:
        return [0, *accumulate(map(sum, zip(self.chain.forward, self.chain.backward, strict=True)))]

    @cached_property
    def _saved(self) -> list[int]:
        return [0, *accumulate(self.chain.saved_bytes)]

    @cached_property
    def _weights(self) -> list[int]:
        return [0, *accumulate(self.chain.copies * weight for weight in self.chain.weights)]

    def load(self, i: int, j: int) -> int:
        """U(i,j): time of all forwards and backwards."""
        return self._loads[j] - self._loads[i - 1]

    def link_load(self, j: int) -> int:
        """Time a link needs per mini-batch for the cut after layer j, all ways; none at the ends of the chain."""
        return self.chain.ways * self.chain.transfers[j - 1] if 0 < j < self.chain.layers else 0

    def saved_bytes(self, i: int, j: int) -> int:
        """What a stage keeps of one mini-batch."""
        return self._saved[j] - self._saved[i - 1]

    def weight_bytes(self, i: int, j: int) -> int:
        """All copies of a stage's weights."""
        return self._weights[j] - self._weights[i - 1]

    def buffer_bytes(self, i: int, j: int) -> int:
        """Buffers for the activation and the gradient at both ends of a stage."""
        sizes, ways = self.chain.sizes, self.chain.ways
        return (ways * sizes[i - 1] if i > 1 else 0) + (ways * sizes[j] if j < self.chain.layers else 0)

    def bytes(self, i: int, j: int, alive: int, model: MemoryModel = "buf") -> int:
        """mem(i,j,g): what stage i..j takes with `alive` mini-batches in it."""
        held = self.weight_bytes(i, j) + alive * self.saved_bytes(i, j)
        if model == "nca":
            return held
        held += self.buffer_bytes(i, j)
        return held + max(self.work_bytes(i, j)) if model == "full" else held

    def work_bytes(self, i: int, j: int) -> tuple[int, int]:
        """What the forwards and what the backwards add at most to all that is saved (the second: tB).

        Exact where each layer saves its input; else an upper bound. While F_l of the newest mini-batch runs, the
        layers after l have not yet saved of it; while B_l of the oldest runs, they have dropped theirs.
        """
        forward, backward = self._work_peaks[i - 1][j - i]
        after = self._saved[j]
        return forward - after, backward - (0 if self.chain.drops_at_end else after)

    @cached_property
    def _work_peaks(self) -> list[list[tuple[int, int]]]:
        """By first layer and number of layers, the most work, each with all that is saved up to its layer."""
        chain, sums = self.chain, self._saved[1:]
        forward = [work + saved for work, saved in zip(chain.forward_work_bytes, sums, strict=True)]
        kept = [0] * chain.layers if chain.drops_at_end else sums
        backward = [work + saved for work, saved in zip(chain.backward_work_bytes, kept, strict=True)]
        starts = range(chain.layers)
        return [list(zip(accumulate(forward[i:], max), accumulate(backward[i:], max), strict=True)) for i in starts]
