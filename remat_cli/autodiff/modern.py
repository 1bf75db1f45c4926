"""A forward model in the form that gradient rules expect: a recent opset, no functions, weights set aside."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from remat_cli.autodiff.tape import OPSET
from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.normalise import inputs_become_weights, lift_constants, name_nodes

KEPT_ELEMENTS = 1024  # smaller constants stay while the opset is raised, since conversions read shapes, axes, scales


def modern(model: ir.Model) -> ir.Model:
    """A copy of a model under at least opset `OPSET`, its functions inlined; weights are shared, not copied.

    Raises:
        ModelError: an op has no form in that opset.
    """
    copy = model.clone()
    if copy.functions:
        copy = InlinePass()(copy).model
    version = copy.graph.opset_imports.get("", copy.graph.opset_imports.get("ai.onnx", 0))
    if version < OPSET:
        copy = _raised(copy, version)
    name_nodes(copy.graph)
    lift_constants(copy.graph)
    return copy


def _raised(model: ir.Model, version: int) -> ir.Model:
    large = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.size > KEPT_ELEMENTS
    }
    _read_in([value for name, value in model.graph.initializers.items() if name not in large])
    for name in large:
        value = model.graph.initializers.pop(name)
        if value not in model.graph.inputs:
            model.graph.inputs.append(value)
    try:
        raised = ir.from_proto(onnx.version_converter.convert_version(ir.to_proto(model), OPSET))
    except RuntimeError as error:
        line = str(error).strip().splitlines()[0]
        raise ModelError(
            f"the model's opset {version} cannot be raised to {OPSET}, which gradients need: {line}"
        ) from None
    inputs_become_weights(raised.graph, large)
    return raised


def _read_in(values: Iterable[ir.Value]) -> None:
    """Bring elements from files of their own into memory, since the converter cannot know where those lie."""
    for value in values:
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.tensor(value.const_value.numpy().copy(), name=value.name)
