"""Which weights may page, and what opening a session over them is measured to take."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.paging.paged_plan import image_bytes
from remat_cli.core.paging.weight_paging import MIB, HostedWeight, LoadCosts
from remat_cli.core.schedule.graph import Graph, Weight
from remat_cli.onnx_io.read.one_op import write_product
from remat_cli.ort_rules.records import RULES_1_32
from remat_cli.paging.hosted import LEAST_BYTES, may_page
from remat_cli.runtime.measure.open_speed import OpenJob, measure_opening
from remat_cli.runtime.sessions.session import SessionSettings

WIDE = (130, 200)  # 104,000 bytes as float


def model_of(nodes: list, shapes: dict[str, tuple[int, ...]], outputs=("y",), dtype=np.float32) -> ir.Model:
    """A model of these nodes, of which only weights and readers are looked at."""
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.zeros(shape, dtype), name) for name, shape in shapes.items()],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def found(model: ir.Model) -> dict[str, HostedWeight]:
    weights = tuple(Weight(name, value.const_value.nbytes) for name, value in model.graph.initializers.items())
    return {weights[each.weight].name: each for each in may_page(Graph((), (), weights), model, RULES_1_32.packing)}


def test_a_product_packs_and_its_columns_are_rounded_up():
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": WIDE})
    # 144 rows of 200, or 130 of 208, whichever way it is packed
    assert found(model) == {"w": HostedWeight(0, image_bytes(104_000), 144 * 200 * 4)}


@pytest.mark.parametrize(
    ("kind", "inputs", "shape"),
    [("MatMul", ["w", "x"], WIDE), ("Add", ["x", "w"], WIDE), ("Conv", ["x", "w"], (64, 64, 3, 3)),
     ("Gather", ["w", "x"], WIDE), ("MatMul", ["x", "w"], (3, 130, 200))],
)  # fmt: skip
def test_what_is_read_in_place_is_not_packed(kind, inputs, shape):
    model = model_of([helper.make_node(kind, inputs, ["y"])], {"w": shape})
    assert found(model) == {"w": HostedWeight(0, image_bytes(4 * int(np.prod(shape))), 0)}


def test_recurrent_cells_pack_both_of_theirs():
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=72)]
    got = found(model_of(nodes, {"w": (1, 288, 100), "r": (1, 288, 72)}))
    assert {name: each.packed_bytes for name, each in got.items()} == {"w": 288 * 128 * 4, "r": 288 * 128 * 4}


@pytest.mark.parametrize(
    ("nodes", "shapes"),
    [
        ([("MatMul", ["x", "w"], ["y"])], {"w": (64, 64)}),  # too small
        ([("ConvTranspose", ["x", "w"], ["y"])], {"w": (64, 64, 4, 4)}),  # packed in a way of its own
        ([("MatMul", ["x", "w"], ["a"]), ("Add", ["a", "w"], ["y"])], {"w": (256, 256)}),  # packed and read in place
        ([("Identity", ["x"], ["a"])], {"y": WIDE}),  # a model output
        ([("Identity", ["x"], ["y"])], {"w": WIDE}),  # nobody reads it
    ],
)
def test_others_stay(nodes, shapes):
    assert found(model_of([helper.make_node(*node) for node in nodes], shapes)) == {}


def test_what_a_subgraph_reads_stays():
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["z"])], "body", [], [value])
    node = helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)
    assert found(model_of([node], {"w": WIDE})) == {}


def test_the_least_that_pages():
    side = int((LEAST_BYTES // 4) ** 0.5)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    assert found(model_of(nodes, {"w": (side, side)}))
    assert not found(model_of(nodes, {"w": (side, side - 1)}))


def test_opening_is_measured(tmp_path):
    models = []
    for rows, columns in ((16, 16), (512, 512)):
        write_product(tmp_path / f"{rows}.onnx", rows, columns, "w")
        models.append((str(tmp_path / f"{rows}.onnx"), (rows, columns)))
    costs = measure_opening(OpenJob(tuple(models), "w", SessionSettings()))
    assert costs.open_ns > 10_000
    assert costs.pack_ns_per_mib >= 0


def test_time_to_open_grows_with_what_is_packed():
    costs = LoadCosts(100, 7)
    assert [costs.time_ns(size) for size in (0, 1, MIB, 3 * MIB)] == [100, 101, 107, 121]
