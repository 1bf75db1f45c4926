"""Regions of ops that run in tiles, for people: a line each after compiling, a table when inspecting."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.base.units import format_bytes
from remat_cli.core.budget import describe_bytes
from remat_cli.report.regions import RegionReport
from remat_cli.report.solution import SolutionReport
from remat_cli.report.style import columns, duration, percent, plural, shorten

MOST_ROWS = 12
MOST_NAMES, NAME_WIDTH = 4, 40
UNITS = {2: "rows", 3: "columns"}


def split_lines(regions: Sequence[RegionReport]) -> list[str]:
    """One line per region."""
    lines = [f"split  {_what(region)}: {_peaks(region)}{_estimated(region)}" for region in regions[:MOST_ROWS]]
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
    rows = [
        [
            str(number),
            _ops(region),
            _tiles(region),
            f"halo {_halo(region)}",
            _peaks(region),
            _cost(region),
        ]
        for number, region in enumerate(regions[:MOST_ROWS], 1)
    ]
    lines = [heading, *columns(rows, "><<<<<"), *_more(regions, "  ")]
    kept = [(number, region.kept) for number, region in enumerate(regions[:MOST_ROWS], 1) if region.kept]
    return [*lines, *(f"  {number}: rows of {_some(tensors)} are kept for the next tile" for number, tensors in kept)]


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many there are besides."""
    more = f" and {len(names) - MOST_NAMES} more tensors" if len(names) > MOST_NAMES else ""
    return ", ".join(shorten(name, NAME_WIDTH) for name in names[:MOST_NAMES]) + more


def obstacle_lines(obstacle: str | None, regions: Sequence[RegionReport]) -> list[str]:
    """Why splitting cannot help, or helps no more than the regions there are, where that is known."""
    if obstacle is None:
        return []
    return [f"{'splitting goes no further' if regions else 'splitting cannot help'}: {obstacle}"]


def _what(region: RegionReport) -> str:
    return f"{_ops(region)} into {_tiles(region)}, halo {_halo(region)}"


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


def _cost(region: RegionReport) -> str:
    """`+1.20 ms (+3.40 %)`."""
    added = region.time_after_ns - region.time_before_ns
    return f"{'-' if added < 0 else '+'}{duration(abs(added))} ({percent(region.overhead_percent)})"


def _estimated(region: RegionReport) -> str:
    return " (estimated)" if region.is_estimate else ""


def _more(regions: Sequence[RegionReport], indent: str) -> list[str]:
    left = len(regions) - MOST_ROWS
    return [f"{indent}and {plural(left, 'more region')}"] if left > 0 else []
