"""What a model takes and gives: names, types and shapes, symbolic dimensions included."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.core.interface import InputSpec
from remat_cli.onnx_io.element_types import runtime_name


@dataclass(frozen=True)
class Port:
    """One input or output as the model declares it."""

    name: str
    type: ir.TypeProtocol | None
    shape: ir.Shape | None


@dataclass(frozen=True)
class Interface:
    """Inputs that the caller must feed, and outputs, in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def interface_of(model: ir.Model) -> Interface:
    """The declared interface; inputs that have an initialiser are left out."""
    return Interface(
        tuple(_port(value) for value in fed_inputs(model.graph)), tuple(_port(value) for value in model.graph.outputs)
    )


def fed_inputs(graph: ir.Graph) -> list[ir.Value]:
    """Inputs without an initialiser, which the caller must feed."""
    return [value for value in graph.inputs if value.name not in graph.initializers]


def inputs_of(model: ir.Model) -> tuple[InputSpec, ...]:
    """What to feed to a model whose dimensions are bound.

    Raises:
        ModelError: an input is not a tensor, or a dimension is not bound.
    """
    return tuple(input_spec(value) for value in fed_inputs(model.graph))


def outputs_of(model: ir.Model) -> tuple[str, ...]:
    """Names of the outputs, in order."""
    return tuple(value.name or "" for value in model.graph.outputs)


def is_bound(value: ir.Value) -> bool:
    """Whether the shape of a value is made of numbers only."""
    return value.shape is not None and all(isinstance(dim, int) for dim in value.shape)


def input_spec(value: ir.Value) -> InputSpec:
    """What to feed to one input.

    Raises:
        ModelError: it is not a tensor, or a dimension is not bound.
    """
    if not isinstance(value.type, ir.TensorType):
        raise ModelError(f"input '{value.name}' is not a tensor: only tensors can be fed")
    if value.shape is None or not is_bound(value):
        raise ModelError(f"input '{value.name}' has unbound dimensions: bind them with --dim or --input-shape")
    return InputSpec(value.name or "", runtime_name(value.dtype), value.shape.numpy())


def _port(value: ir.Value) -> Port:
    shape = None if value.shape is None else value.shape.copy()
    return Port(value.name or "", value.type, shape)
