from __future__ import annotations

import math

import msgspec
import pytest

from remat_cli.base.errors import ConfigError
from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.core.schedule.problem import make_device_problem
from remat_cli.core.values.profile import DeviceSpec, LinkCost, LinkSpec, OpCost, Profile, Provenance
from remat_cli.devices.roofline import MOST_FACTOR, calibration, estimate, estimated_links, op_work

GPU = DeviceSpec(
    "gpu", "cuda", "cuda:0", flops_per_second=1e12, memory_bytes_per_second=1e11, launch_ns=1000, power_watts=50
)
HERE = Provenance("some CPU", "Linux", "onnxruntime", "9.9", "CPUExecutionProvider", 1, "all", 10, 2)


def one_op(op_type, inputs, output, weights=(), dtype="float", **fields):
    """A graph of one op with inputs, weights (element counts) and output of these shapes."""
    size = 4 if dtype == "float" else 2
    made = [Tensor(f"x{i}", dtype, shape, size * math.prod(shape)) for i, shape in enumerate(inputs)]
    last = Tensor("y", dtype, output, size * math.prod(output), producer=0, kept=True, **fields)
    op = Op("op", op_type, tuple(range(len(inputs))), (len(inputs),), weights=tuple(range(len(weights))))
    return Graph((op,), (*made, last), tuple(Weight(f"w{i}", size * count) for i, count in enumerate(weights)))


def work(*args, **kwargs):
    graph = one_op(*args, **kwargs)
    return op_work(graph, graph.ops[0])


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_convolutions_count_each_tap_once(dtype):
    for groups in (1, 2, 8):
        taps = 8 // groups * 3 * 3
        found = work("Conv", [(2, 8, 10, 10)], (2, 16, 8, 8), [16 * taps, 16], dtype)
        assert found.flops == 2 * (2 * 16 * 8 * 8) * taps


def test_a_filter_that_is_computed():
    assert work("Conv", [(1, 4, 9), (6, 4, 3)], (1, 6, 7)).flops == 2 * 6 * 7 * 4 * 3


def test_transposed_convolutions_count_from_their_input():
    found = work("ConvTranspose", [(1, 8, 5, 5)], (1, 4, 10, 10), [8 * 4 * 2 * 2])
    assert found.flops == 2 * (8 * 5 * 5) * (4 * 2 * 2)


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "weights", "inner"),
    [
        ("MatMul", [(5, 7), (7, 3)], (5, 3), [], 7),
        ("MatMul", [(2, 4, 5, 7), (2, 4, 7, 3)], (2, 4, 5, 3), [], 7),
        ("MatMul", [(5, 7), (7,)], (5,), [], 7),
        ("MatMul", [(7,), (7, 3)], (3,), [], 7),
        ("MatMul", [(2, 5, 7)], (2, 5, 3), [21], 7),
        ("MatMul", [(7, 3)], (5, 3), [35], 7),  # the weight is the first factor
        ("Gemm", [(7, 5)], (5, 3), [21, 3], 7),  # the tensor is transposed
        ("Gemm", [(5, 7), (3, 7)], (5, 3), [3], 7),  # the second factor is transposed, the bias is a weight
    ],
)
def test_matrix_products(op_type, inputs, output, weights, inner):
    assert work(op_type, inputs, output, weights).flops == 2 * math.prod(output) * inner


def test_bytes_of_other_ops():
    assert work("Relu", [(10,)], (10,)) == work("Tanh", [(10,)], (10,))
    assert (work("Add", [(10,), (10,)], (10,)).flops, work("Add", [(10,), (10,)], (10,)).bytes) == (0, 120)
    assert work("Gather", [(5,)], (5, 2), [1000]).bytes == 2 * 40  # only what is picked
    assert work("Reshape", [(10,)], (2, 5), view_of=0).bytes == 0


