"""Inputs that an op takes as a shape, an axis or a size: values for them with which the model runs.

Random numbers are no shapes. What such an input must be follows from the op that reads it and from the shapes that the
model declares; where a value follows from neither, the input is left to chance, and the runtime says what is wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from remat_cli.onnx_io.read.interface import fed_inputs, is_bound
from remat_cli.onnx_io.write.assemble import light_copy

Ints = tuple[int, ...]
Value = list[int] | list[float] | None
PASSING = frozenset({"Identity", "Cast", "Unsqueeze", "Squeeze"})  # what they give is as good as what they read
STANDARD = ("", "ai.onnx")
MOST_ELEMENTS, MOST_AXES = 4096, 4  # of a block of Col2Im: others are left to chance
DIVISIONS = frozenset({"Div", "Mod"})  # only integers cannot be divided by 0


def told_inputs(model: ir.Model) -> dict[str, npt.NDArray[np.generic]]:
    """Values of the inputs that say a shape, an axis or a size, by name, as far as they are recognised."""
    readers = {value: _telling(value) for value in fed_inputs(model.graph) if is_bound(value)}
    if not any(readers.values()):
        return {}
    # Shapes that are declared, or follow from what is.
    proto = ir.to_proto(light_copy(model))
    try:
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # an op that ONNX does not know, or shapes that contradict: the declared ones are what there is
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
    ports = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    tensors = {port.name: port.type.tensor_type for port in ports if port.type.tensor_type.HasField("shape")}
    dims = {name: tensor.shape.dim for name, tensor in tensors.items()}
    known = {name: tuple(d.dim_value for d in each) for name, each in dims.items() if all(map(_is_number, each))}
    shapes = known | {each.name: tuple(each.dims) for each in proto.graph.initializer}
    found: dict[str, npt.NDArray[np.generic]] = {}
    for value, nodes in readers.items():
        assert value.shape is not None
        assert value.dtype is not None
        shape = value.shape.numpy()
        told = (RULES[node.op_type, index](node, shapes, prod(shape)) for node, index in nodes)
        fitting = next((numbers for numbers in told if numbers is not None and len(numbers) == prod(shape)), None)
        if fitting is not None:
            found[value.name or ""] = np.array(fitting, value.dtype.numpy()).reshape(shape)
    return found


def _is_number(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _readers(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Ops that read a value, and the number of the input they read it as, also behind ops that pass it on."""
    found: list[tuple[ir.Node, int]] = []
    for use in value.uses():
        if use.node.domain in STANDARD and use.node.op_type in PASSING and use.idx == 0:
            found += _readers(use.node.outputs[0])
        elif use.node.domain in STANDARD:
            found.append((use.node, use.idx))
    return found


