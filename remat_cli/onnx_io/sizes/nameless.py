"""Gives names to the input dimensions that a file leaves without one, so that each can be bound or given a range.

Exporters write `?`, nothing, a negative number or `None` for every size that they do not know. The runtime lets such
dimensions differ, so none of them is the same as another, whatever its text.
"""

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from remat_cli.onnx_io.read.interface import fed_inputs
from remat_cli.onnx_io.read.normalise import fresh_name

WORDS_FOR_NOTHING = frozenset({"none", "null", "unknown"})
Dimension = int | ir.SymbolicDim


def is_no_name(text: str | None) -> bool:
    """Whether a file writes this where it knows no name: nothing, a sign, a number, or a word that says so."""
    return text is None or not any(map(str.isalpha, text)) or text.lower() in WORDS_FOR_NOTHING


def name_dimensions(model: ir.Model, asked: Collection[str], shapes: Mapping[str, Sequence[int]]) -> frozenset[str]:
    """Name each input dimension without a name after its input and axis, in place; returns these names.

    A text that the user `asked` for by --dim is a name. One that the given `shapes` of inputs bind to several sizes is
    none. What is no name is taken from all other values, of which it said nothing, or what is not so.
    """
    inputs = [value for value in fed_inputs(model.graph) if value.shape is not None]
    sizes: dict[str | None, set[int]] = {}
    for value in inputs:
        for dim, size in zip(value.shape or (), shapes.get(value.name or "", ()), strict=False):
            if isinstance(dim, ir.SymbolicDim):
                sizes.setdefault(dim.value, set()).add(size)

    def is_alone(dim: Dimension) -> bool:
        if isinstance(dim, int):
            return dim < 0
        return dim.value not in asked and (is_no_name(dim.value) or len(sizes.get(dim.value, ())) > 1)

    texts = (dim.value for value in inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim))
    taken, names = {text for text in texts if text is not None}, set[str]()
    for value in inputs:
        dims: list[Dimension] = []
        for axis, dim in enumerate(value.shape or ()):
            alone = is_alone(dim)
            dims.append(ir.SymbolicDim(fresh_name(f"{value.name}_dim_{axis}", taken)) if alone else dim)
            names.update([str(dims[-1])] if alone else ())
        value.shape = ir.Shape(dims)
    named = set(inputs)
    made = (value for graph in model.graphs() for node in graph for value in node.outputs)
    ends = (value for graph in model.graphs() for value in (*graph.inputs, *graph.outputs))
    for value in dict.fromkeys((*made, *ends)):
        if value.shape is not None and value not in named and any(map(is_alone, value.shape)):
            value.shape = ir.Shape([ir.SymbolicDim(None) if is_alone(dim) else dim for dim in value.shape])
    return frozenset(names)