def chain(*kinds):
    """Ops of these types, each on 1000 floats."""
    tensors = [Tensor("x", "float", (1000,), 4000)]
    tensors += [Tensor(f"t{i}", "float", (1000,), 4000, producer=i) for i in range(len(kinds))]
    ops = tuple(Op(f"op{i}", kind, (i,), (i + 1,)) for i, kind in enumerate(kinds))
    return Graph(ops, (*tensors[:-1], msgspec.structs.replace(tensors[-1], kept=True)), ())


def measured(graph, *times_ns):
    ops = tuple(OpCost(op.name, time, 64) for op, time in zip(graph.ops, times_ns, strict=True))
    return Profile("cpu", "abc", HERE, ops, graph.weight_bytes, graph.input_bytes)


def test_without_measurements_an_op_takes_its_roofline():
    found = estimate(chain("Relu", "Tanh"), GPU)
    assert [cost.time_ns for cost in found.ops] == [1000 + 80, 1000 + 80]  # 8000 bytes at 100 GB/s
    assert (found.device, found.memory, found.power_watts, found.is_opaque) == ("gpu", "cuda:0", 50, False)
    assert not found.provenance.measured
    assert found.provenance.provider == "CUDAExecutionProvider"


def test_each_kind_of_op_gets_the_factor_it_was_measured_with():
    graph = chain("Relu", "Relu", "Relu", "Tanh", "Erf")
    reference = DeviceSpec("cpu", "cpu", flops_per_second=1e9, memory_bytes_per_second=1e9, launch_ns=2000)
    times = (10_000, 20_000, 90_000, 1000, 10**9)  # a roofline of 2000 + 8000 ns
    assert calibration(graph, measured(graph, *times), reference) == {"Relu": 2.0, "Tanh": 0.25, "Erf": MOST_FACTOR}
    found = estimate(graph, GPU, measured(graph, *times), reference)
    assert [cost.time_ns for cost in found.ops] == [1160, 1160, 1160, 1020, 1000 + 32 * 80]
    assert {cost.workspace_bytes for cost in found.ops} == {64}
    assert found.model_sha256 == "abc"
    assert found.provenance.runtime_version == "9.9"


def test_without_a_description_the_measured_device_is_its_own_average():
    graph = chain("Relu", "Relu", "Tanh", "Tanh")
    factors = calibration(graph, measured(graph, 10_000, 10_000, 30_000, 30_000))
    # 32,000 bytes in 80,000 ns; the fastest op stands for starting one: 10,000 + 20,000 ns expected of each
    assert factors == {"Relu": pytest.approx(1 / 3), "Tanh": pytest.approx(1.0)}


def test_a_device_without_figures_is_refused():
    with pytest.raises(ConfigError, match="'gpu' cannot be estimated: it needs flops_per_second and memory_bytes"):
        estimate(chain("Relu"), msgspec.structs.replace(GPU, flops_per_second=None))


def test_links_hold_in_both_directions_between_memories_in_use():
    cpu = DeviceSpec("cpu", "cpu", links=(LinkSpec("cuda:0", 9e9), LinkSpec("cuda:7", 1e9)))
    gpu = msgspec.structs.replace(GPU, links=(LinkSpec("cpu", 1e9, 5, back_bytes_per_second=2e9),))
    assert estimated_links((gpu, DeviceSpec("cpu", "cpu"))) == (
        LinkCost("cuda:0", "cpu", 5, 1e9, measured=False),
        LinkCost("cpu", "cuda:0", 5, 2e9, measured=False),
    )
    both = estimated_links((cpu, gpu))
    assert [(link.source, link.target, link.bytes_per_second) for link in both] == [
        ("cpu", "cuda:0", 9e9),
        ("cuda:0", "cpu", 9e9),
    ]


def test_estimates_make_a_problem():
    graph = chain("Relu", "Tanh")
    here = DeviceSpec("cpu", "cpu", links=(LinkSpec("cuda:0", 1e9, 10),))
    profiles = (measured(graph, 10, 20), estimate(graph, GPU))
    problem = make_device_problem(graph, profiles, estimated_links((here, GPU)), {"cpu": 10**6, "cuda:0": 10**6})
    assert problem.ops[1].time_ns == (10, 1080)
    assert problem.copy_ns[0][1][0] == 10 + 4000
