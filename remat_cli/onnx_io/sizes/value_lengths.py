"""Finds tensors whose lengths depend on what a model is fed, not on sizes alone: of detected boxes, of speech.

Such a length is another one in the next run, so that no op that reads or makes it may be cut at fixed places.
"""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from remat_cli.onnx_io.read.default_order import captured_values, subgraphs
from remat_cli.onnx_io.read.interface import HIDDEN, fed_inputs, fixed_value
from remat_cli.onnx_io.read.op_facts import DRAWING

Shape = tuple[int, ...]
FINDERS: Final = frozenset(
    {"NonZero", "NonMaxSuppression", "Unique", "Compress", "StringSplit", "StringNormalizer", "ImageDecoder"}
    | {"RemovePadding", "DynamicTimeWarping", "BeamSearch", "GreedySearch", "Sampling"}
)
"""Ops that make as many elements as they find."""
REDUCED: Final = (1,)
"""Where a reduction reads along which axes it goes: each of them gets another length, or none."""
LENGTHS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "AffineGrid": (1,),
        "BlackmanWindow": (0,),
        "CenterCropPad": (1,),
        "Col2Im": (1, 2),
        "ConstantOfShape": (0,),
        "CropAndResize": (3,),
        "DFT": (1, 2),
        "Expand": (1,),
        "ExpandDims": (1,),
        "HammingWindow": (0,),
        "HannWindow": (0,),
        "If": (0,),
        "Loop": (0, 1),
        "MaxUnpool": (2,),
        "MelWeightMatrix": (0, 1),
        "OneHot": (1,),
        "Pad": (1, 3),
        "Range": (0, 1, 2),
        "ReduceL1": REDUCED,
        "ReduceL2": REDUCED,
        "ReduceLogSum": REDUCED,
        "ReduceLogSumExp": REDUCED,
        "ReduceMax": REDUCED,
        "ReduceMean": REDUCED,
        "ReduceMin": REDUCED,
        "ReduceProd": REDUCED,
        "ReduceSum": REDUCED,
        "ReduceSumSquare": REDUCED,
        "Reshape": (1,),
        "Resize": (1, 2, 3),
        "Slice": (1, 2, 3, 4),
        "Split": (1,),
        "SplitToSequence": (1,),
        "Squeeze": (1,),
        "STFT": (1, 3),
        "Tile": (1,),
        "TopK": (1,),
        "Unsqueeze": (1,),
        "Upsample": (1,),
    }
)
"""Positions of inputs that say how long what an op makes is, or along which axis."""
MEASURES: Final = frozenset({"Shape", "Size"})
"""Ops whose results depend on lengths alone."""
RANKED: Final = frozenset({"Flatten", "Shape", "Size", "NonZero", "Reshape", "NonMaxSuppression"})
"""Ops whose results have as many dimensions, whatever they read."""


def value_lengths(model: ir.Model, seen: Mapping[str, Shape]) -> dict[str, ir.Node]:
    """Tensors of the main graph whose lengths depend on values, by name, each with the op where that begins.

    Any input is a value, also one that has a default, but none of a name of ours. `seen` are shapes as a run showed
    them: some files say others.
    """
    from_values = {value.name or "" for value in model.graph.inputs if fixed_value(value) is None}
    dims = (dim for value in fed_inputs(model.graph) for dim in value.shape or ())
    sizes = {dim.value for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value}
    found: dict[str, ir.Node] = {}
    wrong: set[str] = set()  # those of which a file cannot know what it says, and what follows from these
    for node in model.graph:
        reads = _reads(node)
        before = next((found[name] for name in reads if name in found), None)
        if node.op_type in MEASURES:
            from_values.update(_makes(node) if before is not None else ())
            continue
        begins = _begins(node, from_values)
        origin = node if before is None and begins else before
        if origin is not None:
            if (begins and node.op_type in FINDERS) or (not begins and any(name in wrong for name in reads)):
                wrong.update(_makes(node))
            wrong.update(value.name or "" for value in node.outputs if _is_contradicted(value, seen))
            unknown = (value for value in node.outputs if value.name in wrong or not _is_known(value, node, sizes))
            found.update({name: origin for value in unknown if (name := value.name)})
        if origin is not None or _is_value(node, from_values):
            from_values.update(_makes(node))
    return found


def value_ranks(model: ir.Model, lengths: Collection[str]) -> frozenset[str]:
    """Tensors of the main graph that have more or fewer dimensions by values, `lengths` being those of `value_lengths`.

    A Squeeze that names no axes drops whatever has the length of one, a Reshape makes as many as are listed.
    """
    found = set[str]()
    for node in model.graph:
        first, second = (*(value.name if value else "" for value in node.inputs[:2]), "", "")[:2]
        is_squeezed = node.op_type == "Squeeze" and first in lengths and not second and "axes" not in node.attributes
        is_listed = node.op_type == "Reshape" and second in lengths
        goes_on = node.op_type not in RANKED and not found.isdisjoint(_reads(node))
        if is_squeezed or is_listed or goes_on or (node.op_type == "If" and _has_ranks(node)):
            found.update(_makes(node))
    return frozenset(found)


