"""What splitting did, or would do, to each region of ops, as plain values for reports."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remat_cli.core.graph import Graph
from remat_cli.core.plan_file import PlanFile
from remat_cli.core.splits import Region, RegionFacts, Splitting, regions_of_ops


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
    numbers = _region_of_steps(file, file.splitting)
    return tuple(
        msgspec.structs.replace(region, steps=_runs(numbers, number))
        for number, region in enumerate(region_reports(file.splitting))
    )


def step_times_ns(file: PlanFile) -> tuple[int, ...]:
    """How long each step of the written model takes; gates take none worth counting."""
    gates, ops = set(file.promise.gates), iter(file.schedule.op_ids())
    return tuple(0 if name in gates else file.profile.ops[next(ops)].time_ns for name in file.promise.order)


def _region_of_steps(file: PlanFile, splitting: Splitting) -> list[int | None]:
    """The region of every step of the written model; gates count to what runs next."""
    owners, gates = regions_of_ops(splitting, file.graph), set(file.promise.gates)
    ops = iter(file.schedule.op_ids())
    planned = [None if name in gates else owners[next(ops)] for name in file.promise.order]
    following: int | None = None
    found = []
    for name, region in zip(reversed(file.promise.order), reversed(planned), strict=True):
        following = following if name in gates else region
        found.append(following)
    return found[::-1]


def _runs(numbers: Sequence[int | None], wanted: int) -> tuple[tuple[int, int], ...]:
    """Stretches of equal numbers: first and last place of each."""
    padded = [None, *numbers, None]
    firsts = [step for step in range(len(numbers)) if padded[step] != wanted == padded[step + 1]]
    lasts = [step for step in range(len(numbers)) if padded[step + 2] != wanted == padded[step + 1]]
    return tuple(zip(firsts, lasts, strict=True))
