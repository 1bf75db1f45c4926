"""A training step as two models: one that gives gradients, to be run for each micro-batch, and one that updates."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.base.present import present
from remat_cli.onnx_io.read.load import STATE_FILE_KEY, STATE_KEY, SourceModel, state_file
from remat_cli.onnx_io.read.phases import PHASE_KEY
from remat_cli.pipelines.plan.line import StepLinks, UpdateGroup

UPDATE = "update"


@dataclass(frozen=True)
class StepPieces:
    """What a training step consists of.

    Attributes:
        gradients: the model of forward and backward; gradients are outputs of it.
        updates: the step as it was, of which slices update states.
        links: which outputs become which inputs.
        next_of: by state, the output of the step that it becomes.
        settings: inputs that only updates read and that are no state, such as a learning rate.
        first: the file with the first values of all states; none: the caller gives them.
    """

    gradients: onnx.ModelProto
    updates: onnx.ModelProto
    links: StepLinks
    next_of: Mapping[str, str]
    settings: tuple[str, ...]
    first: Path | None


def is_step(model: ir.Model) -> bool:
    """Whether a model is a training step with updates: a `remat train` of it has said what becomes what."""
    return bool(state_of(model))


def state_of(model: ir.Model) -> dict[str, str]:
    """By output, the input that it becomes in the next step.

    Raises:
        ModelError: what the model says of it cannot be read.
    """
    text = model.metadata_props.get(STATE_KEY, "{}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ModelError(f"the model's metadata '{STATE_KEY}' is no JSON object of names: write the step anew")
    return found


def split_step(source: SourceModel) -> StepPieces:
    """Part a training step where gradients meet updates.

    Raises:
        ModelError: an update feeds the forward or backward pass.
    """
    state = state_of(source.ir)
    # A model with all its constants inside: its pieces go to other folders than its data.
    proto: onnx.ModelProto = ir.to_proto(source.ir)
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            held = present(source.ir.graph.initializers[tensor.name].const_value, f"weight '{tensor.name}'")
            tensor.raw_data = held.tobytes()
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    updating = [node for node in proto.graph.node if _phase(node) == UPDATE]
    others = [node for node in proto.graph.node if _phase(node) != UPDATE]
    new = {name for node in updating for name in node.output}
    for node in others:
        if late := [name for name in node.input if name in new]:
            raise ModelError(f"op {node.name} reads '{late[0]}', which an update makes: this step cannot be cut")
    made = {name for node in others for name in node.output}
    gradients = tuple(dict.fromkeys(name for node in updating for name in node.input if name in made))
    links, shared = _links(state, updating, frozenset(gradients), made)
    inputs = {value.name for value in proto.graph.input}
    read = {name for node in updating for name in node.input}
    settings = tuple(sorted((read & inputs) - set(state.values())))
    return StepPieces(
        gradients=_gradient_model(proto, others, gradients, links),
        updates=proto,
        links=StepLinks(links, shared, {out: to for out, to in state.items() if out in made}),
        next_of={to: out for out, to in state.items()},
        settings=settings,
        first=state_file(source),
    )


def _phase(node: onnx.NodeProto) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == PHASE_KEY), "")


def _links(
    state: Mapping[str, str], updating: list[onnx.NodeProto], gradients: frozenset[str], made: set[str]
) -> tuple[tuple[UpdateGroup, ...], tuple[str, ...]]:
    """States that depend on a gradient in common are updated together; those on none are shared."""
    makers = {name: node for node in updating for name in node.output}
    groups: list[tuple[set[str], set[str]]] = []
    shared = []
    for output, name in state.items():
        if output in made:
            continue
        needed = set(gradients & set(reached(makers, [output])))
        if not needed:
            shared.append(name)
            continue
        joined = [group for group in groups if group[1] & needed]
        groups = [group for group in groups if not group[1] & needed]
        groups.append(({name, *(s for g in joined for s in g[0])}, needed.union(*(g[1] for g in joined))))
    return tuple(UpdateGroup(tuple(sorted(s)), tuple(sorted(g))) for s, g in groups), tuple(shared)


def reached(makers: Mapping[str, onnx.NodeProto], ends: Iterable[str]) -> dict[str, None]:
    """All that these values are made from, themselves included, by the nodes that make them."""
    found: dict[str, None] = {}
    waiting = list(ends)
    while waiting:
        name = waiting.pop()
        if name and name not in found:
            found[name] = None
            waiting += makers[name].input if name in makers else ()
    return found


def _gradient_model(
    proto: onnx.ModelProto, nodes: list[onnx.NodeProto], gradients: tuple[str, ...], groups: tuple[UpdateGroup, ...]
) -> onnx.ModelProto:
    """Forward and backward with gradients as outputs; marks of the step are left out, but phases stay."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    made = {name for node in nodes for name in node.output}
    kinds = {value.name: value for value in (*proto.graph.value_info, *proto.graph.output)}
    outputs = [value for value in proto.graph.output if value.name in made]
    outputs += [kinds[name] for name in gradients if name not in {value.name for value in outputs}]
    _replace(model.graph.output, outputs)
    read = {name for node in nodes for name in node.input} | {value.name for value in outputs}
    _replace(model.graph.input, [value for value in proto.graph.input if value.name in read])
    _replace(model.graph.initializer, [each for each in proto.graph.initializer if each.name in read])
    _replace(model.graph.value_info, [each for each in proto.graph.value_info if each.name in made - set(gradients)])
    kept = [entry for entry in proto.metadata_props if entry.key not in (STATE_KEY, STATE_FILE_KEY)]
    _replace(model.metadata_props, kept)
    return model


def _replace(field: object, values: list[object]) -> None:
    """Replace the content of a repeated field."""
    copies = [type(value).FromString(value.SerializeToString()) for value in values]  # type: ignore[attr-defined]
    del field[:]  # type: ignore[attr-defined]
    field.extend(copies)  # type: ignore[attr-defined]


def update_model(pieces: StepPieces, states: Iterable[str]) -> onnx.ModelProto:
    """The slice of a step that makes these states anew from gradients, old states and settings."""
    proto = pieces.updates
    gradients = {name for group in pieces.links.groups for name in group.gradients}
    makers = {name: node for node in proto.graph.node for name in node.output if name not in gradients}
    outputs = [pieces.next_of[state] for state in states]
    needed = reached(makers, outputs)
    nodes = [node for node in proto.graph.node if any(name in needed and name in makers for name in node.output)]
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    kinds = {value.name: value for value in (*proto.graph.value_info, *proto.graph.output, *proto.graph.input)}
    inputs = [name for name in needed if name in gradients or name in {value.name for value in proto.graph.input}]
    _replace(model.graph.node, list(nodes))
    _replace(model.graph.output, [kinds[name] for name in outputs])
    _replace(model.graph.input, [kinds[name] for name in sorted(inputs)])
    _replace(model.graph.initializer, [each for each in proto.graph.initializer if each.name in needed])
    _replace(model.graph.value_info, [])
    _replace(model.metadata_props, [])
    return model
