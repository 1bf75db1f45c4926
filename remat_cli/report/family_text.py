"""What runs at several sizes showed, in a few lines."""

from remat_cli.base.units import format_bytes
from remat_cli.core.values.family import FamilySeen, told


def family_lines(seen: FamilySeen) -> list[str]:
    """How many sizes were run, whether bits were the same, what was held at most, and what stays resident."""
    most, same = seen.largest, sum(run.outputs_identical for run in seen.runs)
    lines = [
        f"  other sizes: {len(seen.runs)} run in one session, outputs identical at {same} of them",
        f"    most held for runs        {format_bytes(most.peak_bytes)} at {told(most.sizes)} "
        f"(promised {format_bytes(seen.promised_bytes)}, the original {format_bytes(most.original_peak_bytes)})",
    ]
    if seen.resident_bytes is not None and seen.resident_at_largest_bytes is not None:
        lines.append(
            f"    resident after all sizes  {format_bytes(seen.resident_bytes)}, "
            f"after the largest alone {format_bytes(seen.resident_at_largest_bytes)}"
        )
    return lines