def _telling(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """Those of the readers that say what the value must be."""
    is_integer = value.dtype is not None and value.dtype.is_integer()
    readers = ((node, index) for node, index in _readers(value) if (node.op_type, index) in RULES)
    return [(node, index) for node, index in readers if is_integer or node.op_type not in DIVISIONS]


def _shape_of(value: ir.Value | None, shapes: Mapping[str, Ints]) -> Ints | None:
    return None if value is None else shapes.get(value.name or "")


def _axes(node: ir.Node, rank: int) -> list[int]:
    axes = node.attributes.get("axes")
    return list(range(rank)) if axes is None else [axis % rank for axis in axes.as_ints()]


def _made(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The shape that the result has by declaration."""
    made = _shape_of(node.outputs[0], shapes)
    return None if made is None or len(made) != size else list(made)


def _reshaped(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    return _made(node, shapes, size) or [-1] + [1] * (size - 1)


def _broadcast(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    return _made(node, shapes, size) or [1] * size


def _sizes(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The declared result's sizes on the axes in question, else those that are there."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    known = made or read
    if known is None:
        return None
    axes = _axes(node, len(known))
    return [known[axis] for axis in axes]


def _scales(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    if not read or not made or 0 in read:
        return [1.0] * size
    return [made[axis] / read[axis] for axis in _axes(node, len(read))]


def _repeats(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    if not read or not made or 0 in read:
        return [1] * size
    return [new // old for new, old in zip(made, read, strict=True)]


def _pads(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """What the declared result has more on each axis, half on each side: a reflection is shorter than its axis."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    if not read or not made or 2 * len(read) != size:
        return [0] * size
    more = [new - old for new, old in zip(made, read, strict=True)]
    before = [each // 2 for each in more]
    return [*before, *(whole - half for whole, half in zip(more, before, strict=True))]


def _whole_region(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    return [0.0] * (size // 2) + [1.0] * (size - size // 2)


def _pieces(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    read, axis = _shape_of(node.inputs[0], shapes), node.attributes.get("axis")
    if not read:
        return None
    whole = read[0 if axis is None else axis.as_int()]
    return [whole // size + (piece < whole % size) for piece in range(size)]


def _unit_axes(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    read = _shape_of(node.inputs[0], shapes)
    return None if read is None else [axis for axis, dim in enumerate(read) if dim == 1][:size]


def _starts(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    return [0] * size


def _first_axes(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    return list(range(size))


def _ones(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    return [1] * size


def _share(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    return [0.5] * size


def _no_share(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    return [0.0] * size


def _image(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """The declared image; else a line of all columns, which blocks of one element make."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    if made is not None and len(made) == size + 2:
        return list(made[2:])
    return None if read is None or len(read) != 3 else [1] * (size - 1) + [read[2]]


def _block(node: ir.Node, shapes: Mapping[str, Ints], size: int) -> Value:
    """A block of as many elements as there are rows for each channel, which fits into the image as often as told."""
    read, made = _shape_of(node.inputs[0], shapes), _shape_of(node.outputs[0], shapes)
    image = _image(node, shapes, size)
    if read is None or len(read) != 3 or image is None:
        return None
    if made is None or len(made) != size + 2:
        return [1] * size
    elements = read[1] // max(made[1], 1)
    if elements > MOST_ELEMENTS or size > MOST_AXES:
        return None
    blocks = (block for block in product(*[_divisors(elements)] * size) if prod(block) == elements)
    return next((list(block) for block in blocks if _columns(node, image, block) == read[2]), None)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _columns(node: ir.Node, image: Sequence[float], block: Ints) -> int:
    """How often a block fits into an image."""
    size = len(block)
    pads, strides, dilations = (_ints(node, *each) for each in (("pads", 0), ("strides", 1), ("dilations", 1)))
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


Rule = Callable[[ir.Node, Mapping[str, Ints], int], Value]
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
RULES: Mapping[tuple[str, int], Rule] = {
    ("Reshape", 1): _reshaped,
    ("Expand", 1): _broadcast,
    ("ConstantOfShape", 0): _broadcast,
    ("Tile", 1): _repeats,
    ("Resize", 1): _whole_region,
    ("Resize", 2): _scales,
    ("Resize", 3): _sizes,
    ("Upsample", 1): _scales,
    ("CenterCropPad", 1): _sizes,
    ("AffineGrid", 1): _broadcast,
    ("MaxUnpool", 2): _made,
    ("Pad", 1): _pads,
    ("Pad", 3): _first_axes,
    ("Split", 1): _pieces,
    ("Squeeze", 1): _unit_axes,
    ("Unsqueeze", 1): _first_axes,
    ("Slice", 1): _starts,
    ("Slice", 3): _first_axes,
    ("Slice", 4): _ones,
    ("Col2Im", 1): _image,
    ("Col2Im", 2): _block,
    ("Dropout", 1): _no_share,
    ("CumSum", 1): _starts,
    ("CumProd", 1): _starts,
    ("NonMaxSuppression", 3): _share,
    ("NonMaxSuppression", 4): _share,
    ("Div", 1): _ones,
    ("Mod", 1): _ones,
    **{(f"Reduce{name}", 1): _first_axes for name in REDUCTIONS},
}
"""(op type, number of the input) -> what it must be."""
