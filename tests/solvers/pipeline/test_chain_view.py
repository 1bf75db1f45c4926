"""A forward graph as a chain: what crosses where, which cuts stay, and the chains that planners take."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.base.errors import InputError, ModelError
from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.solvers._pipeline.chain_view import every_cut, inference_of, merge_blocks, training_of
from remat_cli.solvers._pipeline.contiguous import best_contiguous

# x -> a -> b -> c, with a skip from a to the sum d, then e: tensors 0 (input) .. 5.
SIZES = (7, 4, 10, 10, 4, 2)
READS = ((0,), (1,), (2,), (1, 3), (4,))


def graph() -> Graph:
    tensors = [Tensor(f"t{at}", "float", (size,), size, at - 1 if at else None) for at, size in enumerate(SIZES)]
    weights = [(0,), (1,), (), (1,), (2,)]
    ops = [
        Op(f"op{at}", "Op", inputs, (at + 1,), weights=read)
        for at, (inputs, read) in enumerate(zip(READS, weights, strict=True))
    ]
    return Graph(tuple(ops), tuple(tensors), (Weight("v", 100), Weight("w", 10), Weight("u", 1)))


def test_what_crosses_each_cut():
    view = every_cut(graph())
    assert view.crossing == ((1,), (1, 2), (1, 3), (4,))
    assert view.cut_bytes() == (4, 14, 14, 4)


def test_a_block_with_a_skip_stays_together():
    view = merge_blocks(every_cut(graph()), [1] * 5, 3)
    assert (view.ends, view.crossing) == ((1, 4, 5), ((1,), (4,)))
    assert merge_blocks(view, [1] * 5, 1).ends == (5,)
    assert merge_blocks(view, [1] * 5, 9) == view


def test_chains_for_inference_and_training():
    view = merge_blocks(every_cut(graph()), [1] * 5, 3)
    chain = inference_of(view, [5, 1, 2, 3, 4], 3.0)
    assert (chain.forward, chain.weights, chain.sizes, chain.transfers) == (
        (5, 6, 4),
        (100, 10, 1),
        (7, 4, 4, 0),
        (2, 2),
    )
    assert best_contiguous(chain, 3, 104).period == 6
    # The first block needs its weights and a buffer of 4.
    assert best_contiguous(chain, 3, 103) is None
    step = training_of(view, [5, 1, 2, 3, 4], 3.0)
    assert (step.backward, step.copies) == ((10, 12, 8), 3)
    assert step.saved_bytes == (7 + 4, 4 + 10 + 10 + 4, 4 + 2)


def test_a_weight_of_several_blocks_counts_in_each():
    assert inference_of(every_cut(graph()), [1] * 5, 1.0).weights == (100, 10, 0, 10, 1)


def test_what_cannot_be_cut_is_named():
    view = every_cut(graph())
    with pytest.raises(InputError, match="at least one block; 0 were asked for"):
        merge_blocks(view, [1] * 5, 0)
    for speed in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="a link must move something"):
            inference_of(view, [1] * 5, speed)
    with pytest.raises(ModelError, match="without ops"):
        every_cut(Graph((), (), ()))
    ops = (*graph().ops[:-1], msgspec.structs.replace(graph().ops[-1], phase="backward"))
    with pytest.raises(ModelError, match="op4 is a backward op"):
        every_cut(msgspec.structs.replace(graph(), ops=ops))
