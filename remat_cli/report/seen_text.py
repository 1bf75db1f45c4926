"""What verification saw, as text: where runs were not as predicted, and what runs at other sizes held."""

from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes
from remat_cli.core.values.family import FamilySeen, told
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


def family_lines(seen: FamilySeen) -> list[str]:
    """How many sizes were run, whether bits were the same, what was held at most, and what stays resident."""
    most, same = seen.largest, sum(run.outputs_identical is True for run in seen.runs)
    original_bytes = most.original_peak_bytes
    original = "cannot be run here" if original_bytes is None else format_bytes(original_bytes)
    lines = [f"  other sizes: {len(seen.runs)} run in one session, outputs identical at {same} of them"]
    if any(run.compared_with != "original" for run in seen.runs):
        words = {"original": "with the original", "twin": "with other tiles", None: "with nothing"}
        for compared_with, words_told in words.items():
            sizes = [told(run.sizes) for run in seen.runs if run.compared_with == compared_with]
            if sizes:
                lines.append(f"    compared {words_told:<17} at {'; '.join(sizes)}")
    lines.append(
        f"    most held for runs        {format_bytes(most.peak_bytes)} at {told(most.sizes)} "
        f"(promised {format_bytes(seen.promised_bytes)}, the original {original})"
    )
    if seen.resident_bytes is not None and seen.resident_at_largest_bytes is not None:
        lines.append(
            f"    resident after all sizes  {format_bytes(seen.resident_bytes)}, "
            f"after the largest alone {format_bytes(seen.resident_at_largest_bytes)}"
        )
    return lines
