"""Recurrent networks that go both ways through time, as one that goes forward and one that goes back.

Measured with ONNX Runtime 1.32.0 (1, 2 and 4 threads; up to 300 steps of 1, 2 and 4 items): both have the bits that the
one op gives. It holds the gates of both ways at once, and cannot run some steps at a time.
"""

from collections.abc import Generator

import numpy as np
import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.op_facts import ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Rewrite
from remat_cli.splitting.rules.table import rule_of
from remat_cli.splitting.tiles.view import ModelView

WAYS = ("forward", "reverse")
LENGTHS, WEIGHTS = 4, (1, 2, 3, 7)  # inputs
DIRECTIONS = 1  # their axis in what is made
SLICED_SINCE = 10  # opset: bounds of a Slice are inputs
FUNCTIONS, NUMBERS = "activations", ("activation_alpha", "activation_beta")


def goes_both_ways(view: ModelView, op: int) -> bool:
    """Whether an op is a recurrent network that goes both ways, of which only the states of all steps are read."""
    spec, names = view.ops[op], view.makes[op]
    if rule_of(*spec.key).hands_on is None or spec.text("direction", "forward") != "bidirectional" or not names[0]:
        return False
    is_plain = not spec.integer("layout", 0) and not spec.has_input(LENGTHS) and op not in view.of_value_lengths
    is_known = not any(name in spec.node.attributes for name in NUMBERS) and view.tensors[names[0]].dtype == "float"
    given = [place for place in range(1, len(spec.inputs)) if spec.has_input(place)]
    can_be_cut = all(spec.constant(place) is not None for place in given if place in WEIGHTS)
    if not all(spec.is_packed(place) for place in given):
        can_be_cut = can_be_cut and view.model.graph.opset_imports.get(ONNX, 1) >= SLICED_SINCE
    kept = {value.name for value in view.model.graph.outputs}
    is_rest_unread = not any(view.readers.get(name) or name in kept for name in names[1:] if name)
    return is_plain and is_known and can_be_cut and is_rest_unread


def parts_of_ways(rewrite: Rewrite, op: int) -> Generator[Draft]:
    """The op for each way, and what both make, joined."""
    view, cost = rewrite.view, rewrite.cast.costs[op]
    spec, own, made = view.ops[op], view.graph.ops[op].name, view.makes[op][0]
    steps, _, *rest = rewrite.types[made].shape
    joined = list[str]()
    for at, way in enumerate(WAYS):
        reads = list(view.reads[op])
        for place in (place for place in range(1, len(reads)) if reads[place]):
            whole, source = spec.constant(place), reads[place]
            if whole is not None and spec.is_packed(place):
                reads[place] = rewrite.constant(whole[at : at + 1], f"{source}/{way}")
            else:  # a state, or weights of which a caller may give others
                reads[place] = rewrite.name(f"{source}/{way}")
                yield _part_of(rewrite, op, source, reads[place], at)
        joined.append(rewrite.name(f"{made}/{way}"))
        rewrite.types[joined[-1]] = TensorType("float", (steps, 1, *rest))
        rewrite.alike[joined[-1]] = made
        changed: list[ir.Attr] = [ir.AttrString("direction", way)]
        if FUNCTIONS in spec.node.attributes:
            names = spec.node.attributes[FUNCTIONS].as_strings()
            half = len(names) // len(WAYS)
            changed.append(ir.AttrStrings(FUNCTIONS, names[at * half : (at + 1) * half]))
        name = rewrite.name(f"{own}/{way}")
        rewrite.count(name, op, cost.time_ns // len(WAYS), cost.workspace_bytes // len(WAYS))
        node = view.nodes[op]
        yield Draft(name, node.op_type, tuple(reads), (joined[-1],), source=node, changed=tuple(changed))
    rewrite.count(own, op, 0)
    yield Draft(own, "Concat", tuple(joined), (made,), changed=(ir.AttrInt64("axis", DIRECTIONS),))


def _part_of(rewrite: Rewrite, op: int, source: str, result: str, at: int) -> Draft:
    """The draft that takes what is of one way out of what is of both."""
    known = rewrite.types.get(source)
    shape = tuple(rewrite.weights[source].shape.numpy()) if known is None else known.shape
    rewrite.types[result], rewrite.alike[result] = TensorType("float", (1, *shape[1:])), source
    bounds = ((at, "start"), (at + 1, "stop"), (0, "axis"))
    constants = (rewrite.constant(np.array([number], np.int64), f"{result}/{what}") for number, what in bounds)
    name = rewrite.name(f"{result}/slice")
    rewrite.count(name, op, 0)
    return Draft(name, "Slice", (source, *constants), (result,))
