"""What a solver sees, integers only, nothing of ONNX: made for one device or for several that are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph, Phase, check_ids
from remat_cli.core.values.profile import HOST_MEMORY, LinkCost, OpCost, Profile

# What solvers add up in 64 bits: bytes once, times of many recomputes.
MOST_BYTES = 2**62
MOST_NS = 2**60
NO_BUDGET = MOST_BYTES  # in bytes: more memory than there could be


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value made by an op.

    `size_bytes` is 0 for a view of a model input, whose storage is fixed. `view_of` is the tensor whose storage a
    result of this op always shares (an input of its producer). `kept` tensors live to the end of the run.
    """

    size_bytes: int
    producer: int
    view_of: int | None = None
    kept: bool = False


class OpSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One op: what it reads and makes, and what it costs on each device.

    `time_ns[d]` is None where device d cannot run it. `workspace_bytes[d]` is held during its step only.
    `in_place` lists (input, output) pairs that share a buffer when this op is the input's last reader. `energy_nj[d]`
    is what a run takes on device d, in nanojoules (empty: not known).
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    time_ns: tuple[int | None, ...]
    workspace_bytes: tuple[int, ...]
    repeatable: bool = True
    in_place: tuple[tuple[int, int], ...] = ()
    weights: tuple[int, ...] = ()
    phase: Phase = "none"
    energy_nj: tuple[int, ...] = ()


class Memory(msgspec.Struct, frozen=True):
    """A memory with a budget in bytes (total: fixed part included).

    `fixed_bytes` is held all through a run whatever is scheduled. Where there are several memories, weights are not in
    it: a memory holds the weights of the ops that are computed there.
    """

    name: str
    budget_bytes: int
    fixed_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """What activations and workspace may take."""
        return self.budget_bytes - self.fixed_bytes


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """A processor that uses one memory (an index into `Problem.memories`).

    `call_ns` is what it costs to hand over to it: a compute takes so much longer when the one before it ran elsewhere.
    """

    name: str
    memory: int
    call_ns: int = 0


class Problem(msgspec.Struct, frozen=True):
    """A scheduling problem; ops are in baseline order, which is topological.

    `copy_ns[s][d][x]` is the time to copy tensor x from device s to device d, None where impossible; an empty tuple
    when there is one device. `copy_energy_nj` is the same for energy, empty where not known. With `overlap` copies run
    beside computes, each link one at a time, and the time of a schedule is its makespan.

    Raises:
        ModelError: ids, sizes or table shapes are wrong.
    """

    ops: tuple[OpSpec, ...]
    tensors: tuple[TensorSpec, ...]
    memories: tuple[Memory, ...]
    devices: tuple[Device, ...]
    copy_ns: tuple[tuple[tuple[int | None, ...], ...], ...] = ()
    weight_bytes: tuple[int, ...] = ()
    copy_energy_nj: tuple[tuple[tuple[int, ...], ...], ...] = ()
    overlap: bool = False

    def __post_init__(self) -> None:
        """Check ids, table shapes and signs once; later stages trust them."""
        check_ids([(op.inputs, op.outputs) for op in self.ops], [t.producer for t in self.tensors])
        for index, op in enumerate(self.ops):
            self._check_op(index, op)
        for index, tensor in enumerate(self.tensors):
            if tensor.size_bytes < 0:
                raise ModelError(f"tensor {index}: negative size {tensor.size_bytes}")
            if tensor.view_of is not None and tensor.view_of not in self.ops[tensor.producer].inputs:
                raise ModelError(f"tensor {index}: is a view of {tensor.view_of}, which its op does not read")
        if any(not 0 <= device.memory < len(self.memories) for device in self.devices):
            raise ModelError("a device names a memory that does not exist")
        # Figures that no machine has would overflow where solvers add them up.
        all_bytes = sum(tensor.size_bytes for tensor in self.tensors) + sum(sum(op.workspace_bytes) for op in self.ops)
        time_ns = sum(time for op in self.ops for time in op.time_ns if time is not None)
        if all_bytes >= MOST_BYTES:
            raise ModelError(f"the sizes of all tensors and workspaces add up to {all_bytes}: 2^62 is too much to plan")
        if time_ns >= MOST_NS:
            raise ModelError(f"the times of all ops add up to {time_ns}: 2^60 is too much to plan; use a larger unit")
        self._check_copies(self.copy_ns, "copy_ns")
        self._check_copies(self.copy_energy_nj, "copy_energy_nj")

    def _check_op(self, index: int, op: OpSpec) -> None:
        if len(op.time_ns) != len(self.devices) or len(op.workspace_bytes) != len(self.devices):
            raise ModelError(f"op {index}: needs one time and one workspace per device")
        if all(time is None for time in op.time_ns):
            raise ModelError(f"op {index}: no device can run it")
        if op.energy_nj and len(op.energy_nj) != len(self.devices):
            raise ModelError(f"op {index}: needs one energy per device, or none")
        if any(time is not None and time < 0 for time in op.time_ns) or min((*op.workspace_bytes, *op.energy_nj)) < 0:
            raise ModelError(f"op {index}: negative time, workspace or energy")
        if any(i not in op.inputs or o not in op.outputs for i, o in op.in_place):
            raise ModelError(f"op {index}: in-place pair does not join one of its inputs to one of its outputs")

    def _check_copies(self, table: tuple[tuple[tuple[int | None, ...], ...], ...], name: str) -> None:
        """An entry per device, device and tensor; nothing where there is nothing to say."""
        count = len(self.devices)
        if not table and (count == 1 or name != "copy_ns" or len(self.memories) == 1):
            return
        if len(table) != count or any(len(row) != count for row in table):
            raise ModelError(f"{name}: needs a row for each of {count} devices, and an entry for each in it")
        if any(len(entry) != len(self.tensors) for row in table for entry in row):
            raise ModelError(f"{name}: needs a figure for each of {len(self.tensors)} tensors")
        if any(figure is not None and figure < 0 for row in table for entry in row for figure in entry):
            raise ModelError(f"{name}: negative figure")

    @property
    def baseline_time_ns(self) -> int:
        """Every op once, each on its fastest device."""
        return sum(min(t for t in op.time_ns if t is not None) for op in self.ops)

    def with_budget(self, budget_bytes: int, memory: int = 0) -> Problem:
        """The same problem under another budget (total bytes) of one memory."""
        changed = msgspec.structs.replace(self.memories[memory], budget_bytes=budget_bytes)
        memories = (*self.memories[:memory], changed, *self.memories[memory + 1 :])
        return msgspec.structs.replace(self, memories=memories)


