"""Writes a cut plan as models: one per segment, values named by instance, weights in files that all of them share."""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import onnx_ir as ir

from remat_cli.base.errors import ModelError, RematError
from remat_cli.core.schedule.graph import Graph, Tensor, TensorType, size_bytes
from remat_cli.core.schedule.plan import Compute, Plan
from remat_cli.core.schedule.problem import Problem, device_tensor_ids, input_ops
from remat_cli.core.schedule.program import SegmentFile, StoredWeight, Value, WeightUse
from remat_cli.core.schedule.segments import Segment, kept_instances
from remat_cli.core.schedule.shared_session import origins
from remat_cli.onnx_io.read.interface import (
    DATA_TYPES,
    Interface,
    Port,
    dims_of,
    fed_inputs,
    runtime_name,
    weight_uses,
)
from remat_cli.onnx_io.read.normalise import names_in
from remat_cli.onnx_io.write.assemble import Draft, Parts, assemble, declare, element_types
from remat_cli.onnx_io.write.rewrite import drafts_of, instance_names
from remat_cli.onnx_io.write.save import ALIGNMENT, SMALL_BYTES

WEIGHTS_FILE = "weights.data"
UNSHARED = frozenset({"string", "complex64", "complex128", "int4", "uint4", "int2", "uint2", "float4e2m1"})
"""Element types whose weights stay in the model files."""


@dataclass(frozen=True)
class SegmentSource:
    """The optimised model, and the plan of it that is cut; `graph` must be that of `model`."""

    model: ir.Model
    graph: Graph
    problem: Problem
    plan: Plan


@dataclass(frozen=True)
class WrittenSegments:
    """Segments as files, in order, and what they work on, all by name.

    `instances` is the name of each instance of the plan, `values` those and what ops read of the model's inputs.
    """

    files: tuple[SegmentFile, ...]
    instances: tuple[str, ...]
    values: dict[str, Value]
    weights: dict[str, StoredWeight]


@dataclass(frozen=True)
class HostPart:
    """The ops of a shared session that run on the host, by name, and the weights that they read."""

    ops: tuple[str, ...]
    weights: dict[str, WeightUse]


def write_segments(source: SegmentSource, segments: Iterable[Segment], folder: Path) -> WrittenSegments:
    """Write a model for each segment into a folder of their own.

    Weights of at least 1 KiB go to files beside them, once, so that no model holds them: a file that has them already
    is linked or copied. Repeated ops are named like those of a rewritten model.

    Raises:
        ModelError: a segment reads what no earlier one makes.
        RematError: the plan repeats an op for nobody.
    """
    ids, first = _ids(source), input_ops(source.graph, source.problem)
    names = instance_names(source.graph, source.plan, ids, names_in(source.model))
    drafts = drafts_of(source.model, source.graph, source.plan, (ids, names), names_in(source.model), first)
    _refuse_waste(source)
    tensors, weights = _place_weights(source.model, folder)
    writer = _Writer(source, tuple(names), drafts, tensors, folder)
    files = tuple(writer.write(segment, number) for number, segment in enumerate(segments))
    return WrittenSegments(files, tuple(names), _values(source, names), weights)


def write_one_session(
    source: SegmentSource, segment: Segment, host: int, label: tuple[tuple[str, str], ...], folder: Path
) -> tuple[WrittenSegments, HostPart]:
    """Write one model with every op; also its part on device `host`, whose ops carry the `label`.

    Copies are not written, as the runtime makes them: what is made by one goes by the name of what it is a copy of.

    Raises:
        RematError: the plan repeats an op for nobody.
    """
    first, plan = input_ops(source.graph, source.problem), source.plan
    names = list(one_session_names(source))
    taken = names_in(source.model) | set(names)
    drafts = drafts_of(source.model, source.graph, plan, (_ids(source), names), taken, first)
    on_host = {n for n, step in enumerate(plan.schedule.steps) if isinstance(step, Compute) and step.device == host}
    drafts = {n: replace(draft, notes=label) if n in on_host else draft for n, draft in drafts.items()}
    _refuse_waste(source)
    tensors, weights = _place_weights(source.model, folder)
    computes = msgspec.structs.replace(segment, steps=tuple(step for step in segment.steps if step in drafts))
    file = _Writer(source, tuple(names), drafts, tensors, folder).write(computes, 0)
    mine = tuple(drafts[step].name for step in computes.steps if step in on_host)
    others, model = set(file.ops) - set(mine), ir.load(folder / file.file)
    file = msgspec.structs.replace(file, weights=_read_weights(model, set(mine)))
    written = WrittenSegments((file,), tuple(names), _values(source, names), weights)
    return written, HostPart(mine, _read_weights(model, others))


