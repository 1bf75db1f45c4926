"""Products with weights of a few bits, their tables, and attention with grouped queries, in slabs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from remat_cli.splitting.tiles.op_view import Slab
from remat_cli.splitting.tiles.tiling import exit_axes
from tests.splitting.op_cases import SCALES, TABLE, blocks, contrib, real
from tests.splitting.random_models import Sample
from tests.splitting.sliced_op import Array, OneOp, check_slices
from tests.splitting.split_case import make_case

CONTRIB = "com.microsoft"
THREADS = st.sampled_from((1, 2, 4))


@dataclass(frozen=True)
class Matrix:
    """A matrix of so many columns, each of blocks of so many terms of a few bits, and how exactly it is used."""

    columns: int = 512
    terms: int = 256
    size: int = 32
    bits: int = 4
    level: int = 0


def product(rows: tuple[int, ...], matrix: Matrix, extras: str = "") -> OneOp:
    """A product with a matrix in blocks; `extras` may have zero points (z) and a bias (b)."""
    columns, terms, size, bits = matrix.columns, matrix.terms, matrix.size, matrix.bits
    count = -(-terms // size)
    packed, scales = blocks(columns, count, size, bits)
    dice = np.random.default_rng(terms)
    points = dice.integers(0, 256, columns * ((count * bits + 7) // 8)).astype(np.uint8) if "z" in extras else None
    bias = real(columns) if "b" in extras else None
    x = dice.standard_normal((*rows, terms)).astype(np.float32)
    inputs = (x, packed, scales, points, None, bias)
    return contrib(
        "MatMulNBits",
        *inputs,
        weights=(1, 2, 3, 5),
        K=terms,
        N=columns,
        bits=bits,
        block_size=size,
        accuracy_level=matrix.level,
    )


@pytest.mark.parametrize(("bits", "level"), [(4, 0), (4, 1), (4, 4), (8, 0), (8, 1), (8, 4)])
@pytest.mark.parametrize("seed", range(6))
def test_products_with_matrices_of_a_few_bits(bits, level, seed):
    dice = np.random.default_rng((bits, level, seed))
    columns, terms, size, threads = (
        int(dice.choice(among))
        for among in ((8, 17, 48, 64, 130, 256), (64, 96, 320, 640), (16, 32, 64, 128), (1, 2, 4))
    )
    rows = ((7,), (50,), (3, 16), (1, 33), (2, 9), (129,))[seed]
    op = product(rows, Matrix(columns, terms, size, bits, level), str(dice.choice(["", "z", "b", "zb"])))
    for axis in range(len(rows)):
        outcome = check_slices(op, axis, slabs_of(axis, rows[axis]), threads=threads)
        several = [slab for slab in outcome.exact if slab.extent * np.prod(rows) > rows[axis]]
        assert all(level == 4 and slab.stop == rows[axis] for slab in outcome.exact if slab not in several)
    outcome = check_slices(op, len(rows), slabs_of(len(rows), columns), threads=threads)
    assert outcome.all_refused if bits == 8 else outcome.all_exact  # which differ on some ARM processors


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("level", [0, 1, 4])
@pytest.mark.parametrize("columns", [16, 33, 130, 256])
def test_columns_for_one_row_are_cut_by_packets(bits, level, columns):
    op = product((1, 1), Matrix(columns, 96, 16, bits, level), "zb")
    outcome = check_slices(op, 2, slabs_of(2, columns), threads=4)
    assert outcome.all_refused if bits == 8 else outcome.all_exact


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [129, 385])
def test_a_row_that_is_left_over_is_computed_on_bytes_as_one_alone_is(rows, bits, threads):
    slabs = [Slab(0, 0, 128), Slab(0, 128, rows), Slab(0, rows - 1, rows)]
    assert check_slices(product((rows,), Matrix(130, 96, 16, bits, 4), "z"), 0, slabs, threads).all_exact
    assert check_slices(product((rows,), Matrix(130, 96, 16, bits, 0), "z"), 0, slabs, threads).all_refused


def slabs_of(axis: int, extent: int) -> list[Slab]:
    """Slabs of all kinds of ends: by packets of four, of two, and anywhere."""
    bounds = sorted({0, 1, 2, 3, 4, 8, extent // 2, extent // 2 // 4 * 4, extent - 1, extent} & set(range(extent + 1)))
    return [Slab(axis, start, stop) for start in bounds for stop in bounds if start < stop]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("level", [0, 4])
def test_products_of_language_models_are_cut_by_packets(bits, level):
    op = product((1, 64), Matrix(bits=bits, level=level))
    slabs = [Slab(1, start, start + 16) for start in range(0, 64, 16)]
    assert check_slices(op, 1, slabs, threads=2).all_exact
    assert check_slices(op, 1, [Slab(1, 2, 17)]).all_refused == (level == 4)


def test_other_levels_and_bits_are_refused():
    slabs = [Slab(0, 0, 16)]
    assert check_slices(product((32,), Matrix(level=2)), 0, slabs).all_refused


def test_tables_in_blocks_are_read_by_places():
    places = np.random.default_rng(0).integers(0, 6, (4, 9))
    op = contrib(
        "GatherBlockQuantized",
        *(TABLE, places, SCALES),
        weights=(0, 2),
        bits=4,
        block_size=16,
        gather_axis=0,
        quantize_axis=1,
    )
    assert check_slices(op, 0, threads=2).all_exact
    assert check_slices(op, 1).all_exact
    assert check_slices(op, 2).all_refused


def grouped(items: int, length: int, past: int, dice: np.random.Generator) -> OneOp:
    """Attention of four heads in two groups, with a past or without one, rotated or not, in windows or not."""
    total = past + length
    lengths = np.full(items, total - 1, np.int32)
    if not past:
        lengths[1:] = dice.integers(0, total, items - 1)
    inputs: tuple[Array | None, ...] = (
        *(dice.standard_normal((items, length, size)).astype(np.float32) for size in (64, 32, 32)),
        *(dice.standard_normal((items, 2, past, 16)).astype(np.float32) for _ in range(2)),
        lengths,
        np.array(total, np.int32),
    )
    attributes = {"num_heads": 4, "kv_num_heads": 2, "local_window_size": int(dice.choice([-1, 4]))}
    rotates = bool(dice.integers(2))
    inputs += (real(total + 3, 8), real(total + 3, 8)) if rotates else (None, None)
    bias = dice.standard_normal((int(dice.choice([1, items])), int(dice.choice([1, 4])), length, total))
    inputs += (None, bias.astype(np.float32) if dice.integers(2) else None)
    sinks = (real(4),) if dice.integers(2) else ()
    attributes |= {"do_rotary": int(rotates), "softcap": float(dice.choice([0, 9]))}
    return OneOp("GroupQueryAttention", inputs + sinks, attributes, (), CONTRIB, 1, (True,) * 3)


@settings(max_examples=10)
@given(
    st.integers(0, 2**32 - 1), st.integers(2, 4), st.sampled_from(((1, 0), (9, 0), (33, 0), (1, 5), (1, 40))), THREADS
)
def test_grouped_queries_go_by_items(seed, items, lengths, threads):
    op = grouped(items, *lengths, np.random.default_rng(seed))
    assert check_slices(op, 0, threads=threads).all_exact


def test_grouped_queries_are_not_cut_by_queries():
    op = grouped(3, 9, 0, np.random.default_rng(0))
    assert check_slices(op, 1, [Slab(1, 0, 4)]).all_refused
    assert check_slices(op, 2, [Slab(2, 0, 32)]).all_refused


def model_of(op: OneOp) -> Sample:
    """The op on what others make of the model's inputs, lengths of the past constant."""
    names = ["" if value is None else f"x{place}" for place, value in enumerate(op.inputs)]
    given = {name: value for name, value in zip(names, op.inputs, strict=True) if value is not None}
    fed = {name: value for name, value in given.items() if name not in ("x5", "x6")}
    nodes = [helper.make_node("Neg", [name], [f"{name}_read"], name=f"neg_{name}") for name in fed]
    reads = [f"{name}_read" if name in fed else name for name in names]
    made = ("y", "present_key", "present_value")
    nodes.append(helper.make_node(op.op_type, reads, made, name="op", domain=op.domain, **op.attributes))
    query, past = given["x0"].shape, given["x3"].shape
    shapes = (query, *((past[0], past[1], past[2] + query[1], past[3]),) * 2)
    graph = helper.make_graph(
        nodes,
        "grouped",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in fed.items()],
        [helper.make_tensor_value_info(*each) for each in zip(made, (TensorProto.FLOAT,) * 3, shapes, strict=True)],
        [onnx.numpy_helper.from_array(given[name], name) for name in ("x5", "x6")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return Sample(helper.make_model(graph, opset_imports=imports, ir_version=8), fed)


def test_pasts_of_more_axes_than_the_result_have_no_tiles_along_these():
    case = make_case(model_of(grouped(2, 9, 0, np.random.default_rng(0))))
    ops = tuple(range(len(case.view.graph.ops)))
    assert exit_axes(case.view, ops, ("present_key",), 3) == {"present_key": 3}
    assert exit_axes(case.view, ops, ("present_key", "y"), 3) is None
