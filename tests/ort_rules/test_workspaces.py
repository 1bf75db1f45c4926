"""Of which blocks a kernel's workspace is, as the runtime asked for them (1.32.0, on a library that notes requests)."""

from __future__ import annotations

from math import prod

import pytest

from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.ort_rules.records import RULES_1_32
from remat_cli.ort_rules.workspaces import parts_before_result, workspace_parts

RULES = RULES_1_32.workspaces
MS = "com.microsoft"
SEQUENCE = [(40, 8, 64)]
"""40 steps of 8 items, of 64 numbers each; recurrent ops here have states of 96 numbers."""
STATE, GATES, GRU_GATES, FED, ONE_WAY = 3072, 491520, 368640, 81920, 122880
ATTENDED = [(2, 128, 256), (2, 96, 256), (2, 96, 256)]
BY_HEADS = [(2, 4, 128, 64), (2, 4, 96, 64), (2, 4, 96, 64)]
Q, K = 262144, 196608
GROUPED = [(1, 128, 256), (1, 128, 128), (1, 128, 128), (1, 2, 64, 64), (1, 2, 64, 64)]
GROUPED_RESULTS = [(1, 128, 256), (1, 2, 192, 64), (1, 2, 192, 64)]

MEASURED = {
    "LSTM forward": ("LSTM", SEQUENCE, [(40, 1, 8, 96)], (), 509216, [STATE] * 5 + [GATES]),
    "LSTM backwards": ("LSTM", SEQUENCE, [(40, 1, 8, 96)], (), 714016, [STATE] * 5 + [GATES, FED, ONE_WAY]),
    "LSTM both ways": (
        *("LSTM", SEQUENCE, [(40, 2, 8, 96)], (), 1223232),
        [2 * STATE] * 2 + ([STATE] * 3 + [GATES]) * 2 + [FED, ONE_WAY],
    ),
    "LSTM both ways, with its last states": (
        *("LSTM", SEQUENCE, [(40, 2, 8, 96), (2, 8, 96), (2, 8, 96)], (), 1210944),
        ([STATE] * 3 + [GATES]) * 2 + [FED, ONE_WAY],
    ),
    "LSTM with one last state": (
        *("LSTM", SEQUENCE, [(40, 1, 8, 96), (1, 8, 96)], (), 506144),
        [STATE] * 4 + [GATES],
    ),
    "LSTM of its last states": ("LSTM", SEQUENCE, [(1, 8, 96), (1, 8, 96)], (), 503072, [STATE] * 3 + [GATES]),
    "GRU forward": ("GRU", SEQUENCE, [(40, 1, 8, 96)], (), 387104, [STATE] * 6 + [GRU_GATES]),
    "GRU with its last state": (
        *("GRU", SEQUENCE, [(40, 1, 8, 96), (1, 8, 96)], (), 384032),
        [STATE] * 5 + [GRU_GATES],
    ),
    "GRU backwards": ("GRU", SEQUENCE, [(40, 1, 8, 96)], (), 591904, [STATE] * 6 + [GRU_GATES, FED, ONE_WAY]),
    "GRU both ways": (
        *("GRU", SEQUENCE, [(40, 2, 8, 96)], (), 979008),
        [2 * STATE] + ([STATE] * 5 + [GRU_GATES]) * 2 + [FED, ONE_WAY],
    ),
    "GRU, reset apart": (
        *("GRU", SEQUENCE, [(40, 2, 8, 96)], (), 991296),
        [2 * STATE] + ([STATE] * 7 + [GRU_GATES]) * 2 + [FED, ONE_WAY],
    ),
    "LSTM in bytes": (
        *(f"{MS}:DynamicQuantizeLSTM", SEQUENCE, [(40, 1, 8, 96)], (24576, 36864, 4, 1), 540448),
        [STATE] * 5 + [GATES, 20480, 12288],
    ),
    "LSTM in bytes backwards": (
        *(f"{MS}:DynamicQuantizeLSTM", SEQUENCE, [(40, 1, 8, 96)], (24576, 36864, 4, 1), 745248),
        [STATE] * 5 + [GATES, FED, ONE_WAY, 20480, 12288],
    ),
    "LSTM in bytes both ways": (
        *(f"{MS}:DynamicQuantizeLSTM", SEQUENCE, [(40, 2, 8, 96)], (49152, 73728, 8, 2), 1285696),
        [2 * STATE] * 2 + ([STATE] * 3 + [GATES]) * 2 + [FED, ONE_WAY, 20480, 12288, 20480, 12288],
    ),
    "Attention": (f"{MS}:Attention", [(2, 128, 256)], [(2, 128, 256)], (786432, 3072), 1573376, [3 * Q, 2 * Q, Q]),
    "Attention of later steps only": (
        *(f"{MS}:Attention", [(2, 128, 256)], [(2, 128, 256)], (786432, 3072), 1704448),
        [3 * Q, Q // 2, 2 * Q, Q],
    ),
    "MultiHeadAttention": (f"{MS}:MultiHeadAttention", ATTENDED, [(2, 128, 256)], (), 738304, [Q, K, K, 82944]),
    "MultiHeadAttention, mask": (
        *(f"{MS}:MultiHeadAttention", ATTENDED, [(2, 128, 256)], (768,), 1312000),
        [Q, K, K, 2 * K, Q],
    ),
    "MultiHeadAttention, bias": (
        *(f"{MS}:MultiHeadAttention", ATTENDED, [(2, 128, 256)], (3072,), 852992),
        [Q, K, K, K],  # values once more, while their bias is added
    ),
    "MultiHeadAttention, keys by heads": (
        *(f"{MS}:MultiHeadAttention", [(2, 128, 256), (2, 4, 96, 64), (2, 4, 96, 64)], [(2, 128, 256)], (), 918016),
        [Q, 2 * K, Q],
    ),
    "MultiHeadAttention of one step": (
        *(f"{MS}:MultiHeadAttention", [(2, 1, 256), *ATTENDED[1:]], [(2, 1, 256)], (), 395912),
        [K, K, 704],
    ),
    "Attention of ONNX": ("Attention", ATTENDED, [(2, 128, 256)], (), 442368, [2 * K, 49152]),
    "Attention of ONNX by heads": ("Attention", BY_HEADS, [(2, 4, 128, 64)], (), 442368, [2 * K, 49152]),
    "Attention of ONNX without a mask": ("Attention", ATTENDED, [(2, 128, 256)], (), 393216, [2 * K]),
    "Attention of ONNX by heads without a mask": ("Attention", BY_HEADS, [(2, 4, 128, 64)], (), 393216, [2 * K]),
    "GroupQueryAttention": (
        *(f"{MS}:GroupQueryAttention", GROUPED, GROUPED_RESULTS, (4, 4), 394240),
        [131072, 65536, 65536, 132096],
    ),
    "GroupQueryAttention, rotated": (
        *(f"{MS}:GroupQueryAttention", GROUPED, GROUPED_RESULTS, (4, 4, 32768, 32768), 590848),
        [131072, 65536, 65536, 131072, 65536, 132096],
    ),
    "GroupQueryAttention, packed": (
        *(f"{MS}:GroupQueryAttention", [(1, 128, 512), *GROUPED[3:]], GROUPED_RESULTS, (4, 4, 32768, 32768), 656384),
        [262144, 262144, 132096],
    ),
    "Softmax of another axis": ("Softmax", [(8, 64, 96)], [(8, 64, 96)], (), 393216, [K, K]),
    "LogSoftmax": ("LogSoftmax", [(8, 64, 96)], [(8, 64, 96)], (), 393216, [K, K]),
    "LRN": ("LRN", [(1, 64, 40, 40)], [(1, 64, 40, 40)], (), 844800, [409600, 435200]),
}
"""Type, shapes of what is fed and made, bytes of weights, bytes held at most, and the blocks that are not small."""


def graph_of(op_type: str, fed: list, made: list, weights: tuple[int, ...] = (), dtype: str = "float") -> Graph:
    """A graph of one op, of which this is fed and made."""
    domain, _, op_type = op_type.rpartition(":")
    width = 4 if dtype == "float" else 1
    sizes = [width * prod(shape) for shape in (*fed, *made)]
    tensors = tuple(
        Tensor(f"t{at}", dtype, shape, size, None if at < len(fed) else 0)
        for at, (shape, size) in enumerate(zip((*fed, *made), sizes, strict=True))
    )
    ends = range(len(fed)), range(len(fed), len(tensors))
    op = Op("op", op_type, *map(tuple, ends), domain, tuple(range(len(weights))))
    return Graph((op,), tensors, tuple(Weight(f"w{at}", size) for at, size in enumerate(weights)))


def parts_of(workspace_bytes: int, *given, **how) -> tuple[int, ...]:
    graph = graph_of(*given, **how)
    return workspace_parts(graph, graph.ops[0], workspace_bytes, RULES)


@pytest.mark.parametrize("case", MEASURED)
def test_workspace_is_of_the_blocks_that_were_measured(case):
    """The last block has what is small too: biases, and what kernels round up."""
    *given, workspace_bytes, blocks = MEASURED[case]
    found = parts_of(workspace_bytes, *given)
    assert sum(found) == workspace_bytes
    assert list(found[:-1]) == blocks[:-1]
    states = RULES.state_slack_bytes * 96 if "LSTM" in case or "GRU" in case else 0
    assert 0 <= found[-1] - blocks[-1] <= RULES.slack_bytes + states


def before(workspace_bytes: int, *given) -> tuple[int, ...]:
    graph = graph_of(*given)
    return parts_before_result(graph, graph.ops[0], workspace_bytes, RULES)


def test_some_ops_ask_for_workspace_before_their_result():
    assert before(393216, "Where", [(8, 64, 96)] * 3, [(8, 64, 96)]) == (K, K)
    matrix = f"{MS}:DynamicQuantizeMatMul", [(4, 100, 64)], [(4, 100, 200)], (12800, 4)
    assert before(25600, *matrix) == (25600,)
    assert before(25600, "DynamicQuantizeMatMul", *matrix[1:]) == ()
    assert before(393216, f"{MS}:Where", [(8, 64, 96)] * 3, [(8, 64, 96)]) == ()
    assert before(393216, "Softmax", [(8, 64, 96)], [(8, 64, 96)]) == ()
    assert before(0, "Where", [(8, 64, 96)] * 3, [(8, 64, 96)]) == ()


@pytest.mark.parametrize(
    ("workspace_bytes", "blocks"),
    [(2 * K + 2048, (K, K + 2048)), (2 * K + 2049, None), (2 * K - 2048, (K, K - 2048)), (2 * K - 2049, None)],
)
def test_blocks_may_be_so_much_off_what_was_measured(workspace_bytes, blocks):
    found = parts_of(workspace_bytes, "Softmax", [(8, 64, 96)], [(8, 64, 96)])
    assert found == (blocks or (workspace_bytes,))


@pytest.mark.parametrize(
    ("workspace_bytes", "blocks"), [(2000, (1000, 1000)), (3000, (1000, 2000)), (3001, None), (1000, None)]
)
def test_small_copies_are_as_many_as_comes_nearest(workspace_bytes, blocks):
    found = parts_of(workspace_bytes, "Softmax", [(250,)], [(250,)])
    assert found == (blocks or (workspace_bytes,))


ONE_BLOCK = {
    "no workspace": (0, "Softmax", [(8, 64, 96)], [(8, 64, 96)]),
    "an op of another domain": (393216, "acme:Softmax", [(8, 64, 96)], [(8, 64, 96)]),
    "a rest of nothing": (409600, "LRN", [(1, 64, 40, 40)], [(1, 64, 40, 40)]),
    "more than a recurrent op needs": (5 * 10**6, "LSTM", SEQUENCE, [(40, 1, 8, 96)]),
    "an input of another rank": (509216, "LSTM", [(320, 64)], [(40, 1, 8, 96)]),
    "a result of another rank": (509216, "LSTM", SEQUENCE, [(320, 96)]),
    "less than attention needs": (Q, f"{MS}:Attention", [(2, 128, 256)], [(2, 128, 256)]),
    "attention of heads that do not divide": (4 * Q + 7 * Q // 2, f"{MS}:Attention", [(2, 128, 256)], [(2, 128, 256)]),
    "attention without what is attended": (442368, "Attention", [], [(2, 128, 256)]),
    "attention of another rank": (442368, "Attention", [(256, 256), (192, 256)], [(256, 256)]),
    "scores of other heads": (442368 + K, "Attention", BY_HEADS, [(2, 4, 128, 64)]),
    "scores of part of a head": (49152 + K + 9999, "Attention", ATTENDED, [(2, 128, 256)]),
    "a mask alone": (49152, "Attention", ATTENDED, [(2, 128, 256)]),
    "one step of grouped heads": (
        9000,
        f"{MS}:GroupQueryAttention",
        [(1, 1, 256), (1, 1, 128), (1, 1, 128)],
        GROUPED_RESULTS,
    ),
}


@pytest.mark.parametrize("case", ONE_BLOCK)
def test_workspace_of_which_no_rule_says_better_is_one_block(case):
    workspace_bytes, *given = ONE_BLOCK[case]
    assert parts_of(workspace_bytes, *given) == (workspace_bytes,)


def test_tables_of_rotation_may_be_fed():
    fed = [*GROUPED, (256, 32), (256, 32)]
    assert parts_of(590848, f"{MS}:GroupQueryAttention", fed, GROUPED_RESULTS, (4, 4))[3:5] == (131072, 65536)
    one = [*GROUPED, (256, 32)]
    assert len(parts_of(394240, f"{MS}:GroupQueryAttention", one, GROUPED_RESULTS, (4, 4, 8, 8))) == 4
    single = (4, 4, 8, 8, 32768)
    assert len(parts_of(394240, f"{MS}:GroupQueryAttention", GROUPED, GROUPED_RESULTS, single)) == 4


def test_two_steps_are_turned_round_too():
    fed = [(1, 2, 256), (1, 96, 256), (1, 96, 256)]
    # With a bias values come once more; as many scores would be of more heads than there are.
    found = parts_of(2048 + 3 * 98304, f"{MS}:MultiHeadAttention", fed, [(1, 2, 256)], (3072,))
    assert found == (2048, 98304, 98304, 98304)
    grouped = [(1, 2, 256), (1, 2, 128), (1, 2, 128)]
    found = parts_of(2048 + 2048 + 9000, f"{MS}:GroupQueryAttention", grouped, [(1, 2, 256)])
    assert found == (2048, 1024, 1024, 9000)


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_has_as_many_heads_as_divide_its_numbers(heads):
    made, scores = 64 * 99 * 4, 64 * 64 * 4
    found = parts_of(4 * made + heads * scores, f"{MS}:Attention", [(1, 64, 99)], [(1, 64, 99)], (9, 9))
    assert found == (3 * made, heads * scores, made)


@pytest.mark.parametrize(
    ("fed", "heads"),
    [
        ([(1, 64, 81)] * 3, 1),
        ([(1, 64, 80)] * 3, 5),
        ([(1, 6, 64, 16), (1, 2, 64, 16), (1, 2, 64, 16)], 6),  # of queries, which may share keys
    ],
)
def test_attention_of_onnx_has_scores_of_all_heads_and_a_mask_for_one(fed, heads):
    mask = 64 * 64 * 4
    assert parts_of((heads + 1) * mask, "Attention", fed, fed[:1]) == (heads * mask, mask)


PLACES = 32 * 24
SUMS, COLUMNS, ADDRESSES = 4 * 10 * PLACES, 6 * 9 * PLACES, 8 * 9 * PLACES


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize(
    ("blocks", "filter_bytes"),
    [
        ((SUMS, COLUMNS), 10 * 6 * 9),
        ((SUMS, ADDRESSES), 10 * 6 * 9),
        ((ADDRESSES,), 10 * 6 * 9),
        ((ADDRESSES,), 10 * 9),  # of a filter for each channel alone
    ],
)
def test_convolutions_of_bytes_work_item_by_item(is_last, blocks, filter_bytes):
    """Two items of 6 channels, or 10 where each has its own filter of 3 x 3, to 10."""
    read = 10 if filter_bytes == 90 else 6
    shapes = [[(2, 32, 24, each) if is_last else (2, each, 32, 24)] for each in (read, 10)]
    turned = () if is_last else (read * PLACES, 10 * PLACES)
    expected = (SUMS, *turned, *blocks[1:]) if blocks[0] == SUMS else (*turned, *blocks)
    op_type = f"{MS}:QLinearConv" if is_last else "QLinearConv"
    assert parts_of(sum(expected), op_type, *shapes, (filter_bytes, 40), dtype="uint8") == expected


def test_convolutions_without_results_take_one_block():
    for shape in ((0, 10, 32, 24), (2, 0, 32, 24)):
        assert parts_of(77, "QLinearConv", [(2, 6, 32, 24)], [shape], (540,), dtype="uint8") == (77,)


def test_keys_that_are_constants_are_as_many_as_queries():
    """Of two items with four heads of 128 times 128 scores."""
    assert parts_of(2 * Q + 65536, "Attention", ATTENDED[:1], [(2, 128, 256)], (K, K)) == (2 * Q, 65536)
    assert parts_of(Q + 3 * Q, f"{MS}:MultiHeadAttention", ATTENDED[:1], [(2, 128, 256)], (K, K)) == (Q, 2 * Q, Q)
