"""Explains in one line why splitting cannot lower the peak far enough."""

from collections import defaultdict
from dataclasses import dataclass, replace

from remat_cli.base.units import format_bytes
from remat_cli.core.schedule.graph import Op
from remat_cli.core.values.told_names import OWN_NAMES, ToldNames
from remat_cli.splitting.bands.band_search import BandCandidate
from remat_cli.splitting.bands.bands import most_cut
from remat_cli.splitting.recast.dynamic import has_range
from remat_cli.splitting.recast.norms import can_be_apart
from remat_cli.splitting.recast.resize import bilinear
from remat_cli.splitting.recast.steps import comes_in_steps
from remat_cli.splitting.rules.table import slice_op
from remat_cli.splitting.tiles.estimate import held_at_peak
from remat_cli.splitting.tiles.op_view import Slab
from remat_cli.splitting.tiles.steps import op_of, results_of
from remat_cli.splitting.tiles.timeline import TensorTimeline, owner_of
from remat_cli.splitting.tiles.view import ModelView

MOST_NAMED = 3  # tensors
WITH_SAME_BITS, LOOSE = " so that its bits stay the same", "--allow-reassociation cuts it into more"
MOST_PARTS = 4  # into which an op that can be cut at all mostly can
WORKSPACE_SHARE = 0.4  # of the peak, from which on it is what matters


@dataclass(frozen=True)
class SplitObstacle:
    """One line that names the reason; `is_final` where no splitting of these kinds whatever could get around it.

    `op`: the op that is the reason, where one is; of a model that has no such op it says nothing. `is_of_ops`: whether
    cutting the ops that the runtime made it of would get around it.
    """

    text: str
    is_final: bool
    op: int | None = None
    is_of_ops: bool = True


def explain(
    timeline: TensorTimeline,
    position: int | None,
    floor_op: int | None,
    free_bytes: int,
    banded: BandCandidate | None = None,
    names: ToldNames = OWN_NAMES,
) -> SplitObstacle | None:
    """Explains what stands in the way of `free_bytes` (fixed part left out).

    `position` is the step at which the search for regions was stuck, `floor_op` the op that whole ops cannot do
    without, `banded` the smallest model in bands, None where either is not known. Ops and tensors are told by `names`.
    """
    view = timeline.view
    return (
        _outputs(view, free_bytes, names)
        or (None if floor_op is None else _op(view, floor_op, free_bytes, names))
        or (None if banded is None or banded.cost.peak_bytes <= free_bytes else _in_bands(banded, names))
        or (None if position is None else _step(timeline, position, names))
    )


