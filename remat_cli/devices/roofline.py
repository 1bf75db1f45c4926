"""Costs on a device that is not here: a roofline per op, calibrated against what was measured elsewhere.

The roofline model (Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009) bounds an op's time by its arithmetic and by the bytes it moves. What real kernels
lose against it depends on the kind of op, so each kind gets one factor, taken from a measured device.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.core.schedule.graph import Graph, Op
from remat_cli.core.values.profile import DeviceSpec, LinkCost, OpCost, Profile, Provenance
from remat_cli.devices.provider_table import PROVIDERS

CONVOLUTIONS = frozenset({"Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "ConvInteger", "QLinearConv"})
TRANSPOSED_CONVOLUTIONS = frozenset({"ConvTranspose"})
PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm", "MatMulInteger", "QLinearMatMul", "QGemm"})
PICKING = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split", "Shape", "Size"})
"""Ops that read no more than they write, however large their inputs are."""

ELEMENT_BYTES: Mapping[str, int] = {"float": 4, "float16": 2, "bfloat16": 2, "double": 8, "int8": 1, "uint8": 1}
LEAST_FACTOR, MOST_FACTOR = 0.25, 32.0
"""How far an op's kind may lie from its roofline: below, tensors stay in caches; above, the figures are of no use."""


class OpWork(msgspec.Struct, frozen=True):
    """What an op has to do: floating-point operations (a multiplication and an addition are two), and bytes moved."""

    flops: int
    bytes: int


class Roof(msgspec.Struct, frozen=True):
    """What a device can do at best."""

    flops_per_second: float
    bytes_per_second: float
    launch_ns: float

    def busy_ns(self, work: OpWork) -> float:
        """Least time for some work, without starting it."""
        return 1e9 * max(work.flops / self.flops_per_second, work.bytes / self.bytes_per_second)


def estimate(
    graph: Graph, spec: DeviceSpec, measured: Profile | None = None, reference: DeviceSpec | None = None
) -> Profile:
    """The costs of a model's ops on a device that is not here, marked as not measured.

    Time = launch + factor x roofline. The factor of an op type is the median of measured time to roofline on the
    device that `measured` comes from, within bounds; 1 for types that were not measured. The roofline of that device
    is its description `reference` where that has figures, else what it reached on average over the model (then the
    absent device is taken to reach its own figures on average, which is too good for data-sheet figures). Workspace
    is taken to be the measured one; every op counts as supported.

    Raises:
        ConfigError: the description lacks the figures.
    """
    roof = _described_roof(spec)
    if roof is None:
        raise ConfigError(
            f"device '{spec.name}' cannot be estimated: it needs flops_per_second and memory_bytes_per_second in a "
            "description, --device FILE.yaml"
        )
    works = {op.name: op_work(graph, op) for op in graph.ops}
    factors = calibration(graph, measured, reference) if measured is not None else {}
    workspace = {cost.name: cost.workspace_bytes for cost in measured.ops} if measured is not None else {}
    ops = tuple(
        OpCost(
            op.name,
            round(roof.launch_ns + factors.get(op.op_type, 1.0) * roof.busy_ns(works[op.name])),
            workspace.get(op.name, 0),
        )
        for op in graph.ops
    )
    provider = PROVIDERS[spec.provider]
    origin = Provenance(
        cpu=spec.note or f"described in {spec.name}",
        os="",
        runtime=provider.package,
        runtime_version=measured.provenance.runtime_version if measured else "",
        provider=provider.runtime_name,
        intra_op_threads=spec.threads,
        optimization=measured.provenance.optimization if measured else "",
        runs=0,
        warmups=0,
        measured=False,
    )
    return Profile(
        device=spec.name,
        model_sha256=measured.model_sha256 if measured else "",
        provenance=origin,
        ops=ops,
        weight_bytes=graph.weight_bytes,
        input_bytes=graph.input_bytes,
        memory=spec.memory,
        power_watts=spec.power_watts,
        is_opaque=provider.is_opaque,
    )


def estimated_links(specs: Sequence[DeviceSpec]) -> tuple[LinkCost, ...]:
    """What the descriptions of devices say of copies between the memories they use, in both directions.

    Where two descriptions speak of one direction, the first holds. No link: no copy.
    """
    memories = {spec.memory for spec in specs}
    found: dict[tuple[str, str], LinkCost] = {}
    for spec in specs:
        for link in spec.links:
            here, there = spec.memory, link.to
            if there in memories and there != here:
                back_rate = link.back_bytes_per_second or link.bytes_per_second
                back_ns = link.latency_ns if link.back_latency_ns is None else link.back_latency_ns
                forth = LinkCost(here, there, link.latency_ns, link.bytes_per_second, measured=False)
                found.setdefault((here, there), forth)
                found.setdefault((there, here), LinkCost(there, here, back_ns, back_rate, measured=False))
    return tuple(found.values())


