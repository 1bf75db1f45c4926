"""Plans for several devices as the sessions and copies in which they run."""

from collections.abc import Sequence

from remat_cli.core.buffer_cache import BufferCache
from remat_cli.core.graph import Graph, Op, TensorType, size_bytes
from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem, device_tensor_ids, input_ops
from remat_cli.core.profile import HOST_MEMORY, DeviceSpec
from remat_cli.core.segments import Cut, cut_plan
from remat_cli.devices.provider_table import cache_of
from remat_cli.stages.platform import Platform


def own_bytes(graph: Graph, specs: Sequence[DeviceSpec]) -> dict[str, int]:
    """What a session with the whole model holds beside sizes of weights and inputs, by memory with a cache of buffers.

    Weights are rounded up, and one is held twice: at most the largest that is packed. Where no device uses the host's
    memory inputs take buffers too.
    """
    is_fed = all(spec.memory != HOST_MEMORY for spec in specs)
    return {memory: _own_bytes(graph, cache, is_fed) for memory, cache in _caches(specs).items()}


def workspace_bytes(graph: Graph, op: Op, spec: DeviceSpec) -> int:
    """What an op takes beside what it reads and makes, as far as the provider's record says it."""
    cache = cache_of(spec)
    if cache is None:
        return 0
    if op.op_type in cache.turning_ops:
        return graph.tensors[op.inputs[0]].size_bytes if op.inputs else 0
    return graph.tensors[op.inputs[1]].size_bytes if op.op_type in cache.packed_ops and len(op.inputs) > 1 else 0


def has_cache(specs: Sequence[DeviceSpec], memory: str) -> bool:
    """Whether the provider of a memory keeps free buffers."""
    return memory in _caches(specs)


def _own_bytes(graph: Graph, cache: BufferCache, is_fed: bool) -> int:
    sizes = [weight.size_bytes for weight in graph.weights]
    packed = {weight for op in graph.ops if op.op_type in cache.packed_ops for weight in op.weights}
    twice = max((cache.weight_bytes(sizes[weight]) for weight in packed), default=0)
    fed = [graph.tensors[tensor].size_bytes for tensor in graph.model_inputs] if is_fed else []
    return sum(map(cache.weight_bytes, sizes)) - sum(sizes) + twice + sum(map(cache.rounded, fed)) - sum(fed)


def _caches(specs: Sequence[DeviceSpec]) -> dict[str, BufferCache]:
    """How buffers are taken, by memory."""
    return {spec.memory: cache for spec in specs if (cache := cache_of(spec)) is not None}


def cut_of(platform: Platform, problem: Problem, plan: Plan) -> Cut:
    """The plan as sessions and copies, each memory's budget kept where that is possible."""
    tensors = [platform.graph.tensors[tensor] for tensor in device_tensor_ids(platform.graph, problem)]
    sizes = [size_bytes(TensorType(tensor.dtype, tensor.shape)) for tensor in tensors]
    caches = _caches(platform.specs)
    of_memory = {m: caches[memory.name] for m, memory in enumerate(problem.memories) if memory.name in caches}
    return cut_plan(problem, plan, platform.opaque, input_ops(platform.graph, problem), sizes, of_memory)