def one_session_names(source: SegmentSource) -> tuple[str, ...]:
    """The name of each instance of a plan in the model of its one session."""
    names = instance_names(source.graph, source.plan, _ids(source), names_in(source.model))
    found = origins(source.plan)
    for number in kept_instances(source.problem, source.plan):
        at = found[number]
        names[at], names[number] = names[number], names[at]
    return tuple(names[origin] for origin in found)


def _read_weights(model: ir.Model, left_out: set[str]) -> dict[str, WeightUse]:
    """Weights that some op reads which is not left out."""
    uses = zip(model.graph.initializers, weight_uses(model, left_out), strict=True)
    return {name: use for name, use in uses if use.readers}


def whole_segment(model: ir.Model, file: str, reads: tuple[str, ...], ops: tuple[str, ...]) -> SegmentFile:
    """A whole model as one segment; what it gives that is no input comes from its session, weights included."""
    makes = tuple(name for value in model.graph.outputs if (name := value.name or "") not in reads)
    return SegmentFile(file, reads, makes, ops, (), named_weight_uses(model))


def named_weight_uses(model: ir.Model) -> dict[str, WeightUse]:
    """Every weight of a model by name, with its readers."""
    return dict(zip(model.graph.initializers, weight_uses(model), strict=True))


def plainly_read_weights(model: ir.Model) -> dict[str, WeightUse]:
    """The weights that ops of the main graph read and nobody else: no subgraph, no caller."""
    reads = Counter(value.name for node in model.graph for value in node.inputs if value is not None)
    uses, outputs = named_weight_uses(model), {value.name for value in model.graph.outputs}
    return {name: use for name, use in uses.items() if 0 < reads[name] == len(use.readers) and name not in outputs}


@dataclass(frozen=True)
class _Writer:
    """Writes segments of one plan; `drafts` are by step."""

    source: SegmentSource
    names: tuple[str, ...]
    drafts: Mapping[int, Draft]
    weights: Mapping[str, ir.TensorProtocol]
    folder: Path

    def write(self, segment: Segment, number: int) -> SegmentFile:
        """Write one segment."""
        drafts = [self.drafts[step] for step in segment.steps]
        # What comes from outside: imports, and model inputs that need no copy.
        made = {name for draft in drafts for name in draft.makes}
        outer = dict.fromkeys(name for draft in drafts for name in draft.all_reads if name not in made)
        known = {self.names[instance] for instance in segment.imports}
        known |= {value.name or "" for value in fed_inputs(self.source.model.graph)}
        for name in outer:
            if name not in known and name not in self.weights:
                raise ModelError(f"op '{drafts[0].name}' and those after it read '{name}', which is not there: report")
        reads = tuple(name for name in outer if name in known)
        makes = tuple(self.names[instance] for instance in segment.exports)
        source = self.source
        ids = _ids(source)
        kinds = {name: source.graph.tensors[i] for name, i in zip(self.names, _tensors_of(source, ids), strict=True)}
        kinds |= {source.graph.tensors[i].name: source.graph.tensors[i] for i in source.graph.model_inputs}
        used = {*reads, *(name for draft in drafts for name in draft.makes if name)}
        types = {name: TensorType(kinds[name].dtype, kinds[name].shape) for name in used}
        old = self.source.model
        ports = Interface(tuple(_port(name, types) for name in reads), tuple(_port(name, types) for name in makes))
        frame = ir.Graph(
            [ir.Value(name=port.name, type=port.type, shape=port.shape) for port in ports.inputs],
            [],
            nodes=[],
            opset_imports=dict(old.graph.opset_imports),
            name=old.graph.name,
        )
        empty = ir.Model(frame, ir_version=old.ir_version, functions=tuple(old.functions.values()))
        model = assemble(Parts(empty, ports, self.weights, element_types(types)), drafts)
        declare(model, {name: kind.shape for name, kind in types.items()})
        file = f"segment_{number:04}.onnx"
        (self.folder / file).write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
        return SegmentFile(file, reads, makes, tuple(d.name for d in drafts), segment.steps, named_weight_uses(model))


