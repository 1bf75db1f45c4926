"""Which op reads which weight, and how: what decides the form in which the runtime keeps it."""

from __future__ import annotations

import onnx_ir as ir

from remat_cli.core.interface import Reader, WeightUse
from remat_cli.onnx_io.default_order import captured_values
from remat_cli.onnx_io.interface import runtime_name

CAPTURED = -1  # input number of a weight that a subgraph reads


def weight_uses(model: ir.Model) -> tuple[WeightUse, ...]:
    """Every initialiser of the main graph with the ops that read it; model outputs count as readers that pack nothing.

    Sizes are in bytes, as in the file.
    """
    readers: dict[str, list[Reader]] = {name: [] for name in model.graph.initializers}
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name in readers:
                readers[value.name].append(Reader(node.domain, node.op_type, index))
        for value in captured_values(node):
            if value.name in readers:
                readers[value.name].append(Reader(node.domain, node.op_type, CAPTURED))
    for value in model.graph.outputs:
        if value.name in readers:
            readers[value.name].append(Reader("", "", CAPTURED))
    return tuple(_use(value, tuple(readers[name])) for name, value in model.graph.initializers.items())


def _use(value: ir.Value, readers: tuple[Reader, ...]) -> WeightUse:
    tensor = value.const_value
    if tensor is None:
        return WeightUse("", (), 0, readers)
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    return WeightUse(runtime_name(tensor.dtype), shape, tensor.nbytes, readers)
