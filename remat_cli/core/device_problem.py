"""Join what a model computes with what it costs on each of several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.device import HOST_MEMORY
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Device, Memory, OpSpec, Problem, TensorSpec, make_problem
from remat_cli.core.profile import LinkCost, OpCost, Profile

NOTHING: Mapping[str, int] = MappingProxyType({})


def make_device_problem(
    graph: Graph,
    profiles: Sequence[Profile],
    links: Sequence[LinkCost],
    budgets: Mapping[str, int],
    overlap: bool = False,
    session_bytes: Mapping[str, int] = NOTHING,
) -> Problem:
    """The problem of running a model on several devices; `budgets` are total bytes by name of memory.

    Where all devices share one memory this is the problem of one device, with a time and a workspace for each. Where
    there are several memories, each model input that is read is made by an op of no time on the first device of the
    caller's memory (ops `graph.ops` come after these, `input_ops` says how many there are), since it must be copied
    to be read elsewhere. The caller holds it all through the run: a schedule only counts it while it is read, so that
    bounds hold, a cut plan counts it to the end. Weights lie where they are read.
    `session_bytes` is what sessions were seen to hold of weights in each memory beyond that, since each packs its own.

    Raises:
        ModelError: a device profile lacks an op of the graph, or no device can run it; a memory has no budget.
    """
    names = tuple(dict.fromkeys(profile.memory for profile in profiles))
    if missing := [name for name in names if name not in budgets]:
        raise ModelError(f"memory '{missing[0]}' has no budget: write one for each device")
    costs = [_costs(graph, profile) for profile in profiles]
    alone = make_problem(graph, _merged(graph, profiles))
    several = len(names) > 1
    ops = tuple(_op(graph, index, spec, costs, profiles) for index, spec in enumerate(alone.ops))
    tensors = alone.tensors
    if several:
        ops, tensors = _with_inputs(graph, ops, tensors, profiles)
    alone_bytes = {name: _fixed_bytes(name, graph, profiles) + session_bytes.get(name, 0) for name in names}
    memories = tuple(Memory(name, budgets[name], alone_bytes[name]) for name in names)
    devices = tuple(Device(profile.device, names.index(profile.memory), profile.call_ns) for profile in profiles)
    return Problem(
        ops=ops,
        tensors=tensors,
        memories=memories,
        devices=devices,
        copy_ns=_copy_table(tensors, devices, names, links) if several else (),
        weight_bytes=alone.weight_bytes,
        overlap=overlap,
    )


def input_ops(graph: Graph, problem: Problem) -> int:
    """How many ops of a problem stand for model inputs; op i of the graph is op `input_ops + i` of the problem."""
    return len(problem.ops) - len(graph.ops)


def device_tensor_ids(graph: Graph, problem: Problem) -> tuple[int, ...]:
    """Graph tensor id of each tensor of a problem made by `make_device_problem`."""
    inputs = _read_inputs(graph) if input_ops(graph, problem) else ()
    return (*inputs, *(i for i, tensor in enumerate(graph.tensors) if tensor.producer is not None))


def _costs(graph: Graph, profile: Profile) -> dict[str, OpCost | None]:
    """The cost of each op on a device, None where it cannot run it."""
    costs: dict[str, OpCost | None] = {cost.name: cost for cost in profile.ops}
    costs |= {op.name: None for op in profile.unsupported}
    missing = [op.name for op in graph.ops if op.name not in costs]
    if missing:
        lacks = f"has no cost for op '{missing[0]}' ({len(missing)} missing)"
        raise ModelError(f"the profile of {profile.device} {lacks}: profile again")
    return costs


def _merged(graph: Graph, profiles: Sequence[Profile]) -> Profile:
    """One profile with every op in it, for what does not depend on a device."""
    return msgspec.structs.replace(profiles[0], ops=tuple(OpCost(op.name, 0) for op in graph.ops), unsupported=())


def _op(
    graph: Graph, index: int, spec: OpSpec, costs: Sequence[Mapping[str, OpCost | None]], profiles: Sequence[Profile]
) -> OpSpec:
    name = graph.ops[index].name
    found = [cost[name] for cost in costs]
    if all(cost is None for cost in found):
        reason = next((op.reason for op in profiles[0].unsupported if op.name == name), "")
        raise ModelError(f"no device can run op '{name}' ({graph.ops[index].op_type}): {reason}; add --device cpu")
    powers = [profile.power_watts for profile in profiles]
    energy = tuple(
        round((cost.time_ns if cost else 0) * (power or 0)) for cost, power in zip(found, powers, strict=True)
    )
    return msgspec.structs.replace(
        spec,
        time_ns=tuple(cost.time_ns if cost else None for cost in found),
        workspace_bytes=tuple(cost.workspace_bytes if cost else 0 for cost in found),
        energy_nj=energy if any(power is not None for power in powers) else (),
    )


def _fixed_bytes(name: str, graph: Graph, profiles: Sequence[Profile]) -> int:
    """What a memory holds whatever is scheduled: inputs that nobody reads, and weights that can lie nowhere else."""
    mine = [profile for profile in profiles if profile.memory == name]
    if len(mine) == len(profiles):
        return max(profile.fixed_bytes for profile in mine)
    read = sum(graph.tensors[tensor].size_bytes for tensor in _read_inputs(graph))
    return graph.input_bytes - read if name == HOST_MEMORY else 0


def _read_inputs(graph: Graph) -> tuple[int, ...]:
    """Model inputs that some op reads."""
    read = {tensor for op in graph.ops for tensor in op.inputs}
    return tuple(tensor for tensor in graph.model_inputs if tensor in read)


def _with_inputs(
    graph: Graph, ops: tuple[OpSpec, ...], tensors: tuple[TensorSpec, ...], profiles: Sequence[Profile]
) -> tuple[tuple[OpSpec, ...], tuple[TensorSpec, ...]]:
    """The problem with an op and a tensor in front for each model input that is read."""
    inputs = _read_inputs(graph)
    count = len(inputs)
    host = [0 if profile.memory == HOST_MEMORY else None for profile in profiles]
    if all(time is None for time in host):
        raise ModelError("no device uses the memory of the caller, where model inputs are: add --device cpu")
    made = tuple(
        OpSpec((), (i,), tuple(host), (0,) * len(profiles), repeatable=False, energy_nj=(0,) * len(ops[0].energy_nj))
        for i in range(count)
    )
    number = {tensor: i for i, tensor in enumerate(inputs)}
    shifted = tuple(
        msgspec.structs.replace(
            spec,
            inputs=(*(number[t] for t in op.inputs if t in number), *(t + count for t in spec.inputs)),
            outputs=tuple(t + count for t in spec.outputs),
            in_place=tuple((i + count, o + count) for i, o in spec.in_place),
        )
        for op, spec in zip(graph.ops, ops, strict=True)
    )
    own = tuple(TensorSpec(graph.tensors[tensor].size_bytes, i) for i, tensor in enumerate(inputs))
    moved = tuple(_moved(graph, old, t, number) for old, t in zip(_made(graph), tensors, strict=True))
    return made + shifted, own + moved


def _made(graph: Graph) -> tuple[int, ...]:
    return tuple(i for i, tensor in enumerate(graph.tensors) if tensor.producer is not None)


def _moved(graph: Graph, old: int, tensor: TensorSpec, inputs: Mapping[int, int]) -> TensorSpec:
    """A tensor behind those of model inputs; a view of one shares its storage, wherever that is."""
    count, base = len(inputs), graph.tensors[old].view_of
    shifted = None if tensor.view_of is None else tensor.view_of + count
    size_bytes = tensor.size_bytes
    if base is not None and base in inputs:
        shifted, size_bytes = inputs[base], graph.tensors[old].size_bytes
    return msgspec.structs.replace(tensor, producer=tensor.producer + count, view_of=shifted, size_bytes=size_bytes)


def _copy_table(
    tensors: Sequence[TensorSpec], devices: Sequence[Device], names: Sequence[str], links: Sequence[LinkCost]
) -> tuple[tuple[tuple[int | None, ...], ...], ...]:
    """Copy times by source device, target device and tensor."""
    by_pair = {(link.source, link.target): link for link in links}
    nothing: tuple[int | None, ...] = (None,) * len(tensors)

    def row(source: Device, target: Device) -> tuple[int | None, ...]:
        link = by_pair.get((names[source.memory], names[target.memory]))
        return nothing if link is None else tuple(link.time_ns(tensor.size_bytes) for tensor in tensors)

    return tuple(tuple(row(source, target) for target in devices) for source in devices)
