"""Gates and declared shapes together: the order of the plan, and every buffer freed when its last reader is done."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from remat_cli.core.graph import Graph, TensorType
from remat_cli.core.problem import make_problem, tensor_ids
from remat_cli.core.profile import OpCost, Profile, Provenance
from remat_cli.core.simulate import baseline
from remat_cli.onnx_io.assemble import Parts, assemble, declare, element_types
from remat_cli.onnx_io.element_types import size_bytes
from remat_cli.onnx_io.free_shapes import Canvas, Dims, free_shapes, known_shapes
from remat_cli.onnx_io.gates import Scene, Woven, add_gates
from remat_cli.onnx_io.interface import Port, fed_inputs
from remat_cli.onnx_io.to_graph import INPUTS, to_graph

LEAST_BYTES = 1024  # a gate is not worth it to free smaller buffers in time
MOST_ROUNDS = 8  # barriers move towards the source of a known shape, one op per round


@dataclass(frozen=True)
class Released:
    """A model in which order and frees are settled; `observed` are the types of all nodes' results."""

    model: ir.Model
    woven: Woven
    observed: dict[str, tuple[TensorType, ...]]


def release_buffers(parts: Parts, scene: Scene) -> Released:
    """Write gates and shapes until no large buffer has a shape that the runtime knows beforehand.

    Values whose shape cannot be hidden after some rounds keep it: order and results do not depend on this.
    """
    scene = replace(scene, barriers=_known_ports(parts, scene))
    for _ in range(MOST_ROUNDS):
        released, shapes = _settle(parts, scene)
        sizes = {name: size_bytes(kind) for name, kind in scene.types.items()}
        targets = known_shapes(released.woven.drafts, shapes, LEAST_BYTES, sizes)
        more = frozenset(name for name in targets if name in scene.types and name not in scene.opaque)
        if more <= scene.barriers:
            break
        scene = replace(scene, barriers=scene.barriers | more)
    return released


def _settle(parts: Parts, scene: Scene) -> tuple[Released, dict[str, Dims]]:
    woven = add_gates(scene)
    types = {**scene.types, **woven.types}
    zeros = {name: ir.tensor(np.zeros(length, np.int64)) for name, length in woven.zeros.items()}
    parts = replace(parts, weights={**parts.weights, **zeros}, types={**parts.types, **element_types(woven.types)})
    model = assemble(parts, woven.drafts)
    given = tuple(types[value.name or ""] for value in fed_inputs(model.graph))
    observed = {INPUTS: given} | {
        draft.name: tuple(types[name] for name in draft.makes if name) for draft in woven.drafts
    }
    outputs = {port.name for port in parts.interface.outputs}
    groups = _groups(to_graph(model, observed), outputs | set(scene.opaque))
    canvas = Canvas(woven.drafts, types, _fixed_shapes(parts), parts.weights, groups, dict(model.graph.opset_imports))
    shapes = free_shapes(canvas)
    declare(model, shapes)
    return Released(model, woven, observed), shapes


def _groups(graph: Graph, left_out: set[str]) -> dict[str, int]:
    """Number of the shape of each value that an op makes, as the judge sees the finished model.

    The runtime works in place only where it knows both shapes to be equal, so these share a number. Views need not:
    what is behind a barrier has a shape of its own, and its readers cannot know more than they are told.
    """
    ids = tensor_ids(graph)
    storage = {ids[i.tensor]: i.storage for i in baseline(make_problem(graph, _no_cost(graph))).instances}
    numbers: dict[int, int] = {}
    for op in graph.ops:
        for made in op.outputs:
            before = [old for old, new in op.in_place if new == made and storage.get(old) == storage[made]]
            numbers[made] = numbers[before[0]] if before else len(numbers)
    named = ((graph.tensors[tensor].name, number) for tensor, number in numbers.items())
    return {name: number for name, number in named if name not in left_out}


def _no_cost(graph: Graph) -> Profile:
    """A profile for questions of storage only."""
    nowhere = Provenance("", "", "", "", "", 0, "", 0, 0, measured=False)
    return Profile("any", "", nowhere, tuple(OpCost(op.name, 0) for op in graph.ops), 0, 0)


def _fixed_shapes(parts: Parts) -> dict[str, Dims | None]:
    """Declared shapes of inputs and outputs."""
    return {port.name: _dims(port) for port in (*parts.interface.inputs, *parts.interface.outputs)}


def _dims(port: Port) -> tuple[int | str | None, ...] | None:
    if port.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in port.shape)


def _known_ports(parts: Parts, scene: Scene) -> frozenset[str]:
    """Inputs and outputs whose shape the interface gives away, and that some op reads."""
    read = {name for step in scene.steps for name in step.all_reads}
    ports = (*parts.interface.inputs, *parts.interface.outputs)
    return frozenset(port.name for port in ports if port.name in read and (dims := _dims(port)) and _is_known(dims))


def _is_known(dims: tuple[int | str | None, ...]) -> bool:
    return all(isinstance(dim, int) for dim in dims)