def make_problem(graph: Graph, profile: Profile, budget_bytes: int = NO_BUDGET) -> Problem:
    """Join what the model computes with what it costs, for one device.

    Model inputs are fixed (the caller owns them), so they vanish here: ops read only tensors that ops make.
    `budget_bytes` bounds the total, fixed part included.

    Raises:
        ModelError: the profile has no cost for an op of the graph.
    """
    new_id = {old: new for new, old in enumerate(i for i, t in enumerate(graph.tensors) if t.producer is not None)}
    costs = {cost.name: cost for cost in profile.ops}
    missing = [op.name for op in graph.ops if op.name not in costs]
    if missing:
        raise ModelError(f"the profile has no cost for op '{missing[0]}' ({len(missing)} missing): profile again")
    ops = tuple(
        OpSpec(
            inputs=tuple(new_id[i] for i in op.inputs if i in new_id),
            outputs=tuple(new_id[o] for o in op.outputs),
            time_ns=(costs[op.name].time_ns,),
            workspace_bytes=(costs[op.name].workspace_bytes,),
            repeatable=op.repeatable,
            in_place=tuple((new_id[i], new_id[o]) for i, o in op.in_place if not _is_callers(graph, i)),
            weights=op.weights,
            phase=op.phase,
        )
        for op in graph.ops
    )
    tensors = tuple(_tensor_spec(graph, old, new_id) for old in new_id)
    fixed = profile.fixed_bytes
    return Problem(
        ops=ops,
        tensors=tensors,
        memories=(Memory(profile.device, budget_bytes, fixed),),
        devices=(Device(profile.device, 0),),
        weight_bytes=tuple(w.size_bytes for w in graph.weights),
    )


def tensor_ids(graph: Graph) -> tuple[int, ...]:
    """Graph tensor id of each problem tensor, in problem order (model inputs left out)."""
    return tuple(i for i, t in enumerate(graph.tensors) if t.producer is not None)


def own_bytes(graph: Graph) -> tuple[int, ...]:
    """Bytes of each tensor of `graph`, none of what lies in a model input's storage."""
    new_id = {old: new for new, old in enumerate(tensor_ids(graph))}
    numbers = range(len(graph.tensors))
    return tuple(_tensor_spec(graph, each, new_id).size_bytes if each in new_id else 0 for each in numbers)


def _is_callers(graph: Graph, tensor: int) -> bool:
    """Whether a value lives in a model input's storage, which the caller owns and no op overwrites."""
    spec = graph.tensors[tensor]
    while spec.view_of is not None and not spec.kept:
        spec = graph.tensors[spec.view_of]
    return spec.producer is None


def _tensor_spec(graph: Graph, old: int, new_id: dict[int, int]) -> TensorSpec:
    tensor = graph.tensors[old]
    assert tensor.producer is not None
    base = tensor.view_of
    if base is not None and base not in new_id:
        # A model output has a buffer of its own, even where its op only views an input.
        return TensorSpec(tensor.size_bytes if tensor.kept else 0, tensor.producer, None, tensor.kept)
    return TensorSpec(tensor.size_bytes, tensor.producer, new_id[base] if base is not None else None, tensor.kept)


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
    # One profile with every op in it, for what does not depend on a device.
    costless = tuple(OpCost(op.name, 0) for op in graph.ops)
    alone = make_problem(graph, msgspec.structs.replace(profiles[0], ops=costless, unsupported=()))
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
    return (*inputs, *tensor_ids(graph))


def _costs(graph: Graph, profile: Profile) -> dict[str, OpCost | None]:
    """The cost of each op on a device, None where it cannot run it."""
    costs: dict[str, OpCost | None] = {cost.name: cost for cost in profile.ops}
    costs |= {op.name: None for op in profile.unsupported}
    missing = [op.name for op in graph.ops if op.name not in costs]
    if missing:
        lacks = f"has no cost for op '{missing[0]}' ({len(missing)} missing)"
        raise ModelError(f"the profile of {profile.device} {lacks}: profile again")
    return costs


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
    specs = [TensorSpec(graph.tensors[tensor].size_bytes, i) for i, tensor in enumerate(inputs)]
    for old, spec in zip(tensor_ids(graph), tensors, strict=True):
        size_bytes, view_of = spec.size_bytes, None if spec.view_of is None else spec.view_of + count
        base = graph.tensors[old].view_of
        if base is not None and base in number:  # a view of a model input shares its storage, wherever that is
            size_bytes, view_of = graph.tensors[old].size_bytes, number[base]
        producer = spec.producer + count
        specs.append(msgspec.structs.replace(spec, producer=producer, view_of=view_of, size_bytes=size_bytes))
    return made + shifted, tuple(specs)


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
