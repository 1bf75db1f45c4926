"""Slicing rule of Einsum, cut along any label of its result that a part has the bits of the whole for.

The runtime (1.31.1) sorts the labels of two factors, makes of each one matrix per position of the labels that both
factors and the result have, and multiplies these one after another. One factor alone is transposed and summed up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from remat_cli.splitting.rules.matrix import REASSOCIATED, RUN, Product, element_type, has_same_bits
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced

ELLIPSIS, DIGITS = "...", "0123456789"


@dataclass(frozen=True)
class Equation:
    """Labels of each factor and of the result, by axis, and how long each is."""

    factors: tuple[str, ...]
    result: str
    extents: dict[str, int]


def einsum(op: OpView, slab: Slab) -> Sliced | None:
    """Einsum of one factor or of two: what has the cut label is cut."""
    equation = _equation(op)
    if equation is None:
        return None
    label = equation.result[slab.axis]
    needs = tuple(
        Slab(labels.index(label), slab.start, slab.stop) if label in labels else None for labels in equation.factors
    )
    return Sliced(needs, slab) if _is_exact(op, equation, label, slab) else None


def _equation(op: OpView) -> Equation | None:
    """The equation of an op without diagonals, in which every label has one extent; None where it is not so."""
    terms, arrow, result = op.text("equation", "").replace(" ", "").partition("->")
    shapes = [shape for shape in op.inputs if shape is not None]
    factors = tuple(_spelt_out(labels, len(shape)) for labels, shape in zip(terms.split(","), shapes, strict=True))
    if ELLIPSIS in terms and not arrow:
        return None
    extents: dict[str, int] = {}
    for labels, shape in zip(factors, shapes, strict=True):
        if len(labels) != len(shape) or len(set(labels)) < len(labels):
            return None
        if any(extents.setdefault(label, extent) != extent for label, extent in zip(labels, shape, strict=True)):
            return None
    if arrow:
        result = _spelt_out(result, len(op.output_shape))
    else:  # labels that stand only once, sorted
        result = "".join(sorted(label for label in terms.replace(",", "") if terms.count(label) == 1))
    return Equation(factors, result, extents)


def _spelt_out(labels: str, rank: int) -> str:
    """Labels with an ellipsis replaced by as many digits as there are axes left, counted from its end."""
    left = rank - len(labels.replace(ELLIPSIS, ""))
    return labels.replace(ELLIPSIS, DIGITS[len(DIGITS) - max(0, left) :])


def _is_exact(op: OpView, equation: Equation, label: str, slab: Slab) -> bool:
    """Whether the part is made of the same matrices as the whole, or of parts of them that have the same bits."""
    kind = element_type(op)
    if kind is None:
        return False
    if kind.is_integer() or (op.may_reassociate and kind in REASSOCIATED):
        return True
    # a label of one factor only is summed over before the product, in its own way
    summed = (label for label, extent in equation.extents.items() if extent > 1 and label not in equation.result)
    is_summed_alone = any(sum(each in labels for labels in equation.factors) == 1 for each in summed)
    if len(equation.factors) > 2 or is_summed_alone:
        return False
    if all(label in labels for labels in equation.factors):
        return True  # of as many matrices as it has positions
    whole, part = _product(equation, {}), _product(equation, {label: slab.extent})
    is_row = label in equation.factors[0]
    if not is_row and whole.depth > RUN and part.columns != slab.extent:
        return False  # its columns do not lie side by side
    return kind == ir.DataType.FLOAT and has_same_bits(whole, part, 0 if is_row else slab.start, op.threads)


def _product(equation: Equation, changed: Mapping[str, int]) -> Product:
    """One of the products: the runtime goes through the others one by one."""
    left, right = (set(labels) for labels in equation.factors)
    extents = {**equation.extents, **changed}
    rows, columns, depth = (
        prod(extents[label] for label in labels)
        for labels in (left - right, right - left, left & right - set(equation.result))
    )
    return Product(rows, columns, depth, 1, is_turned=False, is_scaled=False)
