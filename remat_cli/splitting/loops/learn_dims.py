"""Dimensions of tensors for all sizes: by rule along windows, else learnt from runs at some sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.values.sizes import Dim, fit_dim, fit_multiple
from remat_cli.onnx_io.sizes.value_lengths import value_lengths
from remat_cli.splitting.rules.table import rule_of

Measurements = Sequence[tuple[Mapping[str, int], Mapping[str, tuple[int, ...]]]]
"""Sizes, and the shapes of tensors by name in a run of them."""
STEP = 8  # that models which halve what they read a few times often need
SPATIAL = 2  # axes before those that windows move along


def learn_dims(
    model: ir.Model, graph: Graph, measured: Measurements, given: Mapping[str, tuple[Dim, ...]] = MappingProxyType({})
) -> dict[str, tuple[Dim, ...]]:
    """The dimensions of every tensor of a graph for all sizes, as these runs showed them, but for those `given`.

    Where windows move a few positions at a time, a few runs do not tell at which sizes there is one more of them: the
    attributes do.

    Raises:
        ModelError: a dimension follows no rule that remat knows.
    """
    makers = {value.name: node for node in model.graph for value in node.outputs}
    from_values = value_lengths(model, graph.shapes)
    known: dict[str, tuple[Dim, ...]] = {}
    for tensor in graph.tensors:
        node = makers.get(tensor.name)
        origin = from_values.get(tensor.name)
        dims = _dims(tensor.name, node, known, measured, origin, partial(_other_sizes, model, measured))
        known[tensor.name] = given.get(tensor.name) or tuple(dims)
    return known


def _dims(
    name: str,
    node: ir.Node | None,
    known: Mapping[str, tuple[Dim, ...]],
    measured: Measurements,
    origin: ir.Node | None,
    other_sizes: Callable[[], str],
) -> Iterator[Dim]:
    ranks = {len(shapes.get(name, ())) for _, shapes in measured}
    before = [] if node is None else [known.get(value.name or "", ()) for value in node.inputs if value is not None]
    for axis in range(max(ranks)):
        samples = [(sizes, shapes.get(name, ())[axis]) for sizes, shapes in measured] if len(ranks) == 1 else []
        by_rule = None if node is None or not samples else _along_windows(node, axis, known)
        read = [
            dim.and_more(size - dim.at(sizes))
            for dims in before
            for dim in dims
            for sizes, size in samples[:1]
            if dim.terms
        ]
        choices = [*([] if by_rule is None else [by_rule]), *read]
        exact = [dim for dim in choices if all(dim.at(sizes) == size for sizes, size in samples)]
        dim = exact[0] if exact else (fit_dim(samples) if samples else None)
        if dim is None and samples:
            dim = fit_multiple(samples, dict.fromkeys(each for dims in known.values() for each in dims))
        if dim is None:
            if origin is not None:
                raise ModelError(
                    f"the length of tensor '{name}' depends on values, since op '{origin.name}' ({origin.op_type}): "
                    "no size bounds what it takes; compile for one size, or cut the model before that op"
                )
            told = "; ".join(f"{list(shapes.get(name, ()))} at {dict(sizes)}" for sizes, shapes in measured)
            raise ModelError(f"tensor '{name}' has no dimensions that follow from the sizes ({told}): {other_sizes()}")
        yield dim


def _other_sizes(model: ir.Model, measured: Measurements) -> str:
    """What to ask for instead: sizes in steps that were not tried, of a dimension that varies, or one size.

    Steps are what the model divides whole numbers by, as a change of sampling rates does, or what halving asks for.
    """
    first, *others = (sizes for sizes, _ in measured)
    name = next((each for each in first if any(sizes[each] != first[each] for sizes in others)), None)
    if name is None:
        return "compile for one size"
    tried = math.gcd(*(sizes[name] for sizes, _ in measured))
    divisions = (node for node in model.graph if node.op_type in ("Div", "Mod") and len(node.inputs) == 2)
    numbers = (node.inputs[1].const_value for node in divisions if node.inputs[1] is not None)
    known = [each.numpy() for each in numbers if each is not None and each.size == 1 and each.dtype.is_integer()]
    steps = {STEP, *(int(each.item()) for each in known)}
    step = min((each for each in steps if 1 < each <= first[name] and tried % each), default=None)
    if step is None:
        return "compile for one size"
    high = first[name] // step * step
    return f"give sizes in steps, such as --dim {name}={step}..{high}:{step}, or compile for one size"


def _along_windows(node: ir.Node, axis: int, known: Mapping[str, tuple[Dim, ...]]) -> Dim | None:
    """How many windows there are along an axis; None where the op has none."""
    rule = rule_of(node.domain, node.op_type)
    first = SPATIAL - bool(_integer(node, "channels_last"))
    if not (rule.has_windows or rule.counts_windows) or axis < first or node.inputs[0] is None:
        return None
    before, kernel = known.get(node.inputs[0].name or ""), _kernel(node)
    at, spatial, auto = axis - first, len(kernel), node.attributes.get("auto_pad")
    mode, is_ceil = "NOTSET" if auto is None else auto.as_string(), bool(_integer(node, "ceil_mode"))
    if before is None or at >= spatial or axis >= len(before):
        return None
    stride = _integers(node, "strides", [1] * spatial)[at]
    pads = _integers(node, "pads", [0] * 2 * spatial) if mode == "NOTSET" else [0] * 2 * spatial
    window = _integers(node, "dilations", [1] * spatial)[at] * (kernel[at] - 1) + 1
    more, dim = pads[at] + pads[at + spatial] - window, before[axis]
    if mode.startswith("SAME"):
        more = -1  # one window for each stride that is begun
    elif is_ceil:  # none begins in the padding behind
        more = min(more + stride - 1, pads[at] - 1)
    if not dim.terms:
        return Dim(offset=(dim.offset + more) // stride + 1)
    if dim.times != 1:
        return None  # a division of what was multiplied after another division is none of whole numbers
    # ((terms + offset) // divisor + plus + more) // stride + 1, as one division of whole numbers
    rest = dim.offset + dim.divisor * (dim.plus + more + stride)
    return Dim(dim.terms, rest, dim.divisor * stride)


def _kernel(node: ir.Node) -> list[int]:
    given = _integers(node, "kernel_shape", [])
    shapes = [value.shape for value in node.inputs[1:] if value is not None and value.shape is not None]
    weights = next((shape for shape in shapes if len(shape) > SPATIAL), ())  # behind scales, where there are such
    return given or [size for size in list(weights)[SPATIAL:] if isinstance(size, int)]


def _integers(node: ir.Node, name: str, default: list[int]) -> list[int]:
    attribute = node.attributes.get(name)
    return default if attribute is None else list(attribute.as_ints())


def _integer(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return 0 if attribute is None else attribute.as_int()
