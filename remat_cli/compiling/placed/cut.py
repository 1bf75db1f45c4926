"""Plans for several devices as the sessions and copies in which they run."""

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.compiling.platform import Platform
from remat_cli.core.schedule.graph import Graph, Op, TensorType, size_bytes
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem, device_tensor_ids, input_ops
from remat_cli.core.schedule.segments import Cut, cut_plan
from remat_cli.core.schedule.shared_session import Shared, one_session_cut, used_devices
from remat_cli.core.values.buffer_cache import BufferCache
from remat_cli.core.values.conditions import CPU
from remat_cli.core.values.profile import HOST_MEMORY, DeviceSpec, SessionForm
from remat_cli.devices.provider_table import PROVIDERS, cache_of
from remat_cli.onnx_io.write.segment_models import SegmentSource, one_session_names
from remat_cli.ort_rules.order import EARLY_OPS
from remat_cli.ort_rules.streams import HostValues, OneSession

TURNING_SOFTMAX: Final = 13
"""The opset from which on Softmax goes along one axis; before, it takes all from its axis on as one."""
FLOAT_BYTES: Final = 4


def own_bytes(graph: Graph, specs: Sequence[DeviceSpec]) -> dict[str, int]:
    """What a session with the whole model holds beside sizes of weights and inputs, by memory with a cache of buffers.

    Weights are rounded up, and one is held twice: at most the largest that is packed. Where no device uses the host's
    memory inputs take buffers too.
    """
    is_fed = all(spec.memory != HOST_MEMORY for spec in specs)
    sizes = [weight.size_bytes for weight in graph.weights]
    fed = [graph.tensors[tensor].size_bytes for tensor in graph.model_inputs] if is_fed else []
    found = {}
    for memory, cache in _caches(specs).items():
        packed = {weight for op in graph.ops if op.op_type in cache.packed_ops for weight in op.weights}
        twice = max((cache.weight_bytes(sizes[weight]) for weight in packed), default=0)
        held = twice + sum(map(cache.weight_bytes, sizes)) + sum(map(cache.rounded, fed))
        found[memory] = held - sum(sizes) - sum(fed)
    return found


def workspaces(graph: Graph, model: Any, spec: DeviceSpec) -> dict[str, int]:
    """What each op takes beside what it reads and makes, by name; `model` is the one that the graph was read from."""
    cache = cache_of(spec)
    if cache is None:
        return {op.name: 0 for op in graph.ops}
    is_old = model.opset_imports.get("", TURNING_SOFTMAX) < TURNING_SOFTMAX
    turned = set(cache.there_and_back_ops) - ({"Softmax"} if is_old else set())
    given = {node.name: node.attributes.get("axis") for node in model.graph if node.op_type in turned}
    axes = {name: axis.as_int() for name, axis in given.items() if axis is not None}
    return {op.name: workspace_bytes(graph, op, spec, axes.get(op.name, -1)) for op in graph.ops}


def workspace_bytes(graph: Graph, op: Op, spec: DeviceSpec, axis: int = -1) -> int:
    """What an op takes beside what it reads and makes, as far as the provider's record says it."""
    cache = cache_of(spec)
    if cache is None:
        return 0
    rank = len(graph.tensors[op.inputs[0]].shape) if op.inputs else 0
    return sum(_parts(graph, op, cache, is_across=axis not in (-1, rank - 1)))


def _parts(graph: Graph, op: Op, cache: BufferCache, *, is_across: bool) -> tuple[int, ...]:
    """Bytes of each buffer that an op takes beside what it reads and makes; `is_across`: not along the last axis."""
    read = [graph.tensors[tensor] for tensor in op.inputs]
    made = [graph.tensors[tensor].size_bytes for tensor in op.outputs]
    if not read:
        return ()
    if op.op_type in cache.there_and_back_ops:
        return (read[0].size_bytes, *made) if is_across else ()
    if op.op_type in cache.pairing_ops:
        return (made[0],) * (len(read) + len(op.weights) - 2)
    if op.op_type in cache.scaling_ops:
        return (2 * FLOAT_BYTES * math.prod(read[0].shape[:2]),)
    if op.op_type in cache.turning_ops:
        return (read[0].size_bytes,)
    return (read[1].size_bytes,) if op.op_type in cache.packed_ops and len(read) > 1 else ()


