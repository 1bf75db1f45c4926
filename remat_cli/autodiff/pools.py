"""Pools with `ceil_mode` whose last window begins in the padding: the runtime has no such window, ONNX counts it.

Before opset 22 the shape inference of ONNX is one too large there. The same pool without `ceil_mode` has one shape.
"""

from collections.abc import Mapping

import onnx_ir as ir

POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def pool_attributes(node: ir.Node, image: ir.Value | None) -> Mapping[str, ir.Attr]:
    """The attributes of an op; those of an equal pool without `ceil_mode` where ONNX and the runtime would differ.

    The windows that are left end within the padding that was there, so that the same elements are read and counted.
    """
    given = dict(node.attributes)
    is_pool = node.op_type in POOLS and node.domain in ("", "ai.onnx")
    if not is_pool or not node.attributes.get_int("ceil_mode", 0):
        return given
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return given
    if image is None or image.shape is None or not image.shape.is_static():
        return given
    sizes = image.shape.numpy()[2:]
    # Padding behind each axis that the windows which are there need, where some window begins in the padding.
    rank = len(sizes)
    kernel = node.attributes["kernel_shape"].as_ints()
    strides, dilations = (node.attributes.get_ints(name, [1] * rank) for name in ("strides", "dilations"))
    padding = node.attributes.get_ints("pads", [0] * 2 * rank)
    found, is_dropped = [], False
    for axis, size in enumerate(sizes):
        low, high = padding[axis], padding[rank + axis]
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        last = -(-(size + low + high - reach) // strides[axis])
        is_dropped |= last * strides[axis] >= size + low
        last -= last * strides[axis] >= size + low
        found.append(max(0, last * strides[axis] + reach - size - low))
    counts_more = node.attributes.get_int("count_include_pad", 0) and any(
        new > old for new, old in zip(found, padding[rank:], strict=True)
    )
    is_wide = any(pad >= taps for pad, taps in zip(found, kernel, strict=True))  # the runtime refuses that
    if not is_dropped or counts_more or is_wide:
        return given
    pads = [*padding[:rank], *found]
    return given | {"ceil_mode": ir.AttrInt64("ceil_mode", 0), "pads": ir.AttrInt64s("pads", pads)}
