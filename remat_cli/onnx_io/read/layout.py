"""The CPU's blocked layout, in which the runtime's optimiser keeps convolutions: [N, C / block, H, W, block]."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from remat_cli.onnx_io.read.op_facts import NCHWC
from remat_cli.onnx_io.write.op_versions import all_nodes

CHANNELS = 24  # a multiple of 8, not of 16: how far the optimiser pads it tells the size of a block
PADDED_TO_BLOCK: Mapping[int, int] = {24: 8, 32: 16}


def uses_blocks(model: ir.Model) -> bool:
    """Whether any op of an optimised model works in the blocked layout, one in the body of another op too."""
    return any(node.domain == NCHWC for node in all_nodes(model))


def layout_probe() -> ir.Model:
    """A model of one convolution, to be optimised: its weights tell the size of a block (`block_of_probe`)."""
    weight = ir.tensor(np.zeros((CHANNELS, CHANNELS, 1, 1), np.float32), name="w")
    kind = ir.TensorType(ir.DataType.FLOAT)
    x, y = (ir.Value(name=name, type=kind, shape=ir.Shape([1, CHANNELS, 4, 4])) for name in "xy")
    w = ir.Value(name="w", type=kind, shape=ir.Shape([CHANNELS, CHANNELS, 1, 1]), const_value=weight)
    node = ir.Node("", "Conv", [x, w], outputs=[y], name="conv")
    graph = ir.Graph([x], [y], nodes=[node], initializers=[w], opset_imports={"": 13}, name="probe")
    return ir.Model(graph, ir_version=8)


def block_of_probe(model: ir.Model) -> int:
    """Channels per block, from the optimised probe; 1 where the optimiser left it as it was."""
    for node in model.graph:
        weight = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
        if node.domain == NCHWC and node.op_type == "Conv" and weight is not None:
            return PADDED_TO_BLOCK[int(weight.shape.numpy()[0])]
    return 1
