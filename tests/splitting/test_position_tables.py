"""Buckets of distances as tables: what T5 computes of positions, with the bits that it has for any size."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.values.sizes import Dim, Term
from remat_cli.splitting.loops.position_tables import ALONE, SOURCE, find_chains, with_tables

SEQ, ONE = Dim((Term(("seq",)),)), Dim((), 1)
ALL = (SEQ, SEQ)
DIMS = {"places": (SEQ,), "row": (ONE, SEQ), "column": (SEQ, ONE), "count": ()}
DIMS |= dict.fromkeys(("apart", "far", "float", "log", "scaled", "bucket", "is_near", "chosen", "sign", "y"), ALL)
LONGEST = {"seq": 900}


def buckets(last: str = "Add", start: str = "nought") -> ir.Model:
    """x [seq] to a bucket for each pair of positions, by the logarithm of how far they lie apart."""
    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Squeeze", ["shape"], ["count"]),
        make("Range", [start, "count", "one"], ["places"]),
        make("Unsqueeze", ["places", "first"], ["row"]),
        make("Unsqueeze", ["places", "second"], ["column"]),
        make("Sub", ["row", "column"], ["apart"]),
        make("Abs", ["apart"], ["far"]),
        make("Less", ["far", "eight"], ["is_near"]),
        make("Cast", ["far"], ["float"], to=TensorProto.FLOAT),
        make("Log", ["float"], ["log"]),
        make("Mul", ["log", "factor"], ["scaled"]),
        make("Cast", ["scaled"], ["bucket"], to=TensorProto.INT64),
        make("Where", ["is_near", "far", "bucket"], ["chosen"]),
        make("Sign", ["apart"], ["sign"]),
        make(last, ["chosen", "sign"], ["y"]),
        make("Gather", ["heights", "y"], ["z"], name="last"),
    ]
    whole = {"nought": 0, "one": 1, "eight": 8}
    arrays = {name: np.array(value, np.int64) for name, value in whole.items()}
    arrays |= {"first": np.array([0]), "second": np.array([1]), "factor": np.array(7.3, np.float32)}
    arrays |= {"heights": np.arange(-70, 70, dtype=np.float32)}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["seq"])]
    made = [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["seq", "seq"])]
    graph = helper.make_graph(nodes, "g", ports, made, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    import onnx

    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    return session.run(None, feeds)[0]


def test_a_table_has_the_bits_of_the_ops_at_any_size():
    model = buckets()
    (chain,) = find_chains(model, DIMS, LONGEST)
    assert (chain.source.name, chain.result.name, chain.low, chain.high) == ("apart", "y", -899, 899)
    table = run(chain.alone(), {SOURCE: chain.numbers})
    lean = with_tables(model, [(chain, table)])
    assert [node.op_type for node in lean.graph][-2:] == ["Gather", "Gather"]
    assert not {"Log", "Where", "Abs"} & {node.op_type for node in lean.graph}
    for seq in (1, 2, 9, 64, 333, 900):
        feeds = {"x": np.zeros(seq, np.float32)}
        assert run(model, feeds).tobytes() == run(lean, feeds).tobytes(), seq


def test_a_chain_runs_on_each_row_by_itself():
    (chain,) = find_chains(buckets(), DIMS, LONGEST)
    rows = np.resize(chain.numbers, (600, ALONE))
    made = run(chain.in_rows(), {SOURCE: rows})
    one_by_one = [run(chain.alone(), {SOURCE: row}) for row in rows[::97]]
    assert made.shape == rows.shape
    assert made[::97].tobytes() == np.stack(one_by_one).tobytes()
    table = run(chain.alone(), {SOURCE: chain.numbers})
    assert made.tobytes() == run(chain.looked_up(table, in_rows=True), {SOURCE: rows}).tobytes()
    chain.in_rows()  # the chain itself stays as it is
    assert chain.ops[0].graph is not None


def test_the_table_is_read_as_the_chain_computes():
    (chain,) = find_chains(buckets(), DIMS, LONGEST)
    table = run(chain.alone(), {SOURCE: chain.numbers})
    for numbers in (np.array([-899, 3, -1]), np.arange(-17, 899)):
        alone, looked_up = (run(model, {SOURCE: numbers}) for model in (chain.alone(), chain.looked_up(table)))
        assert alone.tobytes() == looked_up.tobytes()


@pytest.mark.parametrize(
    ("model", "dims", "longest"),
    [
        (buckets(start="count"), DIMS, LONGEST),  # positions of which it is not known where they begin
        (buckets(), {}, LONGEST),
        (buckets(), DIMS, {"seq": 2**17}),
    ],
)
def test_what_is_not_known_to_be_few_numbers_stays(model, dims, longest):
    assert find_chains(model, dims, longest) == []
    assert with_tables(model, []) is model