def hide_lengths(graph: ir.Graph) -> None:
    """Give names of ours to inputs that say lengths, of a graph that lists most of its weights as inputs, in place.

    Exporters before IR version 4 had to list them, and some do since; tools that simplify add others, which are none.
    That a caller would give others is for show, and another length of what is inside would be one of which no plan
    knows: whoever gives one is refused at the door. They stay inputs, as the runtime fuses other ops around constants,
    which then have other bits.
    """
    listed = [value.is_graph_input() for value in graph.initializers.values() if not _is_count(value)]
    if 2 * sum(listed) <= len(listed):
        return
    waiting = [value for node in ir.traversal.RecursiveGraphIterator(graph) for value in _told(node)]
    met = set(waiting)
    while waiting:
        value = waiting.pop()
        maker = value.producer()
        more = () if maker is None or maker.op_type in MEASURES else maker.inputs
        new = {each for each in more if each is not None and _is_count(each)} - met
        met |= new
        waiting += new
    for value in graph.inputs:
        if value in met and value.const_value is not None:
            value.name = f"{HIDDEN}{value.name}"


def _told(node: ir.Node) -> list[ir.Value]:
    """What an op reads that says lengths."""
    places = LENGTHS.get(node.op_type, ())
    return [value for at, value in enumerate(node.inputs) if at in places and value is not None]


def _is_count(value: ir.Value) -> bool:
    """Whether a value is computed, or is a constant of whole numbers."""
    return (
        value.const_value is None or value.const_value.dtype.is_integer() or value.const_value.dtype == ir.DataType.BOOL
    )


def _has_ranks(node: ir.Node) -> bool:
    """Whether the bodies of an If make one thing with more or fewer dimensions."""
    made = zip(*(body.outputs for body in subgraphs(node)), strict=True)
    return any(len({None if value.shape is None else len(value.shape) for value in each}) > 1 for each in made)


def _is_known(value: ir.Value, node: ir.Node, sizes: Collection[str]) -> bool:
    """Whether the runtime knows a shape before a run, so that no value changes it.

    It takes for an output what the file declares, and only warns where that is wrong.
    """
    if node.op_type == "If":  # the runtime writes down what it knows of bodies
        place = node.outputs.index(value)
        made = [_of_sizes(body.outputs[place], sizes) for body in subgraphs(node)]
        return made[0] is not None and len(set(made)) == 1
    is_declared = value.is_graph_output() and not subgraphs(node)
    return _static(value) is not None and not is_declared


def _of_sizes(value: ir.Value, sizes: Collection[str]) -> tuple[int | str, ...] | None:
    """The shape that is said of a value, in numbers and dimensions of inputs; None where a length is another."""
    if value.shape is None:
        return None
    dims = (dim if isinstance(dim, int) else dim.value for dim in value.shape)
    found = tuple(dim for dim in dims if dim is not None and (isinstance(dim, int) or dim in sizes))
    return found if len(found) == len(value.shape) else None


def _static(value: ir.Value) -> Shape | None:
    """The shape that is said of a value; None where a length is open."""
    return value.shape.numpy() if value.shape is not None and value.shape.is_static() else None


def _is_contradicted(value: ir.Value, seen: Mapping[str, Shape]) -> bool:
    """Whether a run showed another shape than the one that is said."""
    said = _static(value)
    return said is not None and seen.get(value.name or "", said) != said


def _begins(node: ir.Node, from_values: Collection[str]) -> bool:
    """Whether lengths of what an op makes depend on values that it reads, whatever lengths it reads."""
    if node.op_type in FINDERS and any(name in from_values for name in _reads(node)):
        return True
    return any(value.name in from_values for value in _told(node)) or _is_begun_within(node, from_values)


def _is_begun_within(node: ir.Node, from_values: Collection[str]) -> bool:
    """Whether a body of an op makes something whose length depends on values.

    A Loop whose body says from values whether it goes on makes more or fewer rows.
    """
    for body in subgraphs(node):
        inside, before = {*from_values, *_read_inside(node, body, from_values)}, 0
        back = _handed_back(node, body)
        while len(inside) > before:  # what one turn hands to the next may have become a value there
            before = len(inside)
            for inner in body:
                if _begins(inner, inside):
                    return True
                if inner.op_type not in MEASURES and _is_value(inner, inside):
                    inside.update(_makes(inner))
            inside.update(after for made, after in back.items() if made in inside)
        if node.op_type == "Loop" and body.outputs[0].name in inside:
            return True
    return False


def _read_inside(node: ir.Node, body: ir.Graph, from_values: Collection[str]) -> Iterator[str]:
    """Names under which a body reads values that its op reads."""
    pairs = zip(reversed(node.inputs), reversed(body.inputs), strict=False)  # Scan of opset 8 reads lengths before them
    return (own.name or "" for value, own in pairs if value is not None and value.name in from_values)


def _handed_back(node: ir.Node, body: ir.Graph) -> dict[str, str]:
    """By name of what a turn of a body makes, as what the next turn reads it."""
    count = node.attributes.get("num_scan_inputs")
    states = len(body.inputs) - (0 if count is None else count.as_int())
    reads = body.inputs[1:] if node.op_type == "Loop" else body.inputs[:states] if node.op_type == "Scan" else ()
    return {made.name or "": own.name or "" for made, own in zip(body.outputs, reads, strict=False)}


def _is_value(node: ir.Node, from_values: Collection[str]) -> bool:
    return node.op_type in DRAWING or any(name in from_values for name in _reads(node))


def _reads(node: ir.Node) -> list[str]:
    return [value.name or "" for value in (*node.inputs, *captured_values(node)) if value is not None]


def _makes(node: ir.Node) -> Iterator[str]:
    yield from (value.name for value in node.outputs if value.name)
