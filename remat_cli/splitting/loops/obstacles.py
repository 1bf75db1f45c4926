"""Explains in one line why loops do not make a model of many sizes small enough: what is whole, and for which op."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.base.units import format_bytes
from remat_cli.core.values.sizes import Dim
from remat_cli.splitting.loops.handed import ops_in_turn
from remat_cli.splitting.loops.loop_estimate import LoopEstimate
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView
from remat_cli.splitting.loops.windows.along import reads_along
from remat_cli.splitting.rules.recurrent import TIME
from remat_cli.splitting.rules.table import NO_RULE

MOST_NAMED = 3  # tensors
LEAST_SHARE = 0.1  # of the largest one: what is smaller is not what is in the way


def what_is_whole(estimate: LoopEstimate) -> str | None:
    """What is held when most is, and why the largest of that is whole; None where nothing is but model inputs."""
    sized, held = estimate.sized, estimate.held_at_peak
    made = [name for name in held if name in sized.makers and held[name]]
    largest = sorted(made, key=lambda name: (-held[name], name))[:MOST_NAMED]
    largest = [name for name in largest if held[name] >= LEAST_SHARE * held[largest[0]]]
    at_peak = estimate.loop_at_peak
    tile_bytes = 0 if at_peak is None else estimate.body_bytes(at_peak)
    if at_peak is not None and tile_bytes > max((held[name] for name in largest), default=0):
        first = _named(sized, min(estimate.regions[at_peak].own))
        return f"even in loops, {format_bytes(tile_bytes)} are in one tile of the loop that begins with {first}"
    for name in largest:
        reason = why_whole(sized, estimate.regions, name)
        if reason is not None:
            return f"'{name}' ({format_bytes(held[name])}) must exist whole: {reason}"
    parts = ", ".join(f"{format_bytes(held[name])} of '{name}'" for name in largest)
    return f"even in loops, {parts} are there at once" if largest else None


def why_whole(sized: SizedView, regions: Sequence[LoopRegion], name: str) -> str | None:
    """Why no loop cuts a tensor; None where each op around it runs in one, or could together with the others."""
    view = sized.view
    if name in sized.kept:
        return "it is a model output"
    if not any(dim.terms for dim in sized.dims.get(name, ())):
        return "none of its lengths varies"
    inside = set[int]().union(*(region.ops for region in regions))
    maker, *readers = around = [sized.makers[name], *view.readers[name]]
    ways = {op: lengths_along(sized, op) for op in around if op not in inside}
    whole = next((op for op, lengths in ways.items() if not lengths), None)
    if whole is not None:
        doing = "makes all of it at once" if whole == maker else "reads all of it"
        return f"{_named(sized, whole)} {doing}{_why_uncut(sized, whole)}"
    other = next((op for op in readers if op in ways and maker in ways and not ways[op] & ways[maker]), None)
    if other is None:
        return None
    told = [
        f"{_named(sized, op)} runs in parts along {' or '.join(sorted(map(str, ways[op])))}" for op in (maker, other)
    ]
    return f"{told[0]}, {told[1]} only"


def lengths_along(sized: SizedView, op: int) -> set[Dim]:
    """Lengths that vary along which tiles are the same op on parts, at the largest sizes."""
    made = next((name for name in sized.view.makes[op] if name), "")
    axes = sized.axes_of(made) if made in sized.view.tensors else []
    found = {length for length, axis in axes if sized.needs(op, axis, length) is not None}
    found |= {sized.dims[made][TIME]} if op in ops_in_turn(sized) else set()
    return found | {length for length, axis in axes if axis and reads_along(sized, op, axis) is not None}


def _named(sized: SizedView, op: int) -> str:
    node = sized.view.graph.ops[op]
    return f"op '{node.name}' ({node.op_type})"


def _why_uncut(sized: SizedView, op: int) -> str:
    """Why an op runs in no parts, as the end of a sentence."""
    rule, why_not, spec = sized.view.rules[op], sized.view.facts[op].why_not_repeatable, sized.view.ops[op]
    if op in sized.view.of_value_lengths:
        return ": its length depends on values"
    if why_not or rule.whole_in_loops:
        return f": {why_not or rule.whole_in_loops}"
    if rule is NO_RULE:
        return ", and nothing is known of parts of it"
    auto_pad = spec.text("auto_pad", "NOTSET")
    if auto_pad.startswith("SAME"):
        return f": how it pads by auto_pad={auto_pad} depends on the size"
    return ": along no length that varies are its parts proved to have the same bits"
