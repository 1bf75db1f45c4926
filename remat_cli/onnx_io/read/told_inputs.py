"""Finds values for inputs that say a shape, an axis, a size or which branch is taken, with which the model runs.

Random numbers are no shapes. What such an input must be follows from the op that reads it and from the shapes that the
model declares; where a value follows from neither, the input is left to chance, and the runtime says what is wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.onnx_io.read.interface import fed_inputs, is_bound
from remat_cli.onnx_io.write.assemble import inferred

Ints = tuple[int, ...]
Value = list[int] | list[float] | None
PASSING = frozenset({"Identity", "Cast", "Unsqueeze", "Squeeze"})  # what they give is as good as what they read
STANDARD = ("", "ai.onnx")
MOST_ELEMENTS, MOST_AXES = 4096, 4  # of a block of Col2Im: others are left to chance
DIVISIONS = frozenset({"Div", "Mod"})  # only integers cannot be divided by 0
COUNTING = frozenset({*PASSING, "Add", "Sub", "Reshape", "ReduceSum"})  # what makes the lengths of items of a mask
LENGTHS = ("com.microsoft", "GroupQueryAttention", 5)  # an op, and its input that has these


def told_inputs(model: ir.Model) -> dict[str, npt.NDArray[np.generic]]:
    """Values of the inputs that say a shape, an axis, a size or a branch, by name, as far as they are recognised."""
    # Per input, the ops that say what it must be, and the number of the input they read it as.
    readers: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for value in filter(is_bound, fed_inputs(model.graph)):
        left_out = frozenset() if value.dtype is not None and value.dtype.is_integer() else DIVISIONS
        found = [(node, at) for node, at in _readers(value) if (node.op_type, at) in RULES]
        readers[value] = [(node, at) for node, at in found if node.op_type not in left_out]
    masks = ((mask, mask.shape, mask.dtype) for mask in counted_masks(model) if is_bound(mask))
    ones = {mask.name or "": np.ones(shape.numpy(), kind.numpy()) for mask, shape, kind in masks if shape and kind}
    if not any(readers.values()):
        return ones
    # Shapes that are declared, or follow from what is.
    proto = inferred(model, data_prop=True)
    ports = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    tensors = {port.name: port.type.tensor_type for port in ports if port.type.tensor_type.HasField("shape")}
    dims = {name: tensor.shape.dim for name, tensor in tensors.items()}
    shapes = {
        name: tuple(dim.dim_value for dim in each)
        for name, each in dims.items()
        if all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in each)
    }
    shapes |= {each.name: tuple(each.dims) for each in proto.graph.initializer}
    values: dict[str, npt.NDArray[np.generic]] = {}
    for value, nodes in readers.items():
        shape = present(value.shape, f"the shape of '{value.name}'").numpy()
        told = (RULES[node.op_type, index](node, shapes, prod(shape)) for node, index in nodes)
        fitting = next((numbers for numbers in told if numbers is not None and len(numbers) == prod(shape)), None)
        if fitting is not None:
            values[value.name or ""] = np.array(
                fitting, present(value.dtype, f"the type of '{value.name}'").numpy()
            ).reshape(shape)
    return ones | values


def counted_masks(model: ir.Model) -> list[ir.Value]:
    """Inputs whose sums are the lengths of items in attention: with fewer ones than tokens it refuses to run."""
    domain, op_type, place = LENGTHS
    ops = [node for node in model.graph if (node.domain, node.op_type) == (domain, op_type)]
    fed, found = set(fed_inputs(model.graph)), dict[ir.Value, None]()
    frontier = [(node.inputs[place], False) for node in ops if len(node.inputs) > place]
    seen = set(frontier)
    while frontier:
        value, is_summed = frontier.pop()
        if value is None:
            continue
        if value in fed and is_summed:
            found[value] = None
        node = value.producer()
        if node is not None and node.domain in STANDARD and node.op_type in COUNTING:
            more = {(read, is_summed or node.op_type == "ReduceSum") for read in node.inputs} - seen
            seen |= more
            frontier += more
    return list(found)


def _readers(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Ops that read a value, and the number of the input they read it as, also behind ops that pass it on."""
    found: list[tuple[ir.Node, int]] = []
    for use in value.uses():
        if use.node.domain in STANDARD and use.node.op_type in PASSING and use.idx == 0:
            found += _readers(use.node.outputs[0])
        elif use.node.domain in STANDARD:
            found.append((use.node, use.idx))
    return found


def _shape_of(value: ir.Value | None, shapes: Mapping[str, Ints]) -> Ints | None:
    return None if value is None else shapes.get(value.name or "")


def _axes(node: ir.Node, rank: int) -> list[int]:
    axes = node.attributes.get("axes")
    return list(range(rank)) if axes is None else [axis % rank for axis in axes.as_ints()]


