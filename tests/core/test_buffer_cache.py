"""Buffers of certain sizes that are kept when they are free: worked out by hand."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from remat_cli.compiling.placed.cut import own_bytes, workspace_bytes, workspaces
from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.core.values.buffer_cache import BufferCache, Hold, steady_bytes
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.devices.provider_table import cache_of, named_spec

CACHE = BufferCache(bucket_bytes=(64, 128, 512), granule_bytes=16, packed_ops=("Conv",))


@pytest.mark.parametrize(
    ("size", "taken"), [(0, 0), (1, 64), (64, 64), (65, 128), (200, 512), (513, 528), (1040, 1040)]
)
def test_sizes_go_up_to_the_next_bucket_and_above_the_largest_to_the_granule(size, taken):
    assert CACHE.rounded(size) == taken


def test_weights_have_no_buckets():
    assert [CACHE.weight_bytes(size) for size in (8, 16, 65)] == [16, 16, 80]


@pytest.mark.parametrize(
    ("holds", "held"),
    [
        ([], 0),
        ([Hold(60, 0, 1), Hold(64, 2, 3)], 64),  # one after the other: the same buffer
        ([Hold(60, 0, 2), Hold(64, 2, 3)], 128),  # at the same time
        ([Hold(60, 0, 1), Hold(100, 2, 3)], 192),  # a free buffer of another size is no use
        ([Hold(60, 0, 3), Hold(60, 1, 1), Hold(60, 2, 2), Hold(400, 3, 3)], 640),
    ],
)
def test_of_each_bucket_as_many_are_held_as_ever_were_at_the_same_time(holds, held):
    assert steady_bytes(CACHE, holds, 4) == held


def test_options_that_change_the_cache_leave_it_unknown():
    assert cache_of(named_spec("cpu")) is None
    assert cache_of(named_spec("webgpu")) is not None
    simple = DeviceSpec("w", "webgpu", options={"storageBufferCacheMode": "simple"})
    assert cache_of(simple) is None
    usual = DeviceSpec("w", "webgpu", options={"storageBufferCacheMode": "bucket", "preferredLayout": "NHWC"})
    assert cache_of(usual) is not None


@pytest.mark.parametrize(("devices", "inputs"), [(("webgpu",), 512 - 300), (("cpu", "webgpu"), 0)])
def test_what_a_session_holds_beside_sizes(devices, inputs):
    """Weights of 8 and 100 bytes take 16 and 112; the larger one is packed, and the original stays."""
    graph = Graph(
        ops=(Op("c", "Conv", (0,), (1,), weights=(1,)), Op("a", "Add", (1,), (2,), weights=(0,))),
        tensors=tuple(
            Tensor(name, "float", (75,), 300, producer) for name, producer in zip("xcy", (None, 0, 1), strict=True)
        ),
        weights=(Weight("b", 8), Weight("w", 100)),
    )
    specs = tuple(map(named_spec, devices))
    assert own_bytes(graph, specs) == {"webgpu:0": (16 - 8) + (112 - 100) + 112 + inputs}


@pytest.mark.parametrize(
    ("op_type", "device", "taken"),
    [("Conv", "webgpu", 200), ("ReduceSum", "webgpu", 300), ("Add", "webgpu", 0), ("Conv", "cpu", 0)],
)
def test_what_an_op_takes_beside_its_tensors(op_type, device, taken):
    """A filter that is no weight, 200 bytes, gets another form; what is reduced, 300 bytes, is transposed."""
    sizes = (("x", 300, None), ("w", 200, None), ("y", 100, 0))
    tensors = tuple(Tensor(name, "float", (size // 4,), size, producer) for name, size, producer in sizes)
    op = Op("op", op_type, (0, 1), (2,))
    assert workspace_bytes(Graph((op,), tensors, ()), op, named_spec(device)) == taken


@pytest.mark.parametrize(
    ("device", "opset", "axis", "taken"),
    [
        ("webgpu", 13, 1, 600),  # what is read, and what is made, both transposed
        ("webgpu", 13, -3, 600),
        ("webgpu", 13, 2, 0),
        ("webgpu", 13, -1, 0),
        ("webgpu", 13, None, 0),
        ("webgpu", 12, 1, 0),  # all from the axis on is one
        ("cpu", 13, 1, 0),
    ],
)
def test_a_softmax_that_does_not_go_along_the_last_axis_takes_two_buffers(device, opset, axis, taken):
    attributes = {} if axis is None else {"axis": axis}
    node = helper.make_node("Softmax", ["x"], ["y"], "s", **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 5, 5]) for name in "xy"]
    proto = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", opset)]
    )
    tensors = tuple(Tensor(name, "float", (3, 5, 5), 300, producer) for name, producer in (("x", None), ("y", 0)))
    graph = Graph((Op("s", "Softmax", (0,), (1,)),), tensors, ())
    assert workspaces(graph, ir.from_proto(proto), named_spec(device)) == {"s": taken}


@pytest.mark.parametrize(
    ("op_type", "inputs", "axis", "taken"),
    [
        ("TopK", 1, 1, 300 + 20 + 40),  # what is read, values and places, all transposed
        ("TopK", 1, 2, 0),
        ("Max", 2, -1, 0),
        ("Max", 4, -1, 2 * 20),  # of the first two, and of that with the third
        ("Min", 3, -1, 20),
        ("InstanceNormalization", 1, -1, 2 * 4 * 15),  # a scale and a shift for each of 3 x 5 channels
    ],
)
def test_what_ops_of_several_buffers_take(op_type, inputs, axis, taken):
    read = tuple(Tensor(f"x{n}", "float", (3, 5, 5), 300, None) for n in range(inputs))
    made = (Tensor("y", "float", (5,), 20, 0), Tensor("z", "int64", (5,), 40, 0))
    op = Op("op", op_type, tuple(range(inputs)), (inputs, inputs + 1))
    assert workspace_bytes(Graph((op,), (*read, *made), ()), op, named_spec("webgpu"), axis) == taken
