"""Transposed convolutions in parts of some channels: a smaller workspace each, the same bits at all sizes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.sizes import Dim, Term, number
from remat_cli.onnx_io.read.to_graph import INPUTS, to_graph
from remat_cli.splitting.recast.apart_sizes import with_ops_apart
from remat_cli.splitting.tiles.view import view_model
from tests.helpers import observe, to_bytes
from tests.splitting.looped_model import session_of

DICE = np.random.default_rng(0)
BATCH, FRAMES = (Dim((Term((name,)),)) for name in ("batch", "frames"))
MOST = {"batch": 3, "frames": 64}
LEAST_BYTES = 1000
TAKEN = 49_152


def built(read=(24, "frames"), made=12, *, kernel=4, group=1, least=2, biased=True, workspace_bytes=TAKEN):
    """x [batch, *read], spread and made larger; the model in other ops, and as it is."""
    places = len(read) - 1
    weights = DICE.standard_normal((read[0], made // group, *[kernel] * places)).astype(np.float32)
    given = {"w": weights, "c": DICE.standard_normal(made).astype(np.float32)}
    given = given if biased else {"w": weights}
    node = helper.make_node("ConvTranspose", ["x", *given], ["t"], "spread", strides=[2] * places, group=group)
    stored = [numpy_helper.from_array(array, name) for name, array in given.items()]
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *read])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node, helper.make_node("Relu", ["t"], ["y"], "relu")], "g", [port], [out], stored)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    feed = fed(read, MOST)
    known = to_graph(model, {**observe(model, {"x": feed}), INPUTS: (TensorType("float", feed.shape),)})
    shape = tuple(FRAMES if isinstance(each, str) else number(each) for each in read[1:])
    spread = tuple(Dim(each.terms, 2 * each.offset + kernel - 2) if each.terms else number(0) for each in shape)
    dims = {"x": (BATCH, number(read[0]), *shape)} | dict.fromkeys("ty", (BATCH, number(made), *spread))
    costs = {"spread": OpCost("spread", 1000, workspace_bytes=workspace_bytes)}
    return model, with_ops_apart(view_model(model, known, 1), dims, costs, LEAST_BYTES, {"batch": 1, "frames": least})


def fed(read, sizes):
    shape = [sizes["batch"], *(sizes[each] if isinstance(each, str) else each for each in read)]
    return DICE.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("read", [(24, "frames"), (24, 8, 8)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_parts_of_channels_have_the_bits_of_the_whole(read, biased):
    model, found = built(read, biased=biased)
    kinds = [node.op_type for node in found.model.graph]
    count = kinds.count("ConvTranspose")
    assert count > 1
    assert kinds[count:] == ["Concat", "Relu"]
    parts = list(found.model.graph)[:count]
    assert all(found.costs[node.name].workspace_bytes == TAKEN // count for node in parts)
    assert all(found.dims[node.outputs[0].name][:2] == (BATCH, number(12 // count)) for node in parts)
    assert "w" not in found.model.graph.initializers
    sessions = [session_of(to_bytes(each)) for each in (model, found.model)]
    for sizes in ({"batch": 3, "frames": 64}, {"batch": 1, "frames": 2}, {"batch": 2, "frames": 33}):
        feed = {"x": fed(read, sizes)}
        whole, ours = (session.run(None, feed)[0] for session in sessions)
        assert whole.tobytes() == ours.tobytes()


@pytest.mark.parametrize(
    "changed",
    [
        {"least": 1},  # a single place is a product of another kind
        {"read": (160, "frames"), "made": 96},  # long sums are added up by how many places each thread has
        {"group": 2},
        {"read": (24, 8, "frames"), "workspace_bytes": 400_000},  # rows of pictures
        {"made": 11},
        {"workspace_bytes": LEAST_BYTES - 1},
        {"made": 48, "workspace_bytes": 4096},  # joining takes more
    ],
    ids=str,
)
def test_what_has_other_bits_or_takes_no_less_stays(changed):
    _, found = built(**changed)
    assert [node.op_type for node in found.model.graph] == ["ConvTranspose", "Relu"]
    assert not found.dims
