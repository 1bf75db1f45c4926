"""Puts tensors that were cut back into the runtime's layout in blocks, where ops would else be fused in another way.

Sums, normalisations and the like join the layout only where all that they read lies in it already. A cut takes a tensor
out of it. A MaxPool over windows of one element is a copy, and an op that the runtime always takes into the layout
where channels fill whole blocks. Others stay as they are.
"""

from collections.abc import Mapping

import onnx_ir as ir

from remat_cli.onnx_io.read.copies import copy_of
from remat_cli.onnx_io.read.layout_scene import in_turn, whole_names
from remat_cli.onnx_io.read.normalise import fresh_name, names_in
from remat_cli.ort_rules.layout import BLOCKS, GLOBAL_POOLS, MOVING, WholeLayout

BESIDE = frozenset({"Add", "Sum", "Mul", "BatchNormalization", "Concat", "Resize", "Upsample", *MOVING, *GLOBAL_POOLS})
"""Ops that join the layout only where all that they read lies in it."""
MARK = "remat.mark"


def marked(model: ir.Model, layout: WholeLayout) -> ir.Model:
    """A copy in which what such ops read lies in blocks wherever it does in the whole model."""
    new = copy_of(model)
    names, taken = whole_names(new), names_in(new)
    marks: dict[str, ir.Value] = {}
    for node in [*new.graph]:
        if node.op_type not in BESIDE or names[node.name or ""] not in layout.in_blocks:
            continue
        for position, value in enumerate(node.inputs):
            maker = None if value is None else value.producer()
            if value is None or maker is None:
                continue
            # Pools are taken into the layout only where channels fill blocks on all processors.
            channels = None if value.shape is None or value.shape.rank() < 2 else value.shape[1]
            if not isinstance(channels, int) or any(channels % block for block in BLOCKS):
                continue
            if _is_out(maker, node, names, layout):
                if value.name not in marks:
                    name = fresh_name(f"{value.name}/mark", taken)
                    made = ir.Value(name=name, type=value.type, shape=value.shape)
                    mark = ir.Node(
                        "",
                        "MaxPool",
                        [value],
                        [ir.AttrInt64s("kernel_shape", [1, 1])],
                        outputs=[made],
                        name=name,
                        metadata_props={MARK: "yes"},
                    )
                    new.graph.insert_after(maker, mark)
                    marks[value.name or ""] = made
                node.replace_input_with(position, marks[value.name or ""])
    return new


def with_sums_in_turn(model: ir.Model, layout: WholeLayout) -> ir.Model:
    """The model, of two convolutions that are added up the one first that takes in the sum in the whole model.

    In place: the other one moves behind it, in front of all that read it.
    """
    places = {node.name: place for place, node in enumerate(model.graph)}
    nodes = {node.name: node for node in model.graph}
    for first, other in in_turn(model, layout):
        readers = [use.node.name for use in nodes[other].outputs[0].uses()]
        if places[other] < places[first] and all(places[reader] > places[first] for reader in readers):
            model.graph.remove(nodes[other])
            model.graph.insert_after(nodes[first], nodes[other])
    return model


def _is_out(maker: ir.Node, reader: ir.Node, names: Mapping[str, str], layout: WholeLayout) -> bool:
    """Whether a value is out of the layout, or would take in a reader that another takes in in the whole model."""
    whole = names[maker.name or ""]
    if whole not in layout.names:
        return MARK not in maker.metadata_props
    if reader.op_type not in ("Add", "Sum") or maker.op_type != "Conv" or len(maker.outputs[0].uses()) > 1:
        return False
    add = names[reader.name or ""]
    partners = {each for fates in layout.fates.values() for _, together in fates.get(add, ()) for each in together}
    return len(partners) > 1 and whole not in partners
