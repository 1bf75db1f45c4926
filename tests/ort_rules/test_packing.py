"""Which weights kernels pack, and what of weights stays once a session is loaded."""

from __future__ import annotations

import pytest

from remat_cli.core.schedule.graph import Graph, Weight
from remat_cli.core.schedule.program import Reader, WeightUse
from remat_cli.ort_rules.records import RULES_1_32
from tests.ort_rules.plans import chain

RULES = RULES_1_32.packing
WEIGHTS = (Weight("v", 500), Weight("w", 300))
MS = "com.microsoft"
MATMUL, LEFT, CONV = Reader("", "MatMul", 1), Reader("", "MatMul", 0), Reader("", "Conv", 1)


@pytest.mark.parametrize(
    ("reader", "dtype", "shape", "is_packed"),
    [
        (MATMUL, "float", (64, 64), True),
        (Reader("ai.onnx", "MatMul", 1), "float", (64, 64), True),
        (LEFT, "float", (64, 64), False),
        (MATMUL, "float", (2, 64, 64), False),
        (MATMUL, "double", (64, 64), False),
        (Reader("", "Gemm", 2), "float", (64, 64), False),
        (Reader("", "ConvTranspose", 1), "float", (8, 8, 3, 3), True),  # of any rank
        (Reader("", "LSTM", 2), "float", (1, 64, 16), True),
        (Reader("", "LSTM", 3), "float", (1, 128), False),
        (Reader("", "MatMulInteger", 1), "int8", (64, 64), True),
        (Reader("", "MatMulInteger", 1), "float", (64, 64), False),
        (Reader(MS, "MatMulNBits", 1), "uint8", (64, 2, 16), True),  # of any type and rank
        (Reader(MS, "MatMulNBits", 1, packs=False), "uint8", (64, 2, 32), False),
        (Reader("acme", "MatMul", 1), "float", (64, 64), False),
        (CONV, "float", (64, 64, 1, 1), False),
        (Reader("", "Gather", 0), "float", (64, 64), False),
    ],
)
def test_weights_are_packed_by_kernel_place_type_and_rank(reader, dtype, shape, is_packed):
    assert RULES.packs_weight(reader, dtype, shape) == is_packed


def test_copies_can_be_saved_but_for_those_of_quantised_convolutions():
    assert RULES.can_save_packed(MATMUL)
    assert not RULES.can_save_packed(Reader("", "QLinearConv", 3))
    assert not RULES.can_save_packed(Reader(MS, "QLinearConv", 3))
    assert not RULES.can_save_packed(CONV)


def use(size_bytes: int, *readers: Reader, shape: tuple[int, ...] = (64, 64)) -> WeightUse:
    return WeightUse("float", shape, size_bytes, readers)


@pytest.mark.parametrize(
    ("used", "outside_bytes"),
    [
        (use(128, MATMUL), 0),  # only packed copies stay
        (use(128, MATMUL, LEFT), 128),  # another op reads the original
        (use(128, CONV), 128),
        (use(127, CONV), 0),  # so small that it lies in the arena
        (use(128), 0),  # nobody reads it
        (use(128, MATMUL, shape=(2, 64, 64)), 128),
        (WeightUse("double", (64, 64), 128, (MATMUL,)), 128),
    ],
)
def test_originals_stay_outside_of_the_arena_where_some_op_reads_them_as_they_are(used, outside_bytes):
    assert RULES.kept_weight_bytes([used], 1000) == 1000 + outside_bytes
    assert RULES.kept_weight_bytes([used, use(500, CONV)], 1000) == 1500 + outside_bytes


@pytest.mark.parametrize(
    ("used", "is_gone"),
    [
        (use(127, MATMUL), True),
        (use(128, MATMUL), False),
        (use(127, MATMUL, LEFT), False),
        (use(127, CONV), False),
        (use(127), False),
    ],
)
def test_of_a_small_weight_the_original_goes_where_all_pack_it(used, is_gone):
    assert RULES.is_packed_away(used) == is_gone


def test_weights_of_a_loaded_session_are_what_it_counts_and_what_lies_outside():
    judged = chain([100, 60])
    uses = [use(500, CONV), use(300)]
    assert RULES.loaded_weight_bytes(judged.graph, uses, 1000) == 1500
    with_weights = Graph(judged.graph.ops, judged.graph.tensors, WEIGHTS)
    assert RULES.loaded_weight_bytes(with_weights, uses, None) == 800  # as in the file
    without_ops = Graph((), (), WEIGHTS)
    assert RULES.loaded_weight_bytes(without_ops, uses, 1000) == 500