def op_work(graph: Graph, op: Op) -> OpWork:
    """The work of an op from the shapes around it: exact operations of convolutions and matrix products, else none."""
    outputs = [graph.tensors[i] for i in op.outputs]
    written_bytes = sum(tensor.size_bytes for tensor in outputs)
    weights_bytes = sum(graph.weights[i].size_bytes for i in op.weights)
    read_bytes = sum(graph.tensors[i].size_bytes for i in op.inputs) + weights_bytes
    moved_bytes = written_bytes + (min(read_bytes, written_bytes) if op.op_type in PICKING else read_bytes)
    is_view = bool(outputs) and all(tensor.view_of is not None for tensor in outputs)
    shape, flops = outputs[0].shape if outputs else (), 0
    if shape and op.op_type in CONVOLUTIONS:
        flops = _filter_flops(graph, op, shape)
    elif shape and op.op_type in TRANSPOSED_CONVOLUTIONS and op.inputs:
        flops = _filter_flops(graph, op, graph.tensors[op.inputs[0]].shape)
    elif shape and op.op_type in PRODUCTS and op.inputs:
        flops = 2 * math.prod(shape) * _inner(graph, op)
    return OpWork(flops, 0 if is_view else moved_bytes)


def calibration(graph: Graph, measured: Profile, reference: DeviceSpec | None = None) -> dict[str, float]:
    """How many times its roofline an op of each type took: the median of the measured ones, within bounds."""
    times = {cost.name: cost.time_ns for cost in measured.ops}
    roof = (_described_roof(reference) if reference is not None else None) or reached_roof(graph, measured)
    ratios: dict[str, list[float]] = {}
    for op in graph.ops:
        expected_ns = roof.busy_ns(op_work(graph, op))
        if op.name in times and expected_ns > 0:
            ratios.setdefault(op.op_type, []).append(times[op.name] / (roof.launch_ns + expected_ns))
    return {kind: min(MOST_FACTOR, max(LEAST_FACTOR, median(found))) for kind, found in ratios.items()}


def reached_roof(graph: Graph, measured: Profile) -> Roof:
    """What a device reached on average: operations of products and convolutions, bytes of all others, over their times.

    To start an op takes as long as the fastest one. A rate of which there is no example is without limit.
    """
    times = {cost.name: cost.time_ns for cost in measured.ops}
    works = [(op_work(graph, op), times[op.name]) for op in graph.ops if op.name in times]
    heavy = [(work.flops, time) for work, time in works if work.flops]
    light = [(work.bytes, time) for work, time in works if not work.flops and work.bytes]
    return Roof(_rate(heavy), _rate(light), min(times.values(), default=0))


def _rate(amounts: Sequence[tuple[int, int]]) -> float:
    """Amount per second over all; without limit where nothing took time."""
    spent = sum(time for _, time in amounts)
    return 1e9 * sum(amount for amount, _ in amounts) / spent if spent else math.inf


def _described_roof(spec: DeviceSpec) -> Roof | None:
    if spec.flops_per_second is None or spec.memory_bytes_per_second is None:
        return None
    return Roof(spec.flops_per_second, spec.memory_bytes_per_second, spec.launch_ns)


def _filter_flops(graph: Graph, op: Op, shape: tuple[int, ...]) -> int:
    """Operations of a filter that touches each element of `shape` (N, C, ...) with its C-th part."""
    channels = shape[3] if op.op_type.startswith("Nhwc") and len(shape) == 4 else shape[1]
    if op.weights:
        elements = _weight_elements(graph, op)
    else:  # the filter is computed
        elements = math.prod(graph.tensors[op.inputs[1]].shape) if len(op.inputs) > 1 else 0
    return 2 * math.prod(shape) * elements // max(1, channels)


def _weight_elements(graph: Graph, op: Op) -> int:
    """Elements of the largest weight, which has the type of the op's first input."""
    dtype = graph.tensors[op.inputs[0]].dtype if op.inputs else "float"
    return max(graph.weights[i].size_bytes for i in op.weights) // ELEMENT_BYTES.get(dtype, 4)


def _inner(graph: Graph, op: Op) -> int:
    """Length of the sums of a matrix product, however its factors are transposed.

    A factor of M x K elements, in whatever order, gives K = elements / M. Where one factor is a weight it is not known
    which of the two it is: the second unless only the first fits.
    """
    made = graph.tensors[op.outputs[0]].shape
    columns, rows = made[-1], made[-2] if len(made) > 1 else 1
    first = graph.tensors[op.inputs[0]].shape
    second = graph.tensors[op.inputs[1]].shape if len(op.inputs) > 1 else ()
    if len(second) == 1 and not op.weights and op.op_type == "MatMul":
        return second[0]
    elements = math.prod(first[-2:])
    inner = elements // max(1, rows)
    if op.weights and len(op.inputs) == 1 and _weight_elements(graph, op) != inner * columns:
        other = elements // max(1, columns)
        return other if _weight_elements(graph, op) == other * rows else inner
    return inner
