"""Models that say of sizes only what an interface says, and the way back to sizes that are written at the ports.

What the runtime knows of sizes decides what it fuses: with all of them bound it folds shapes that are computed, learns
a rank from them, and makes one Gemm of a MatMul and an Add, whose last bits are others.
"""

import onnx_ir as ir

from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.interface import Interface


def with_only_these_sizes(model: ir.Model, ports: Interface) -> ir.Model:
    """A copy whose inputs and outputs have the shapes of `ports`; inside, no value but a weight has a shape."""
    copy = with_sizes_at_ports(model, ports)
    ends = set(copy.graph.outputs)
    for value in (value for node in copy.graph for value in node.outputs if value not in ends):
        value.shape = None
    return copy


def with_sizes_at_ports(model: ir.Model, ports: Interface) -> ir.Model:
    """A copy whose inputs and outputs have the shapes of `ports`, by name."""
    copy = copy_of(model)
    shapes = {port.name: port.shape for port in (*ports.inputs, *ports.outputs)}
    for value in (*copy.graph.inputs, *copy.graph.outputs):
        if value.name in shapes:
            shape = shapes[value.name]
            value.shape = None if shape is None else shape.copy()
    return copy
