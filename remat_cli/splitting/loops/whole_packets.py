"""Tiles of ops that compute elements in packets, made longer so that all of their elements are in one.

The runtime computes what is left over at the end of a buffer, or of a thread's share of it, in another way. A tile is
followed by zeros up to a length of which nothing is left over, and cut off again: it then has the bits of the whole
wherever that has all elements in packets.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.ort_rules.shares import lengths_in_packets
from remat_cli.splitting.loops.loop_values import SizeValues
from remat_cli.splitting.rules.pointwise import SHARED_CYCLES
from remat_cli.splitting.tiles.op_view import OpView


def in_whole_packets(
    numbers: SizeValues, nodes: list[ir.Node], node: ir.Node, spec: OpView, tiles: ir.Value | None = None
) -> ir.Value:
    """Append a node that follows what it reads by zeros, and what cuts these off again; gives the node's result.

    A single one of the `tiles` is the whole, and stays as long as that is. None: there are several.
    """
    label, made = node.name or "", node.outputs[0]
    read = present(node.inputs[0], f"what '{label}' reads")
    multiple, least = lengths_in_packets(SHARED_CYCLES.get(spec.node.op_type), spec.own_threads)
    kind = present(read.type, f"the type of '{read.name}'")
    flat = numbers.op(nodes, f"{label}/flat", "Reshape", [read, numbers.constant([-1])])
    length = numbers.op(nodes, f"{label}/length", "Shape", [flat])
    value = numbers.op(nodes, f"{label}/more", "Add", [length, numbers.constant([multiple - 1])])
    for op_type in ("Div", "Mul"):
        value = numbers.op(nodes, f"{label}/{op_type}", op_type, [value, numbers.constant([multiple])])
    both = numbers.op(nodes, f"{label}/both", "Concat", [value, numbers.constant([least])], ir.AttrInt64("axis", 0))
    value = numbers.op(nodes, f"{label}/most", "ReduceMax", [both])
    count = numbers.op(nodes, f"{label}/count", "Sub", [value, length])
    if tiles is not None:
        further = numbers.op(nodes, f"{label}/further", "Sub", [tiles, numbers.constant([1])])
        several = numbers.op(nodes, f"{label}/several", "Sign", [further])
        count = numbers.op(nodes, f"{label}/count_of_several", "Mul", [count, several])
    filling = ir.AttrTensor("value", ir.tensor(np.zeros(1, kind.dtype.numpy())))
    zeros = numbers.op(nodes, f"{label}/zeros", "ConstantOfShape", [count], filling)
    longer = numbers.op(nodes, f"{label}/longer", "Concat", [flat, zeros], ir.AttrInt64("axis", 0))
    node.replace_input_with(0, longer)
    nodes.append(node)
    bounds = [numbers.constant([0]), length, numbers.constant([0])]
    cut = numbers.op(nodes, f"{label}/cut", "Slice", [made, *bounds])
    shape = numbers.op(nodes, f"{label}/shape", "Shape", [read])
    result = numbers.op(nodes, f"{label}/made", "Reshape", [cut, shape])
    for each in (flat, zeros, longer, cut, result):
        each.type = kind
    result.name, made.name = made.name, f"{label}/made_longer"
    result.shape, made.shape = made.shape, ir.Shape([f"{label}/longer"])
    longer.shape = made.shape
    return result