def _ids(source: SegmentSource) -> tuple[int, ...]:
    return device_tensor_ids(source.graph, source.problem)


def _tensors_of(source: SegmentSource, ids: tuple[int, ...]) -> list[int]:
    """Graph tensor of each instance."""
    return [ids[instance.tensor] for instance in source.plan.instances]


def _values(source: SegmentSource, names: list[str]) -> dict[str, Value]:
    graph = source.graph
    values = {graph.tensors[i].name: _value(graph.tensors[i], 0) for i in graph.model_inputs}
    tensors = _tensors_of(source, _ids(source))
    for number, origin in enumerate(origins(source.plan)):
        if number == origin or names[number] != names[origin]:
            values[names[number]] = _value(graph.tensors[tensors[number]], source.plan.instances[number].memory)
    return values


def _value(tensor: Tensor, memory: int) -> Value:
    """A tensor in a buffer of its own, which views have too where they pass between sessions."""
    return Value(tensor.dtype, tensor.shape, size_bytes(TensorType(tensor.dtype, tensor.shape)), memory)


def _refuse_waste(source: SegmentSource) -> None:
    """What a repeated op makes must be needed each time: the runtime frees what nobody reads only at the end."""
    plan, tensors = source.plan, source.problem.tensors
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    needed = {number for reads in plan.reads for number in reads}
    needed |= {number for tensor, number in newest.items() if tensors[tensor].kept}
    runs = Counter(plan.schedule.op_ids())
    for number, step in enumerate(plan.schedule.steps):
        if isinstance(step, Compute) and runs[step.op] > 1 and needed.isdisjoint(plan.makes[number]):
            raise RematError(f"step {number} computes what nobody reads: the plan wastes a recompute")


def _port(name: str, types: Mapping[str, TensorType]) -> Port:
    kind = types[name]
    return Port(name, ir.TensorType(DATA_TYPES[kind.dtype]), ir.Shape(kind.shape))


def _place_weights(model: ir.Model, folder: Path) -> tuple[dict[str, ir.TensorProtocol], dict[str, StoredWeight]]:
    """All weights, the large ones in files of the folder; and where those are."""
    tensors = {name: v.const_value for name, v in model.graph.initializers.items() if v.const_value is not None}
    outputs = {value.name for value in model.graph.outputs}
    large = {
        name: tensor
        for name, tensor in tensors.items()
        if (tensor.nbytes >= SMALL_BYTES and runtime_name(tensor.dtype) not in UNSHARED) or name in outputs
    }
    stored: dict[str, StoredWeight] = {}
    placed: dict[str, ir.TensorProtocol] = {}
    linked: dict[str, str] = {}  # files that have weights already, and their names in the folder
    with (folder / WEIGHTS_FILE).open("wb") as file:
        for name, tensor in large.items():
            if isinstance(tensor, ir.ExternalTensor):
                old = str(Path(tensor.base_dir) / tensor.location)
                if old not in linked:
                    linked[old] = f"weights_{len(linked)}.data"
                    try:
                        os.link(old, folder / linked[old])
                    except OSError:  # another file system, or one without links
                        shutil.copyfile(old, folder / linked[old])
                location, offset = linked[old], tensor.offset or 0
            else:
                location, offset = WEIGHTS_FILE, file.tell()
                file.write(tensor.tobytes())
                file.write(bytes(-tensor.nbytes % ALIGNMENT))
            dims, size = dims_of(tensor), tensor.nbytes
            stored[name] = StoredWeight(location, offset, runtime_name(tensor.dtype), dims, size)
            placed[name] = ir.ExternalTensor(
                location, offset, size, tensor.dtype, shape=ir.Shape(dims), name=name, base_dir=folder
            )
    return {**tensors, **placed}, stored
