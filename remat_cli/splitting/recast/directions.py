"""Recurrent networks that go both ways through time, as one that goes forward and one that goes back.

Measured with ONNX Runtime 1.32.0 (1, 2 and 4 threads; up to 300 steps of 1, 2 and 4 items): both have the bits that the
one op gives. It holds the gates of both ways at once, and cannot run some steps at a time. DynamicQuantizeLSTM comes
apart with the same bits too, 0 of 300 differ (1 to 120 steps of 1 to 16 items, 1, 2, 4 and 8 threads; a scale each or
one, states, peepholes given or not): each way has the range of all that it reads.

An op that goes back holds all that it reads and makes a second time, turned round. One that goes forward on what was
turned round before has the same bits, 0 of 660 differ.
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.op_facts import CONTRIB, ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.rules.recurrent import TIME
from remat_cli.splitting.rules.table import rule_of
from remat_cli.splitting.tiles.view import ModelView

WAYS = ("forward", "reverse")
LENGTHS, WEIGHTS = 4, (1, 2, 3, 7)  # inputs
QUANTISED, SCALES = (CONTRIB, "DynamicQuantizeLSTM"), (8, 9, 10, 11)  # and inputs it has besides
DIRECTIONS = 1  # their axis in what is made
SLICED_SINCE = 10  # opset: bounds of a Slice are inputs
FUNCTIONS, NUMBERS = "activations", ("activation_alpha", "activation_beta")
BEFORE_ALL = -(2**63) + 1  # where a slice that goes back ends, whatever the length


def ways_apart(cast: Recast, least_bytes: int, forbidden: frozenset[str]) -> Recast:
    """The model in which what goes both ways and takes so many bytes for itself goes one way after the other."""
    view = cast.view
    large = (op for op in cast.order if cast.costs[op].workspace_bytes >= least_bytes)
    taken = {op for op in large if view.graph.ops[op].name not in forbidden and goes_both_ways(view, op)}
    return taken_apart(cast, {op: op for op in taken}, _parts_forward)


def goes_both_ways(view: ModelView, op: int) -> bool:
    """Whether an op is a recurrent network that goes both ways, of which only the states of all steps are read."""
    spec, names = view.ops[op], view.makes[op]
    is_recurrent = spec.key == QUANTISED or rule_of(*spec.key).hands_on is not None
    if not is_recurrent or spec.text("direction", "forward") != "bidirectional" or not names[0]:
        return False
    is_plain = not spec.integer("layout", 0) and not spec.has_input(LENGTHS) and op not in view.of_value_lengths
    is_known = not any(name in spec.node.attributes for name in NUMBERS) and view.tensors[names[0]].dtype == "float"
    given = [place for place in range(1, len(spec.inputs)) if spec.has_input(place)]
    can_be_cut = all(spec.constant(place) is not None for place in given if place in (*WEIGHTS, *SCALES))
    if not all(spec.is_fixed(place) for place in given):
        can_be_cut = can_be_cut and view.model.graph.opset_imports.get(ONNX, 1) >= SLICED_SINCE
    kept = {value.name for value in view.model.graph.outputs}
    is_rest_unread = not any(view.readers.get(name) or name in kept for name in names[1:] if name)
    return is_plain and is_known and can_be_cut and is_rest_unread


def parts_of_ways(rewrite: Rewrite, op: int) -> Generator[Draft]:
    """The op for each way, and what both make, joined."""
    made, workspace_bytes = rewrite.view.makes[op][0], rewrite.cast.costs[op].workspace_bytes
    joined = [rewrite.name(f"{made}/{way}") for way in WAYS]
    for at, result in enumerate(joined):
        source = rewrite.view.reads[op][0]
        yield from _one_way(rewrite, op, _Way(at, source, result, WAYS[at], workspace_bytes // len(WAYS)))
    yield _joined(rewrite, op, joined)


def _parts_forward(rewrite: Rewrite, op: int) -> Generator[Draft]:
    """The same where the way back goes forward on what is turned round, and what it makes is turned round again."""
    view, made = rewrite.view, rewrite.view.makes[op][0]
    source = view.reads[op][0]
    if view.model.graph.opset_imports.get(ONNX, 1) < SLICED_SINCE:
        yield from parts_of_ways(rewrite, op)
        return
    turned_bytes = view.tensors[source].size_bytes + view.tensors[made].size_bytes // len(WAYS)
    workspace_bytes = max(rewrite.cast.costs[op].workspace_bytes - turned_bytes, 0) // len(WAYS)
    forward, back = (rewrite.name(f"{made}/{way}") for way in WAYS)
    yield from _one_way(rewrite, op, _Way(0, source, forward, WAYS[0], workspace_bytes))
    turned, result = rewrite.name(f"{source}/turned"), rewrite.name(f"{made}/turned")
    yield _turned(rewrite, op, source, turned)
    yield from _one_way(rewrite, op, _Way(1, turned, result, WAYS[0], workspace_bytes))
    yield _turned(rewrite, op, result, back)
    yield _joined(rewrite, op, [forward, back])


@dataclass(frozen=True)
class _Way:
    """One of both ways: which one, what it reads and makes, in which direction it goes, what it takes for itself."""

    at: int
    source: str
    result: str
    direction: str
    workspace_bytes: int


def _one_way(rewrite: Rewrite, op: int, going: _Way) -> Generator[Draft]:
    """Drafts of one way: what is of it taken out of what is of both, and the op."""
    view = rewrite.view
    spec, made, at, way = view.ops[op], view.makes[op][0], going.at, WAYS[going.at]
    reads = [going.source, *view.reads[op][1:]]
    for place in (place for place in range(1, len(reads)) if reads[place]):
        whole, name = spec.constant(place), reads[place]
        if whole is not None and spec.is_fixed(place):
            reads[place] = rewrite.constant(whole[at : at + 1], f"{name}/{way}")
        else:  # a state, or weights of which a caller may give others
            reads[place] = rewrite.name(f"{name}/{way}")
            result = reads[place]
            known = rewrite.types.get(name)
            if known is None:
                weight = rewrite.weights[name]
                known = TensorType(weight.dtype.name.lower(), tuple(weight.shape.numpy()))
            rewrite.types[result], rewrite.alike[result] = TensorType(known.dtype, (1, *known.shape[1:])), name
            bounds = ((at, "start"), (at + 1, "stop"), (0, "axis"))
            constants = (rewrite.constant(np.array([number], np.int64), f"{result}/{what}") for number, what in bounds)
            draft = rewrite.name(f"{result}/slice")
            rewrite.count(draft, op, 0)
            yield Draft(draft, "Slice", (name, *constants), (result,))
    steps, _, *rest = rewrite.types[made].shape
    rewrite.types[going.result], rewrite.alike[going.result] = TensorType("float", (steps, 1, *rest)), made
    changed: list[ir.Attr] = [ir.AttrString("direction", going.direction)]
    if FUNCTIONS in spec.node.attributes:
        names = spec.node.attributes[FUNCTIONS].as_strings()
        half = len(names) // len(WAYS)
        changed.append(ir.AttrStrings(FUNCTIONS, names[at * half : (at + 1) * half]))
    name, node = rewrite.name(f"{view.graph.ops[op].name}/{way}"), view.nodes[op]
    rewrite.count(name, op, rewrite.cast.costs[op].time_ns // len(WAYS), going.workspace_bytes)
    yield Draft(name, node.op_type, tuple(reads), (going.result,), node.domain, source=node, changed=tuple(changed))


def _joined(rewrite: Rewrite, op: int, parts: list[str]) -> Draft:
    """The draft that joins what both ways make."""
    own = rewrite.view.graph.ops[op].name
    rewrite.count(own, op, 0)
    made = rewrite.view.makes[op][0]
    return Draft(own, "Concat", tuple(parts), (made,), changed=(ir.AttrInt64("axis", DIRECTIONS),))


def _turned(rewrite: Rewrite, op: int, source: str, result: str) -> Draft:
    """The draft that puts the last step first."""
    rewrite.types[result], rewrite.alike[result] = rewrite.types[source], source
    bounds = ((-1, "last"), (BEFORE_ALL, "end"), (TIME, "axis"), (-1, "step"))
    constants = (rewrite.constant(np.array([number], np.int64), f"{result}/{what}") for number, what in bounds)
    name = rewrite.name(f"{result}/turn")
    rewrite.count(name, op, 0)
    return Draft(name, "Slice", (source, *constants), (result,))
