"""Copies of weights in the arena, by rule, at the sizes that were measured; and of which blocks workspaces are."""

from __future__ import annotations

from math import prod

import msgspec
import pytest

from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.ort_rules.arena_copies import arena_copy_bytes
from remat_cli.ort_rules.records import RULES_1_32 as RULES
from remat_cli.ort_rules.workspaces import workspace_parts


@pytest.mark.parametrize(
    ("groups", "shape", "bytes_"),
    [
        (1, (16, 4, 3, 3), 576),
        (1, (24, 4, 3, 3), 1152),  # filled up to 32 channels
        (1, (40, 16, 3, 3), 6912),
        (1, (64, 64, 1, 1), 4096),
        (1, (8, 64, 3, 3), 0),  # too few results
        (1, (17, 64, 3, 3), 0),
        (1, (64, 3, 3, 3), 0),
        (1, (64, 34, 3, 3), 0),
        (32, (32, 1, 3, 3), 288),
        (20, (20, 1, 3, 3), 0),
        (2, (32, 16, 3, 3), 0),
        (16, (32, 1, 3, 3), 0),
    ],
)
def test_a_copy_is_as_large_as_was_measured(groups, shape, bytes_):
    assert arena_copy_bytes(groups, shape, RULES.packing.in_arena) == bytes_


def test_with_avx_512_there_are_kernels_for_more_channels():
    """20 channels: measured on both, AVX2 on an emulated processor."""
    narrow, wide = RULES.packing.in_arena, RULES.packing.in_arena_wide
    shapes = [(20, 64, 1, 1), (18, 64, 1, 1), (12, 64, 1, 1)]
    assert [arena_copy_bytes(1, shape, narrow) for shape in shapes] == [0, 0, 0]
    assert [arena_copy_bytes(1, shape, wide) for shape in shapes] == [2048, 0, 0]


def convolution(domain, shapes):
    """32 channels of 64 x 64 from 3, by a filter of 3 x 3."""
    fed, made = (Tensor(name, "uint8", shape, prod(shape)) for name, shape in zip("xy", shapes, strict=True))
    weights = (Weight("w", 32 * 27), Weight("b", 128))
    op = Op("c", "QLinearConv", (0,), (1,), domain, (0, 1))
    return Graph((op,), (fed, msgspec.structs.replace(made, producer=0)), weights)


PLACES = 64 * 64
SUMS, COLUMNS = 4 * 32 * PLACES, 27 * PLACES


def test_sums_and_columns_are_blocks_of_their_own():
    graph = convolution("com.microsoft", [(1, 64, 64, 3), (1, 64, 64, 32)])
    assert workspace_parts(graph, graph.ops[0], SUMS + COLUMNS + 64, RULES.workspaces) == (SUMS, COLUMNS + 64)
    assert workspace_parts(graph, graph.ops[0], 72 * PLACES, RULES.workspaces) == (
        72 * PLACES,
    )  # addresses, for a kernel of its own


def test_channels_that_are_not_last_are_turned_in_blocks_too():
    graph = convolution("", [(1, 3, 64, 64), (1, 32, 64, 64)])
    turned = (3 * PLACES, 32 * PLACES)
    total = SUMS + sum(turned) + COLUMNS
    assert workspace_parts(graph, graph.ops[0], total, RULES.workspaces) == (SUMS, *turned, COLUMNS)


def test_other_workspaces_are_one_block():
    tensors = (Tensor("x", "float", (4,), 16), Tensor("y", "float", (4,), 16, producer=0))
    graph = Graph((Op("s", "Hardmax", (0,), (1,)),), tensors, ())
    assert workspace_parts(graph, graph.ops[0], 32, RULES.workspaces) == (32,)


def test_a_convolution_whose_filter_is_computed_has_no_columns_of_its_own():
    """Of one channel, so that every byte that was taken for a filter would count as much as the result has."""
    ends = Tensor("x", "uint8", (1, 64, 64, 1), 4096), Tensor("y", "uint8", (1, 64, 64, 1), 4096, 0)
    op = Op("c", "QLinearConv", (0,), (1,), "com.microsoft")
    graph, sums_bytes = Graph((op,), ends, ()), RULES.workspaces.sum_bytes * 4096
    assert workspace_parts(graph, op, sums_bytes + 1, RULES.workspaces) == (sums_bytes, 1)
    assert workspace_parts(graph, op, sums_bytes, RULES.workspaces) == (sums_bytes,)