def is_cuttable(view: ModelView, op: int) -> bool:
    """Whether there is an axis along which the op can be cut, or it can be written in ops that can."""
    if can_be_apart(view, op) or has_range(view, op) or bilinear(view, op) is not None or comes_in_steps(view, op):
        return True
    shape = next((shape for shape in view.ops[op].outputs if shape is not None), ())
    # some half, third or quarter of the output can be made by itself
    parts = (Slab(axis, 0, size // count) for axis, size in enumerate(shape) for count in (2, 3, 4) if size >= count)
    return any(view.slice(op, part) is not None for part in parts)


def _outputs(view: ModelView, free_bytes: int, names: ToldNames) -> SplitObstacle | None:
    """Outputs that are more than fits, or one that is while it is made: by its op, or by joining parts as large."""
    kept = [tensor for tensor in view.graph.tensors if tensor.kept]
    if not kept:
        return None
    largest = max(kept, key=lambda tensor: tensor.size_bytes)
    named = f"'{names.tensor(largest.name)}' ({format_bytes(largest.size_bytes)}) is a model output"
    total = sum(tensor.size_bytes for tensor in kept)
    if total > free_bytes:
        one = f"{named} and must exist whole"
        several = f"the model's {len(kept)} outputs are {format_bytes(total)} and are all there at the end"
        return SplitObstacle(one if largest.size_bytes > free_bytes else several, is_final=True)
    maker = largest.producer
    if maker is None:
        return None
    at_once = min(_working_set(view, maker), 2 * largest.size_bytes)
    if at_once <= free_bytes:
        return None
    node = view.graph.ops[maker]
    return SplitObstacle(
        f"{named}: it exists beside what {_told(node, names)} makes it from, or beside the tiles it is "
        f"joined of, {format_bytes(at_once)} at once",
        is_final=True,
        op=maker,
        is_of_ops=False,
    )


def _op(view: ModelView, op: int, free_bytes: int, names: ToldNames) -> SplitObstacle | None:
    """An op that does not fit and cannot be cut."""
    name, size = _largest(view, op)
    if not name or is_cuttable(view, op) or _working_set(view, op) <= free_bytes:
        return None
    node = view.graph.ops[op]
    named = f"'{names.tensor(name)}' ({format_bytes(size)})"
    if op in view.of_value_lengths:
        does, whose = ("made", "its length") if name in view.makes[op] else ("read", "the length of what it makes")
        text = f"{named} is {does} whole by {_told(node, names)}: {whose} depends on values"
        return SplitObstacle(text, is_final=False, op=op)
    condition = "" if view.may_reassociate else WITH_SAME_BITS
    return SplitObstacle(
        f"{named} must exist whole: {_told(node, names)} cannot be cut{condition}",
        is_final=True,
        op=op,
    )


def _in_bands(banded: BandCandidate, names: ToldNames) -> SplitObstacle | None:
    """What is held when most is, in the model that holds least in bands; by name what an op reads whole."""
    view = banded.cast.view
    lasting = frozenset(tensor.name for tensor in view.graph.tensors if tensor.kept)
    index, held = held_at_peak(view, banded.cast.costs, banded.steps, lasting)
    doing = op_of(view, banded.steps[index])
    workspace = banded.cast.costs[doing].workspace_bytes
    if workspace > WORKSPACE_SHARE * banded.cost.peak_bytes:
        return _inside(view, doing, workspace, names)
    sums: dict[str, int] = defaultdict(int)
    tensors = {piece.name: piece.tensor for step in banded.steps for piece in results_of(step)}
    for name, size in held.items():
        sums[tensors.get(name, name)] += size
    most = sorted(sums, key=lambda name: sums[name], reverse=True)[:MOST_NAMED]
    if not most:
        return None
    reader = next(
        (op for op in view.readers[most[0]] if op not in banded.banding.group and not is_cuttable(view, op)), None
    )
    if most[0] in held and reader is not None:
        op = view.graph.ops[reader]
        return SplitObstacle(
            f"'{names.tensor(most[0])}' ({format_bytes(held[most[0]])}) must exist whole: "
            f"{_told(op, names)} reads all of it",
            is_final=False,
        )
    parts = ", ".join(f"{format_bytes(sums[name])} of '{names.tensor(name)}'" for name in most)
    return SplitObstacle(
        f"even in bands, {parts} are there at once, while op '{names.op(view.graph.ops[doing].name)}' runs"
        + _bits(view, doing),
        is_final=False,
    )


def _bits(view: ModelView, op: int) -> str:
    """What would be had if bits need not be the same, where an op is cut into few parts only so that they are."""
    most = parts_with_same_bits(view, op)
    if most is None:
        return ""
    cut = f"is cut into at most {most} parts" if most > 1 else "is not cut"
    return f", which {cut}{WITH_SAME_BITS}: {LOOSE}"


def parts_with_same_bits(view: ModelView, op: int) -> int | None:
    """Into how many parts an op can be cut with the same bits, if there are few and with other bits there are more.

    Only parts that read a part of the largest tensor that it reads are counted.
    """
    reads = [name for name in view.reads[op] if name in view.tensors]
    if view.may_reassociate or op in view.of_value_lengths or not reads:
        return None
    largest = view.reads[op].index(max(reads, key=lambda name: view.tensors[name].size_bytes))
    loose, most, more = replace(view.ops[op], may_reassociate=True), 1, 1
    for axis, extent in enumerate(loose.output_shape):
        slabs = (Slab(axis, at * extent // MOST_PARTS, (at + 1) * extent // MOST_PARTS) for at in range(MOST_PARTS))
        cut = [slice_op(loose, slab) for slab in slabs] if extent >= MOST_PARTS else []
        if cut and all(each is not None and each.needs[largest] is not None for each in cut):
            most, more = max(most, most_cut(view, op, axis, MOST_PARTS + 1)), MOST_PARTS
    return most if most < more else None


def _step(timeline: TensorTimeline, position: int, names: ToldNames) -> SplitObstacle | None:
    """A step that no region found makes small enough."""
    view, op = timeline.view, timeline.order[position]
    beside_bytes = timeline.surroundings(position, position + 1).context_bytes + _working_set(view, op)
    inside_bytes = timeline.memory_bytes[position] - beside_bytes
    if inside_bytes > WORKSPACE_SHARE * timeline.memory_bytes[position]:
        return _inside(view, op, inside_bytes, names)
    name, size = _largest(view, op)
    node = view.graph.ops[op]
    if not name:
        return None
    if is_cuttable(view, op):
        reason = f"was in no region that fits{_bits(view, op)}"
    elif parts_with_same_bits(view, op) is not None:
        reason = f"cannot be cut{WITH_SAME_BITS}: {LOOSE}"
    else:
        reason = "cannot be cut"
    return SplitObstacle(
        f"'{names.tensor(name)}' ({format_bytes(size)}) is too large, and {_told(node, names)} {reason}",
        False,
    )


def _inside(view: ModelView, op: int, count: int, names: ToldNames) -> SplitObstacle:
    """An op that takes much while it runs, as a kernel for its own use, or as the ops of a body."""
    node = view.graph.ops[op]
    return SplitObstacle(
        f"{_told(node, names)} takes {format_bytes(count)} of workspace besides its tensors",
        False,
    )


def _told(op: Op, names: ToldNames) -> str:
    return f"op '{names.op(op.name)}' ({op.op_type})"


def _largest(view: ModelView, op: int) -> tuple[str, int]:
    """The largest tensor an op reads or makes; model inputs are the caller's."""
    spec = view.graph.ops[op]
    tensors = [view.graph.tensors[i] for i in (*spec.inputs, *spec.outputs)]
    made = [tensor for tensor in tensors if tensor.producer is not None]
    largest = max(made, key=lambda tensor: tensor.size_bytes, default=None)
    return ("", 0) if largest is None else (largest.name, largest.size_bytes)


def _working_set(view: ModelView, op: int) -> int:
    """What an op must hold at least: what it reads, and of what it makes only what no input's storage can take."""
    spec, tensors = view.graph.ops[op], view.graph.tensors
    shared = {result for _, result in spec.in_place}
    held = (*spec.inputs, *(i for i in spec.outputs if i not in shared))
    owners = {owner.name: owner for i in held if (owner := owner_of(view, tensors[i].name)).producer is not None}
    return sum(owner.size_bytes for owner in owners.values())