def declared_shape(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The shape that the result has by declaration."""
    made = _shape_of(node.outputs[0], shapes)
    return None if made is None or len(made) != size else list(made)


def reshaped(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The declared shape, else all elements along the first axis."""
    return declared_shape(node, shapes, size) or [-1] + [1] * (size - 1)


def broadcast(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The declared shape, else ones, to which anything is broadcast."""
    return declared_shape(node, shapes, size) or [1] * size


def sizes(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The declared result's sizes on the axes in question, else those that are there."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    known = made or read
    if known is None:
        return None
    axes = _axes(node, len(known))
    return [known[axis] for axis in axes]


def scales(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """What the declared sizes are of those that are there, on the axes in question; else 1."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    if not read or not made or 0 in read:
        return [1.0] * size
    return [made[axis] / read[axis] for axis in _axes(node, len(read))]


def repeats(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """How often the declared result holds what is there on each axis; else once."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    if not read or not made or 0 in read:
        return [1] * size
    return [new // old for new, old in zip(made, read, strict=True)]


def paddings(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """What the declared result has more on each axis, half on each side: a reflection is shorter than its axis."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    if not read or not made or 2 * len(read) != size:
        return [0] * size
    more = [new - old for new, old in zip(made, read, strict=True)]
    before = [each // 2 for each in more]
    return [*before, *(whole - first for whole, first in zip(more, before, strict=True))]


def whole_region(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The region from 0 to 1 on every axis."""
    return [0.0] * (size // 2) + [1.0] * (size - size // 2)


def pieces(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """Sizes of so many pieces of an axis, as equal as they can be."""
    read, axis = _shape_of(node.inputs[0], shapes), node.attributes.get("axis")
    if not read:
        return None
    whole = read[0 if axis is None else axis.as_int()]
    return [whole // size + (piece < whole % size) for piece in range(size)]


def unit_axes(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The first axes of size 1."""
    read = _shape_of(node.inputs[0], shapes)
    return None if read is None else [axis for axis, dim in enumerate(read) if dim == 1][:size]


def starts(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """Zeros: each axis from its start."""
    return [0] * size


def first_axes(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The first axes, in order."""
    return list(range(size))


def ones(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """Ones: steps, and divisors."""
    return [1] * size


def half(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """One half, for thresholds between 0 and 1."""
    return [0.5] * size


def nothing(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """Zero: a Dropout that drops nothing."""
    return [0.0] * size


def image_sizes(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The declared image; else a line of all columns, which blocks of one element make."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    if made is not None and len(made) == size + 2:
        return list(made[2:])
    return None if read is None or len(read) != 3 else [1] * (size - 1) + [read[2]]


def block_sizes(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """A block of as many elements as there are rows for each channel, which fits into the image as often as told."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    image = image_sizes(node, shapes, size)
    if read is None or len(read) != 3 or image is None:
        return None
    if made is None or len(made) != size + 2:
        return [1] * size
    elements = read[1] // max(made[1], 1)
    if elements > MOST_ELEMENTS or size > MOST_AXES:
        return None
    divisors = [each for each in range(1, elements + 1) if elements % each == 0]
    blocks = (block for block in product(*[divisors] * size) if prod(block) == elements)
    return next((list(block) for block in blocks if _columns(node, image, block) == read[2]), None)


def _columns(node: ir.Node, image: Sequence[float], block: Ints) -> int:
    """How often a block fits into an image."""
    size = len(block)
    pads, strides, dilations = _ints(node, "pads", 0), _ints(node, "strides", 1), _ints(node, "dilations", 1)
    pads = pads if len(pads) > 1 else pads * 2 * size
    found = 1
    for axis in range(size):
        stride, dilation = (each[axis] if len(each) > 1 else each[0] for each in (strides, dilations))
        room = int(image[axis]) + pads[axis] + pads[axis + size] - dilation * (block[axis] - 1) - 1
        found *= max(0, room // max(stride, 1) + 1)
    return found


def _ints(node: ir.Node, name: str, otherwise: int) -> list[int]:
    """An attribute, or one number for all axes where it is not there."""
    found = node.attributes.get(name)
    return [otherwise] if found is None else list(found.as_ints())


def compared(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """What it is compared with, where a branch is taken if it is the same, as one for each sample rate is."""
    tensor = next((value.const_value for value in node.inputs if value is not None and value.const_value), None)
    is_asked = any(reader.op_type == "If" for reader, _ in _readers(node.outputs[0]))
    return tensor.numpy().ravel().tolist() if tensor is not None and is_asked and size == 1 else None


Rule = Callable[[ir.Node, Mapping[str, Ints], int], Value]
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
RULES: Mapping[tuple[str, int], Rule] = {
    ("Reshape", 1): reshaped,
    ("Expand", 1): broadcast,
    ("ConstantOfShape", 0): broadcast,
    ("Tile", 1): repeats,
    ("Resize", 1): whole_region,
    ("Resize", 2): scales,
    ("Resize", 3): sizes,
    ("Upsample", 1): scales,
    ("CenterCropPad", 1): sizes,
    ("AffineGrid", 1): broadcast,
    ("MaxUnpool", 2): declared_shape,
    ("Pad", 1): paddings,
    ("Pad", 3): first_axes,
    ("Split", 1): pieces,
    ("Squeeze", 1): unit_axes,
    ("Unsqueeze", 1): first_axes,
    ("Slice", 1): starts,
    ("Slice", 3): first_axes,
    ("Slice", 4): ones,
    ("Col2Im", 1): image_sizes,
    ("Col2Im", 2): block_sizes,
    ("Dropout", 1): nothing,
    ("CumSum", 1): starts,
    ("CumProd", 1): starts,
    ("NonMaxSuppression", 3): half,
    ("NonMaxSuppression", 4): half,
    ("Div", 1): ones,
    ("Mod", 1): ones,
    ("Equal", 0): compared,
    ("Equal", 1): compared,
    **{(f"Reduce{name}", 1): first_axes for name in REDUCTIONS},
}
"""(op type, number of the input) -> what it must be."""
