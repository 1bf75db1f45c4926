"""Finds tensors whose lengths depend on what a model is fed, not on sizes alone: of detected boxes, of speech.

Such a length is another one in the next run, so that no op that reads or makes it may be cut at fixed places.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from remat_cli.onnx_io.read.default_order import captured_values, subgraphs
from remat_cli.onnx_io.read.interface import fed_inputs

FINDERS: Final = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress", "StringSplit"})
"""Ops that make as many elements as they find."""
LENGTHS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "AffineGrid": (1,),
        "CenterCropPad": (1,),
        "Col2Im": (1, 2),
        "ConstantOfShape": (0,),
        "DFT": (1,),
        "Expand": (1,),
        "If": (0,),
        "Loop": (0, 1),
        "MaxUnpool": (2,),
        "OneHot": (1,),
        "Pad": (1,),
        "Range": (0, 1, 2),
        "Reshape": (1,),
        "Resize": (1, 2, 3),
        "Slice": (1, 2, 3, 4),
        "Split": (1,),
        "STFT": (1, 3),
        "Tile": (1,),
        "TopK": (1,),
        "Upsample": (1,),
    }
)
"""Positions of inputs that say how long what an op makes is."""
MEASURES: Final = frozenset({"Shape", "Size"})
"""Ops whose results depend on lengths alone."""


def value_lengths(model: ir.Model) -> dict[str, ir.Node]:
    """Tensors of the main graph whose lengths depend on values, by name, each with the op where that begins."""
    from_values = {value.name or "" for value in fed_inputs(model.graph)}
    found: dict[str, ir.Node] = {}
    for node in model.graph:
        reads = [value.name or "" for value in (*node.inputs, *captured_values(node)) if value is not None]
        before = next((found[name] for name in reads if name in found), None)
        if node.op_type in MEASURES:
            from_values.update(_makes(node) if before is not None else ())
            continue
        # Whether the lengths of what it makes depend on values that it reads, whatever lengths it reads.
        ops = (node.op_type, *(inner.op_type for graph in subgraphs(node) for inner in graph.all_nodes()))
        finds = not FINDERS.isdisjoint(ops) and any(name in from_values for name in reads)
        places = LENGTHS.get(node.op_type, ())
        told = (value for at, value in enumerate(node.inputs) if at in places and value is not None)
        begins = finds or any(value.name in from_values for value in told)
        origin = (node if begins else None) if before is None else before
        if origin is not None:
            # Where the runtime knows the shape before a run, no value changes it.
            unknown = (v for v in node.outputs if v.shape is None or not all(isinstance(dim, int) for dim in v.shape))
            found.update({name: origin for value in unknown if (name := value.name)})
        if origin is not None or any(name in from_values for name in reads):
            from_values.update(_makes(node))
    return found


def _makes(node: ir.Node) -> Iterator[str]:
    yield from (value.name for value in node.outputs if value.name)
