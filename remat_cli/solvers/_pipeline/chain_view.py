"""A forward graph as a chain of blocks: where the order of its ops is cut, and what crosses there.

Any place between two ops is a cut; what is made before and read after it crosses, several tensors if need be. Model
inputs are fed where they are read, and model outputs leave where they are made: neither crosses. A tensor that crosses
several cuts goes through each and counts in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from remat_cli.base.errors import InputError, ModelError
from remat_cli.core.pipelines.pipeline import PipelineChain, inference_chain
from remat_cli.core.schedule.graph import Graph

_BACKWARD_SHARE = 2  # the backward of a layer takes about twice its forward: gradients of inputs and of weights


@dataclass(frozen=True)
class ChainView:
    """Blocks of ops in baseline order.

    Attributes:
        ends: per block, the number of ops before the next.
        crossing: per cut, the tensors that cross it, in a stable order; one less than blocks.
    """

    graph: Graph
    ends: tuple[int, ...]
    crossing: tuple[tuple[int, ...], ...]

    def cut_bytes(self) -> tuple[int, ...]:
        """What crosses each cut."""
        return tuple(sum(self.graph.tensors[tensor].size_bytes for tensor in cut) for cut in self.crossing)


def every_cut(graph: Graph) -> ChainView:
    """Each op as a block.

    Raises:
        ModelError: the graph is no forward graph, or has no op.
    """
    if not graph.ops:
        raise ModelError("a model without ops cannot be cut into stages")
    for op in graph.ops:
        if op.phase in ("backward", "update"):
            raise ModelError(f"op {op.name} is a {op.phase} op; give the forward model that the step was made from")
    last_read: dict[int, int] = {}
    for at, op in enumerate(graph.ops):
        last_read.update(dict.fromkeys(op.inputs, at))
    alive: list[int] = []
    crossing = []
    for at, op in enumerate(graph.ops[:-1]):
        alive = [tensor for tensor in (*alive, *op.outputs) if last_read.get(tensor, -1) > at]
        crossing.append(tuple(sorted(alive)))
    return ChainView(graph, tuple(range(1, len(graph.ops) + 1)), tuple(crossing))


def merge_blocks(view: ChainView, times: Sequence[int], most: int) -> ChainView:
    """At most so many blocks: neighbours become one where they are short together and much crosses between them.

    Args:
        view: blocks so far.
        times: of each op.
        most: at least 1.

    Raises:
        InputError: no block is left.
    """
    if most < 1:
        raise InputError(f"a chain needs at least one block; {most} were asked for")
    cuts = list(zip(view.ends, view.crossing, view.cut_bytes(), strict=False))
    while len(cuts) >= most:
        bounds = [0, *(end for end, _, _ in cuts), view.ends[-1]]
        loads = [1 + sum(times[first:end]) for first, end in pairwise(bounds)]
        worth = [(loads[at] + loads[at + 1]) / (1 + size) for at, (_, _, size) in enumerate(cuts)]
        del cuts[worth.index(min(worth))]
    ends = (*(end for end, _, _ in cuts), view.ends[-1])
    return ChainView(view.graph, ends, tuple(crossing for _, crossing, _ in cuts))


def inference_of(view: ChainView, times: Sequence[int], bytes_per_time: float) -> PipelineChain:
    """The chain of the model as it stands; a weight that several blocks read is counted in each.

    Args:
        view: blocks.
        times: of each op.
        bytes_per_time: what a link moves in one unit of time.
    """
    sizes = _sizes(view)
    return inference_chain(_loads(view, times), _weights(view), sizes, _transfers(sizes, bytes_per_time))


def training_of(view: ChainView, times: Sequence[int], bytes_per_time: float, copies: int = 3) -> PipelineChain:
    """The chain of a training step that is guessed from the forward model; arguments as for `inference_of`.

    Backwards take twice the time, and a block keeps its input and all that is made in it but views.
    """
    sizes = _sizes(view)
    loads = _loads(view, times)
    tensors = view.graph.tensors
    made = [
        sum(tensors[t].size_bytes for op in view.graph.ops[first:end] for t in op.outputs if tensors[t].view_of is None)
        for first, end in _bounds(view)
    ]
    return PipelineChain(
        forward=loads,
        backward=tuple(_BACKWARD_SHARE * load for load in loads),
        weights=_weights(view),
        sizes=sizes,
        transfers=_transfers(sizes, bytes_per_time),
        copies=copies,
        saved=tuple(size + inner for size, inner in zip(sizes, made, strict=False)),
    )


def _bounds(view: ChainView) -> list[tuple[int, int]]:
    return list(pairwise((0, *view.ends)))


def _loads(view: ChainView, times: Sequence[int]) -> tuple[int, ...]:
    return tuple(sum(times[first:end]) for first, end in _bounds(view))


def _weights(view: ChainView) -> tuple[int, ...]:
    graph = view.graph
    read = [{weight for op in graph.ops[first:end] for weight in op.weights} for first, end in _bounds(view)]
    return tuple(sum(graph.weights[weight].size_bytes for weight in each) for each in read)


def _sizes(view: ChainView) -> tuple[int, ...]:
    """Of a[0..n]: the model's inputs, what crosses, and nothing at the end."""
    return (view.graph.input_bytes, *view.cut_bytes(), 0)


def _transfers(sizes: tuple[int, ...], bytes_per_time: float) -> tuple[int, ...]:
    """Rounded up, so that a plan is no faster than the link.

    Raises:
        InputError: the link moves nothing.
    """
    if not bytes_per_time > 0:
        raise InputError(f"a link must move something, but moves {bytes_per_time} bytes per unit of time")
    return tuple(-int(-size // bytes_per_time) for size in sizes[1:-1])
