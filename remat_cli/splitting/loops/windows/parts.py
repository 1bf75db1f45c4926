"""How one op runs in tiles of windows: as its rule says of a slab, but so that all tiles of a kind are the same op.

Where an op ends depends on the size: the last tile reads to the end of what there is, and leaves what the whole leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from remat_cli.base.present import present
from remat_cli.splitting.loops.loop_regions import SizedView, counts_on, is_reshape_on_parts
from remat_cli.splitting.loops.windows.forms import ROWS, relabels_blocks
from remat_cli.splitting.rules.pointwise import first_input, is_in_packets
from remat_cli.splitting.rules.record import ElementKind
from remat_cli.splitting.rules.table import rule_of, slice_op
from remat_cli.splitting.rules.window import kernel_of, windows_of
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, of_first

STARTS, ENDS, AXES = 1, 2, 3


def sliced_part(sized: SizedView, op: int, slab: Slab, at: OpView | None = None) -> Sliced | None:
    """An op cut down to a slab; `at` is the op with the shapes of some sizes, for which its bits are to be proved."""
    view, spec = sized.view, sized.view.ops[op] if at is None else at
    if relabels_blocks(spec, any(name in view.blocked for name in (*view.reads[op], *view.makes[op]) if name)):
        return of_first(spec, slab, slab)
    if sized.view.rules[op].elements is ElementKind.PACKETS and (at is None or op in sized.longer):
        return first_input(spec, slab) if at is None or is_in_packets(spec) else None
    sliced = slice_op(spec, slab)
    return None if sliced is None else AS_PARTS.get(spec.key, _as_window)(spec, slab, sliced)


def _as_frames(spec: OpView, slab: Slab, sliced: Sliced) -> Sliced:
    """STFT: the last frames leave what is too short for one more, as the whole does."""
    return _to_end(spec, sliced) if slab.axis == 1 and slab.stop == spec.output_shape[1] else sliced


def _to_end(spec: OpView, sliced: Sliced) -> Sliced:
    """The last part of an op that leaves what is too short for one more position, as the whole does."""
    need = present(sliced.needs[0], "a slab of what a window reads")
    return replace(sliced, needs=(need._replace(stop=spec.input_shape(0)[need.axis]), *sliced.needs[1:]))


def _as_window(spec: OpView, slab: Slab, sliced: Sliced) -> Sliced:
    """The last rows of an op with windows: it reads to the end, and pads there as the whole does.

    How many rows no window looks at, there or in the padding, depends on the size; there are as many windows.
    """
    is_last = slab.stop == spec.output_shape[slab.axis]
    if not is_last or not rule_of(*spec.key).has_windows or "pads" not in sliced.attributes:
        return sliced
    pads, place = sliced.attributes["pads"], slab.axis - ROWS
    assert isinstance(pads, tuple)
    after = windows_of(spec, kernel_of(spec))[place].after
    changed = tuple(int(after if at == len(pads) // 2 + place else pad) for at, pad in enumerate(pads))
    return replace(_to_end(spec, sliced), attributes={**sliced.attributes, "pads": changed})


def _as_slice(spec: OpView, slab: Slab, sliced: Sliced) -> Sliced:
    """A Slice of which an inner part takes all that it is given, the first one begins, and the last ends, as the whole.

    The bounds that a rule says are numbers of rows, which differ from tile to tile.
    """
    need, ends, starts = sliced.needs[0], sliced.constants.get(ENDS), sliced.constants.get(STARTS)
    whole_ends, axes = spec.constant(ENDS), _axes_of(spec)
    if need is None or starts is None or ends is None or whole_ends is None or slab.axis not in axes:
        return sliced
    place, length = axes.index(slab.axis), spec.input_shape(0)[slab.axis]
    most = np.iinfo(np.dtype(ends.dtype.str)).max
    starts, ends = starts.copy(), ends.copy()
    ends[place] = most
    if slab.stop == spec.output_shape[slab.axis]:
        end = int(whole_ends.ravel()[place])
        if 0 <= end < length:
            return sliced  # an end that is counted from the front is another row from the back at each size
        ends[place] = end if end < 0 else most
        need = need._replace(stop=length)
    if slab.start == 0:
        starts[place], need = need.start, need._replace(start=0)
    return replace(sliced, needs=(need, *sliced.needs[1:]), constants={**sliced.constants, STARTS: starts, ENDS: ends})


def _as_reshape(spec: OpView, slab: Slab, sliced: Sliced) -> Sliced:
    """A Reshape whose shape leaves the length open is the same op on a part."""
    is_same = bool(sliced.constants) and is_reshape_on_parts(spec, sliced)
    return replace(sliced, constants={}) if is_same else sliced


def _as_count(spec: OpView, slab: Slab, sliced: Sliced) -> Sliced:
    """A count of places begins and ends where the tile does."""
    return replace(sliced, constants={}) if counts_on(spec, sliced) else sliced


def _axes_of(spec: OpView) -> tuple[int, ...]:
    axes = spec.constant(AXES) if spec.has_input(AXES) else np.arange(spec.input_shape(STARTS)[0])
    rank = len(spec.input_shape(0))
    return () if axes is None else tuple(int(axis) % rank for axis in axes.ravel())


AS_PARTS: Mapping[tuple[str, str], Callable[[OpView, Slab, Sliced], Sliced]] = {
    ("", "STFT"): _as_frames,
    ("", "Slice"): _as_slice,
    ("", "Reshape"): _as_reshape,
    ("", "Range"): _as_count,
}