def has_cache(specs: Sequence[DeviceSpec], memory: str) -> bool:
    """Whether the provider of a memory keeps free buffers."""
    return memory in _caches(specs)


def _caches(specs: Sequence[DeviceSpec]) -> dict[str, BufferCache]:
    """How buffers are taken, by memory."""
    return {spec.memory: cache for spec in specs if (cache := cache_of(spec)) is not None}


def cut_of(platform: Platform, problem: Problem, plan: Plan, way: SessionForm = "sessions") -> Cut:
    """The plan as sessions and copies, each memory's budget kept where that is possible; or as the one session.

    Raises:
        ModelError: these devices cannot share a session.
    """
    tensors = [platform.graph.tensors[tensor] for tensor in device_tensor_ids(platform.graph, problem)]
    sizes = [size_bytes(TensorType(tensor.dtype, tensor.shape)) for tensor in tensors]
    caches = _caches(platform.specs)
    given, graph = input_ops(platform.graph, problem), platform.graph
    of_memory = {}
    for m, memory in enumerate(problem.memories):
        if memory.name in caches:
            cache = caches[memory.name]
            parts = {given + n: _parts(graph, op, cache, is_across=True) for n, op in enumerate(graph.ops)}
            several = {n: buffers for n, buffers in parts.items() if len(buffers) > 1}
            of_memory[m] = msgspec.structs.replace(cache, parts=several)
    if way == "sessions":
        return cut_plan(problem, plan, platform.opaque, given, sizes, of_memory)
    sides = sides_of(platform.specs, plan, given)
    if sides is None:
        raise ModelError("the plan's devices cannot share a session: compile again")
    return one_session_cut(Shared(problem, plan, given, sides), sizes, of_memory)


def sides_of(specs: Sequence[DeviceSpec], plan: Plan, given_ops: int) -> tuple[int, int] | None:
    """The devices of a plan on the host and beside it, where one session can hold both; else None."""
    used = used_devices(plan, given_ops)
    hosts = [device for device in used if specs[device].provider == CPU and specs[device].memory == HOST_MEMORY]
    others = [device for device in used if PROVIDERS[specs[device].provider].mixing is not None]
    return (hosts[0], others[0]) if len(hosts) == len(others) == 1 and len(used) == 2 else None


def in_one_session(platform: Platform, model: Any, problem: Problem, plan: Plan) -> Plan | None:
    """The plan in the order in which one session runs all of it; None where none can, or where it cannot be told.

    `model` is the optimised one.
    """
    graph, given = platform.graph, input_ops(platform.graph, problem)
    sides = sides_of(platform.specs, plan, given)
    mixing = None if sides is None else PROVIDERS[platform.specs[sides[1]].provider].mixing
    if sides is None or mixing is None or problem.overlap:
        return None

    def names(each: Plan) -> tuple[str, ...]:
        return one_session_names(SegmentSource(model, graph, problem, each))

    early = frozenset(given + number for number, op in enumerate(graph.ops) if op.op_type in EARLY_OPS)
    # What ops read and make on the host even where they run beside it.
    ids = device_tensor_ids(graph, problem)
    number = {graph.tensors[tensor].name: at for at, tensor in enumerate(ids)}
    op_of = {op.name: input_ops(graph, problem) + at for at, op in enumerate(graph.ops)}
    places = dict(mixing.host_inputs)
    read = {
        (op_of[node.name], number[value.name])
        for node in model.graph
        for place, value in enumerate(node.inputs)
        if value is not None and place in places.get(node.op_type, ()) and value.name in number
    }
    made = {number[graph.tensors[t].name] for op in graph.ops if op.op_type in mixing.host_outputs for t in op.outputs}
    host = HostValues(frozenset(read), frozenset(made))
    session = OneSession(Shared(problem, plan, given, sides), names, early, host)
    return session.in_its_order()
