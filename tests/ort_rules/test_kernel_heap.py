"""What kernels take of the heap: bytes as they were measured, and what a session then holds, run after run."""

from __future__ import annotations

import pytest

from remat_cli.core.schedule.graph import TensorType
from remat_cli.ort_rules.forecast import predict_runs, predict_sessions
from remat_cli.ort_rules.heaps.kernel_heap import HeapUse, KernelCall, KernelHeap, heap_uses
from remat_cli.ort_rules.requests import Request
from tests.ort_rules.plans import HERE, MIB, chain, on

MS, ML = "com.microsoft", "ai.onnx.ml"
FOREST = {"nodes_treeids": tuple(at // 3 for at in range(300))}  # 100 trees of 3 nodes
GRID = [(1, 4, 500, 500), (1, 300, 700, 2)]
BOXES = [(1, 20_000, 4), (1, 1, 20_000)]


def uses(op, reads, makes, threads, **attributes):
    """Of an op whose values have these shapes; of integers where `int64` is said, else of floats."""

    def kind(shape):
        return TensorType(shape[0], shape[1:]) if shape and isinstance(shape[0], str) else TensorType("float", shape)

    call = KernelCall(tuple(map(kind, reads)), tuple(map(kind, makes)), attributes, threads)
    return heap_uses(op if isinstance(op, tuple) else ("", op), call)


def total(*given, **attributes):
    return sum(use.bytes for use in uses(*given, **attributes))


@pytest.mark.parametrize(
    ("measured", "op", "reads", "makes", "threads", "attributes"),
    [
        (8_002_232, "ScatterElements", [(1000,), ("int64", 1_000_000)], [(1000,)], 1, {}),
        (6_482_232, "ScatterElements", [(100, 7, 10), ("int64", 90, 1000, 9)], [(100, 7, 10)], 2, {"axis": 1}),
        (8_002_104, "ScatterND", [(1000,), ("int64", 1_000_000, 1)], [(1000,)], 1, {}),
        (1_602_104, "ScatterND", [(10, 10, 10, 4), ("int64", 200_000, 3)], [(10, 10, 10, 4)], 1, {}),
        (1_601_536, "GatherND", [(10, 10, 10, 4), ("int64", 200_000, 3)], [(200_000, 4)], 1, {}),
        (1_440, "TopK", [(1_000_000,)], [(1,)], 1, {}),
        (177_448, "TopK", [(1_000_000,)], [(22_000,)], 1, {"axis": 0}),
        (8_001_448, "TopK", [(1_000_000,)], [(22_600,)], 1, {"axis": 0}),
        (8_001_488, "TopK", [(1_000_000,)], [(100_000,)], 2, {}),
        (8_001_368, "TopK", [(1_000_000,)], [(1_000_000,)], 4, {}),
        (81_448, "TopK", [(100, 10_000)], [(100, 1000)], 1, {}),
        (161_600, "TopK", [(100, 10_000)], [(100, 1000)], 2, {"axis": 1}),
        (321_728, "TopK", [(100, 10_000)], [(100, 5000)], 4, {"axis": -1}),
        (81_368, "TopK", [(10_000, 100)], [(5000, 100)], 4, {"axis": 0}),
        (1_608, "TopK", [(10_000, 100)], [(20, 100)], 1, {"axis": 0}),
        (8_000_880, "NonZero", [(1_000_000,)], [("int64", 1, 1_000_000)], 1, {}),
        (14_001_560, "GridSample", [GRID[0], (1, 500, 500, 2)], [(1, 4, 500, 500)], 1, {}),
        (11_761_728, "GridSample", GRID, [(1, 4, 300, 700)], 2, {"mode": "bilinear"}),
        (14_001_560, "GridSample", [(3, 4, 50, 50), (3, 500, 500, 2)], [(3, 4, 500, 500)], 1, {"mode": "linear"}),
        (1_584, "GridSample", GRID, [(1, 4, 300, 700)], 1, {"mode": "nearest"}),
        (1_584, "GridSample", GRID, [(1, 4, 300, 700)], 1, {"padding_mode": "border"}),
        (1_584, "GridSample", GRID, [(1, 4, 300, 700)], 1, {"align_corners": 1}),
        (1_616, "GridSample", [(1, 4, 20, 50, 50), (1, 20, 50, 50, 3)], [(1, 4, 20, 50, 50)], 1, {}),
        (1_904, (ML, "TreeEnsembleRegressor"), [(100_000, 4)], [(100_000, 1)], 1, FOREST),
        (1_601_120, (ML, "TreeEnsembleRegressor"), [(100_000, 4)], [(100_000, 1)], 2, FOREST),
        (3_201_312, (ML, "TreeEnsembleRegressor"), [(100_000, 4)], [(100_000, 1)], 4, FOREST),
        (1_904, (ML, "TreeEnsembleRegressor"), [(50, 4)], [(50, 1)], 4, FOREST),
        (1_064, (ML, "TreeEnsembleRegressor"), [(100_000, 4)], [(100_000, 1)], 2, {"nodes_treeids": (0, 0, 1)}),
        (11_201_080, (ML, "TreeEnsembleRegressor"), [(100_000, 4)], [(100_000, 3)], 2, {**FOREST, "n_targets": 3}),
        (32_001_080, (ML, "TreeEnsembleRegressor"), [(100_000, 4)], [(100_000, 10)], 2, {**FOREST, "n_targets": 10}),
        (
            11_201_576,
            (ML, "TreeEnsembleClassifier"),
            [(100_000, 4)],
            [("int64", 100_000), (100_000, 2)],
            2,
            {**FOREST, "classlabels_int64s": (0, 1)},
        ),
        (788_848, "NonMaxSuppression", BOXES, [("int64", 2573, 3)], 1, {}),
        (8_801_728, "MatMul", [(100_000, 2, 2), (100_000, 2, 2)], [(100_000, 2, 2)], 1, {}),
        (8_801_760, "MatMul", [(1000, 100, 4, 4), (100, 4, 4)], [(1000, 100, 4, 4)], 1, {}),
        (8_801_728, (MS, "FusedMatMul"), [(4, 4), (100_000, 4, 4)], [(100_000, 4, 4)], 1, {}),
        (1_624, "MatMul", [(100_000, 4, 4), (4, 4)], [(100_000, 4, 4)], 1, {}),
        (2_401_720, "MatMul", [("double", 100_000, 4, 4)] * 2, [("double", 100_000, 4, 4)], 1, {}),
        (8_406_760, "Det", [(1, 1000, 1000)], [(1,)], 1, {}),
        (525_128, "DFT", [(10, 65_536, 1)], [(10, 65_536, 2)], 1, {}),
        (1_049_456, "DFT", [(10, 50_001, 1)], [(10, 50_001, 2)], 1, {}),
        (9_040, "Resize", [(1, 4, 500, 500)], [(1, 4, 1000, 1000)], 1, {"mode": "linear"}),
        (1_176, "Conv", [(1, 16, 200, 200)], [(1, 16, 198, 198)], 1, {}),
    ],
)
def test_kernels_take_what_was_measured(measured, op, reads, makes, threads, attributes):
    assert total(op, reads, makes, threads, **attributes) == pytest.approx(measured, rel=0.05, abs=2**16)


@pytest.mark.parametrize(
    ("measured", "op", "reads", "makes", "attributes"),
    [
        (112_000_896, "Unique", [(1_000_000,)], [(1_000_000,)], {}),
        (31_011_424, "Unique", [(1_000_000,)], [(10,)], {}),
        (30_070_208, "Unique", [(1_000_000,)], [(1000,)], {}),
        (48_721_712, "Unique", [(1_000_000,)], [(289_203,)], {}),
        (33_601_248, "Unique", [(100_000, 10)], [(100_000, 10)], {"axis": 0}),
        (33_601_200, "Unique", [(10, 100_000)], [(10, 100_000)], {"axis": 1}),
        (17_722_952, "Resize", [(1, 4, 500, 500)], [(1, 4, 1000, 1000)], {"mode": "cubic"}),
        (106_368_832, "Resize", [(1, 1, 1000, 1000)], [(1, 1, 3000, 3000)], {"mode": "cubic"}),
        (17_731_376, "Resize", [(1, 1, 1000, 1000)], [(1, 1, 500, 500)], {"mode": "cubic"}),
    ],
)
def test_small_pieces_are_told_with_what_malloc_adds_to_each(measured, op, reads, makes, attributes):
    """The counter sees neither heads of blocks nor that a list is reserved and not written."""
    assert 0.65 * measured < total(op, reads, makes, 1, **attributes) < 1.4 * measured


def test_of_a_list_that_outgrows_its_place_both_are_there():
    elements, barely = 1_000_000, 500_001
    few, more = (total("Unique", [(elements,)], [(count,)], 1) for count in (barely - 2, barely))
    assert more - few == pytest.approx(12 * elements, abs=1000)


def test_left_out_and_empty_values_take_nothing():
    assert total("TopK", [(0,)], [(0,)], 1) == total("Unique", [(0,)], [(0,)], 1, axis=0) == 0
    assert total("NonMaxSuppression", [(1, 0, 4), (1, 1, 0)], [("int64", 0, 3)], 1) == 0
    assert heap_uses(("", "TopK"), KernelCall((TensorType("float", (1000000,)),), (None, None), {}, 1)) == ()


def heap_after(*kernels):
    """Bytes at most during each kernel, which takes these parts, and afterwards."""
    heap, found = KernelHeap(), []
    for parts in kernels:
        for use in parts:
            heap.take(use)
        found.append(heap.resident_bytes)
        for use in parts:
            heap.give_back(use)
    return [*found, heap.resident_bytes]


def test_a_block_may_find_no_place_where_one_was():
    block = (HeapUse(10),)
    assert heap_after(block, block, block) == [10, 20, 20, 10]


def test_blocks_of_one_kernel_are_kept_together_and_the_most_of_all_stays():
    assert heap_after((HeapUse(10), HeapUse(5)), (HeapUse(7),)) == [15, 22, 15]


def test_a_block_that_is_always_mapped_goes_back():
    block = (HeapUse(2**25 + 1),)
    assert heap_after(block, block) == [2**25 + 1, 2**25 + 1, 0]


def test_a_block_larger_than_all_before_goes_back_the_first_time():
    large, larger = (HeapUse(10, is_large=True),), (HeapUse(12, is_large=True),)
    assert heap_after(large, large, large) == [10, 10, 20, 10]
    assert heap_after(large, larger, large) == [10, 12, 10, 10]


def test_pieces_lie_where_others_were():
    pieces = (HeapUse(2**26, "pieces"),)
    assert heap_after(pieces, pieces) == [2**26, 2**26, 2**26]


def test_runs_hold_the_heap_beside_what_the_arena_has_touched_so_far():
    plain = chain([10 * MIB, 10 * MIB, 50 * MIB])
    judged = chain([10 * MIB, 10 * MIB, 50 * MIB], heaps={"o1": (HeapUse(30 * MIB),)})
    before, runs = predict_sessions(plain, HERE), predict_sessions(judged, HERE)
    assert runs.exact == before.exact
    assert runs.default_session == before.default_session
    assert runs.runs.first_run_bytes == before.runs.first_run_bytes + 30 * MIB
    assert runs.runs.later_runs_bytes == before.runs.later_runs_bytes + 60 * MIB
    mapped = predict_sessions(chain([10 * MIB] * 3, heaps={"o1": (HeapUse(40 * MIB),)}), HERE).runs
    # The first two results are there while the block is; the arena touches the third one once it is gone.
    assert 60 * MIB <= mapped.first_run_bytes < 62 * MIB


def test_without_an_arena_the_block_is_one_of_mallocs():
    block = HeapUse(30 * MIB)
    runs = [Request(1, 2 * MIB, True), Request(-1, block.bytes, True, in_block=False, heap=block)]
    given_back = [Request(-1, block.bytes, False, in_block=False, heap=block), Request(1, 2 * MIB, False)]
    found = predict_runs((*runs, *given_back), on(has_arena=False))
    assert 32 * MIB <= found.first_run_bytes < 33 * MIB
    # A later run may take a second place, beside one that has been cut.
    assert 62 * MIB <= found.later_runs_bytes < 64 * MIB


def test_many_runs_at_once_have_a_block_each():
    judged = chain([10 * MIB, 10 * MIB], heaps={"o1": (HeapUse(30 * MIB),)})
    assert predict_sessions(judged, on(runs_at_once=2)).runs.first_run_bytes >= 40 * MIB
