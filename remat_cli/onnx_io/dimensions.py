"""Binding the symbolic dimensions of a model's inputs to numbers."""

from __future__ import annotations

import msgspec
import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.interface import fed_inputs


class DimBindings(msgspec.Struct, frozen=True):
    """What the user says of dimensions: `names` from --dim, `shapes` (per input) from --input-shape.

    `batch` takes the place of the first dimension of every input that has one, fixed or not.
    """

    names: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    batch: int | None = None


def bind_dimensions(graph: ir.Graph, dims: DimBindings) -> dict[str, int]:
    """Write numbers into the inputs' shapes, in place; returns the value of each named dimension.

    Raises:
        ModelError: a dimension stays unbound, a name or an input does not exist, or two values contradict.
    """
    inputs = {value.name or "": value for value in fed_inputs(graph)}
    if dims.batch is not None:
        _set_batch(inputs, dims.batch)
    _check_bindings(inputs, dims)
    bound = _named_values(inputs, dims)
    shapes = {name: _bound_shape(value, dims.shapes.get(name), bound) for name, value in inputs.items()}
    _refuse_unbound(inputs, shapes)
    for name, shape in shapes.items():
        inputs[name].shape = ir.Shape([int(str(dim)) for dim in shape or ()])
    return bound


def _set_batch(inputs: dict[str, ir.Value], batch: int) -> None:
    for value in inputs.values():
        if value.shape is not None and len(value.shape):
            value.shape = ir.Shape([batch, *list(value.shape)[1:]])


def _dims(value: ir.Value) -> list[int | str | None] | None:
    """Declared dimensions: a number, a name, or None for neither; negative numbers count as unnamed."""
    if value.shape is None:
        return None
    named = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return [None if isinstance(dim, int) and dim < 0 else dim or (0 if dim == 0 else None) for dim in named]


def _check_bindings(inputs: dict[str, ir.Value], dims: DimBindings) -> None:
    for value in inputs.values():
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(f"input '{value.name}' is not a tensor: sequences, maps and optional inputs do not work")
    for name, number in dims.names.items():
        if number < 1:
            raise ModelError(f"--dim {name}={number}: a dimension must be at least 1")
    for name, shape in dims.shapes.items():
        if name not in inputs:
            raise ModelError(f"--input-shape {name}: no such input; there are: {', '.join(inputs) or 'none'}")
        if any(number < 1 for number in shape):
            raise ModelError(f"--input-shape {name}:{_text(shape)}: a dimension must be at least 1")
        declared = _dims(inputs[name])
        if declared is not None and len(declared) != len(shape):
            raise ModelError(f"--input-shape {name}:{_text(shape)}: the model declares {len(declared)} dimensions")


def _named_values(inputs: dict[str, ir.Value], dims: DimBindings) -> dict[str, int]:
    """Value of each named dimension, from both options."""
    known = {dim for value in inputs.values() for dim in _dims(value) or () if isinstance(dim, str)}
    unknown = [name for name in dims.names if name not in known]
    if unknown:
        raise ModelError(f"--dim {unknown[0]}: no such dimension; there are: {', '.join(sorted(known)) or 'none'}")
    bound = dict(dims.names)
    for name, shape in dims.shapes.items():
        for dim, number in zip(_dims(inputs[name]) or (), shape, strict=False):
            if isinstance(dim, str) and bound.setdefault(dim, number) != number:
                raise ModelError(f"dimension '{dim}' cannot be both {bound[dim]} and {number}: see input '{name}'")
    return bound


def _bound_shape(
    value: ir.Value, given: tuple[int, ...] | None, bound: dict[str, int]
) -> list[int | str | None] | None:
    """Dimensions of an input with numbers where they are known; None when not even their count is."""
    declared = _dims(value)
    if given is not None:
        for dim, number in zip(declared or (), given, strict=False):
            if isinstance(dim, int) and dim != number:
                raise ModelError(f"--input-shape {value.name}:{_text(given)}: the model fixes a dimension at {dim}")
        return list(given)
    if declared is None:
        return None
    return [bound.get(dim, dim) if isinstance(dim, str) else dim for dim in declared]


def _refuse_unbound(inputs: dict[str, ir.Value], shapes: dict[str, list[int | str | None] | None]) -> None:
    named = dict.fromkeys(dim for shape in shapes.values() for dim in shape or () if isinstance(dim, str))
    unnamed = [name for name, shape in shapes.items() if shape is None or None in shape]
    missing = [f"--dim {name}=N" for name in named]
    missing += [f"--input-shape {name}:{_pattern(shapes[name])}" for name in unnamed]
    if missing:
        raise ModelError(f"the model has unbound dimensions: add {' '.join(missing)}")


def _pattern(shape: list[int | str | None] | None) -> str:
    """How to write a shape on the command line, with N where a number is missing."""
    return "N,..." if shape is None else ",".join(str(dim) if isinstance(dim, int) else "N" for dim in shape)


def _text(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))
