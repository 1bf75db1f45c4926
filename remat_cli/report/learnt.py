"""What runs of a plan showed otherwise than predicted, as text."""

from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes
from remat_cli.core.values.verification import Learning
from remat_cli.report.style import plural, shorten


def learnt_lines(learning: Learning) -> list[str]:
    """Where runs were not as predicted, and what was done about it; nothing where the first prediction was right."""
    if not learning.learnt:
        return []
    lines = [f"  planned again {plural(learning.rounds, 'time')}, because runs showed:"]
    for one in learning.learnt:
        figures = f"{format_bytes(one.measured_bytes)}, not {format_bytes(one.predicted_bytes)}"
        kept = "; kept for ops of this kind" if one.is_corrected else ""
        lines.append(f"    {shorten(one.op, 40)} ({one.op_type}), {one.session} session: {one.cause}, {figures}{kept}")
    if learning.room_bytes:
        lines.append(f"    room left in the budget for the rest: {describe_bytes(learning.room_bytes)}")
    return lines
