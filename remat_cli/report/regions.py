"""What splitting did, or would do, to each region of ops, as plain values for reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.splits import Region, RegionFacts, Splitting, regions_of_ops
from remat_cli.core.values.budget import describe_bytes
from remat_cli.report.style import columns, duration, percent, plural, shorten

if TYPE_CHECKING:
    from remat_cli.report.solution import SolutionReport

MOST_ROWS = 12
MOST_NAMES, NAME_WIDTH = 4, 40
UNITS = {2: "rows", 3: "columns"}


class RegionReport(msgspec.Struct, frozen=True, kw_only=True):
    """A region of ops that run tile by tile.

    `ops` are op names of the whole optimised model in execution order. `axis` is the one along which the first of
    `exits` (tensor names) is cut, `extent` how many positions it has along it, which the tiles share. `halo_percent` is
    the work done more than once, in estimated time; rows of the tensors in `kept` are not. Peaks are the most held
    while the region runs, all that lies beside it included. `steps` are the runs of steps of the written model that
    belong to it, first and last inclusive. With `is_estimate` nothing was split: the search expects this, and `steps`
    are those of the model as it is.
    """

    ops: tuple[str, ...]
    exits: tuple[str, ...]
    axis: int
    tiles: int
    extent: int
    halo_percent: float
    kept: tuple[str, ...]
    peak_before_bytes: int
    peak_after_bytes: int
    time_before_ns: int
    time_after_ns: int
    overhead_percent: float | None
    steps: tuple[tuple[int, int], ...] = ()
    is_estimate: bool = False


def region_report(region: Region, facts: RegionFacts) -> RegionReport:
    """One region with what splitting it does."""
    before, after = facts.time_before_ns, facts.time_after_ns
    return RegionReport(
        ops=region.ops,
        exits=region.exits,
        axis=region.axes[0],
        tiles=region.tiles,
        extent=facts.extent,
        halo_percent=facts.halo_percent,
        kept=region.kept,
        peak_before_bytes=facts.peak_before_bytes,
        peak_after_bytes=facts.peak_after_bytes,
        time_before_ns=before,
        time_after_ns=after,
        overhead_percent=100 * (after - before) / before if before else None,
    )


def region_reports(splitting: Splitting | None) -> tuple[RegionReport, ...]:
    """The regions of a split model; none where nothing was split."""
    if splitting is None:
        return ()
    return tuple(map(region_report, splitting.regions, splitting.facts))


def estimated_regions(
    regions: Sequence[Region], facts: Sequence[RegionFacts], graph: Graph
) -> tuple[RegionReport, ...]:
    """Regions that the search proposes for a whole model, with what it expects of them."""
    found = []
    for region, expected in zip(regions, facts, strict=True):
        inside = set(region.ops)
        steps = _runs([0 if op.name in inside else None for op in graph.ops], 0)
        found.append(msgspec.structs.replace(region_report(region, expected), steps=steps, is_estimate=True))
    return tuple(found)


def planned_regions(file: PlanFile) -> tuple[RegionReport, ...]:
    """The regions of a plan, each with the steps of the written model that run its tiles."""
    if file.splitting is None:
        return ()
    # The region of every step of the written model; gates count to what runs next.
    owners, gates = regions_of_ops(file.splitting, file.graph), set(file.promise.gates)
    ops = iter(file.schedule.op_ids())
    planned = [None if name in gates else owners[next(ops)] for name in file.promise.order]
    following: int | None = None
    found = []
    for name, region in zip(reversed(file.promise.order), reversed(planned), strict=True):
        following = following if name in gates else region
        found.append(following)
    numbers = found[::-1]
    return tuple(
        msgspec.structs.replace(region, steps=_runs(numbers, number))
        for number, region in enumerate(region_reports(file.splitting))
    )


def step_times_ns(file: PlanFile) -> tuple[int, ...]:
    """How long each step of the written model takes; gates take none worth counting."""
    gates, ops = set(file.promise.gates), iter(file.schedule.op_ids())
    return tuple(0 if name in gates else file.profile.ops[next(ops)].time_ns for name in file.promise.order)


def _runs(numbers: Sequence[int | None], wanted: int) -> tuple[tuple[int, int], ...]:
    """Stretches of equal numbers: first and last place of each."""
    padded = [None, *numbers, None]
    firsts = [step for step in range(len(numbers)) if padded[step] != wanted == padded[step + 1]]
    lasts = [step for step in range(len(numbers)) if padded[step + 2] != wanted == padded[step + 1]]
    return tuple(zip(firsts, lasts, strict=True))


def split_lines(regions: Sequence[RegionReport]) -> list[str]:
    """One line per region."""
    lines = []
    for region in regions[:MOST_ROWS]:
        estimated = " (estimated)" if region.is_estimate else ""
        edges = f"{_halo(region)} work at their edges"
        lines.append(f"split  {_ops(region)} into {_tiles(region)}, {edges}: {_peaks(region)}{estimated}")
    return lines + _more(regions, "split  ")


def floor_lines(regions: Sequence[RegionReport], solution: SolutionReport) -> list[str]:
    """The floor of whole ops beside that with splitting, where something was split or the latter is known."""
    with_splitting = solution.floor_with_splitting_bytes
    if not regions and with_splitting is None:
        return []
    below = "unknown" if with_splitting is None else describe_bytes(with_splitting)
    return [f"floor  {describe_bytes(solution.floor_bytes)} for whole ops, {below} with splitting"]


def region_lines(regions: Sequence[RegionReport]) -> list[str]:
    """A table of regions under a heading; nothing where there are none."""
    if not regions:
        return []
    is_estimate = any(region.is_estimate for region in regions)
    heading = "splits that `remat compile` may make, estimated:" if is_estimate else "ops that run in tiles:"
    rows = []
    for number, region in enumerate(regions[:MOST_ROWS], 1):
        added = region.time_after_ns - region.time_before_ns
        cost = f"{'-' if added < 0 else '+'}{duration(abs(added))} ({percent(region.overhead_percent)})"
        rows.append([str(number), _ops(region), _tiles(region), f"halo {_halo(region)}", _peaks(region), cost])
    lines = [heading, *columns(rows, "><<<<<"), *_more(regions, "  ")]
    for number, region in enumerate(regions[:MOST_ROWS], 1):
        names = ", ".join(shorten(name, NAME_WIDTH) for name in region.kept[:MOST_NAMES])
        more = f" and {len(region.kept) - MOST_NAMES} more tensors" if len(region.kept) > MOST_NAMES else ""
        if region.kept:
            lines.append(f"  {number}: rows of {names}{more} are kept for the next tile")
    return [*lines, "  halo: what is computed again, as neighbouring tiles need the rows at their edges too"]


def obstacle_lines(obstacle: str | None, regions: Sequence[RegionReport]) -> list[str]:
    """Why splitting cannot help, or helps no more than the regions there are, where that is known."""
    if obstacle is None:
        return []
    return [f"{'splitting goes no further' if regions else 'splitting cannot help'}: {obstacle}"]


def _ops(region: RegionReport) -> str:
    """`7 ops conv1..pool1`."""
    first, last = shorten(region.ops[0], 24), shorten(region.ops[-1], 24)
    return f"{plural(len(region.ops), 'op')} {first}" + (f"..{last}" if len(region.ops) > 1 else "")


def _tiles(region: RegionReport) -> str:
    """`8 tiles of 14 rows (axis 2)`; the last tiles may be one row smaller."""
    most = -(-region.extent // region.tiles)
    up_to = "up to " if region.extent % region.tiles else ""
    unit = UNITS.get(region.axis, "positions")
    return f"{region.tiles} tiles of {up_to}{most} {unit[:-1] if most == 1 else unit} (axis {region.axis})"


def _halo(region: RegionReport) -> str:
    return f"{region.halo_percent:+.1f} %"


def _peaks(region: RegionReport) -> str:
    return f"{format_bytes(region.peak_before_bytes)} -> {format_bytes(region.peak_after_bytes)}"


def _more(regions: Sequence[RegionReport], indent: str) -> list[str]:
    left = len(regions) - MOST_ROWS
    return [f"{indent}and {plural(left, 'more region')}"] if left > 0 else []
