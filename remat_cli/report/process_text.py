"""What a process holds, as a table for people: before and after, while loading, in the first run, and later."""

from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes
from remat_cli.core.values.resident import ProcessMemory, ProcessSeen, RunsForecast
from remat_cli.report.style import columns, percent, shorten


def process_lines(seen: ProcessSeen) -> list[str]:
    """Resident memory of both models, measured, beside the prediction for the new one."""
    after, told = (_figures(memory) for memory in (seen.rewritten, seen.predicted))
    before: tuple[int | None, ...] = (None,) * len(after) if seen.original is None else _figures(seen.original)
    rows = [["process memory, measured", "before", "after", "change", "predicted"]]
    for name, old, new, predicted in zip(NAMES, before, after, told, strict=True):
        change = percent(100 * (new - old) / old) if old is not None and old > 0 else ""
        was = "not run" if old is None else format_bytes(max(0, old))
        rows.append([name, was, format_bytes(max(0, new)), change, format_bytes(predicted)])
    rows[-1][3] = ""
    lines = columns(rows, "<>>>>")
    if seen.budget_bytes is not None:
        lines.append(f"the process needs {describe_bytes(seen.needed_bytes)}, inputs included")
    if (limited := seen.limited) is not None:
        # Both under one limit of the operating system; where that tells nothing of either, so it says.
        fate = {True: f"runs {limited.runs} times", False: "dies"}
        ended = f" ({shorten(limited.ended, MOST_CHARACTERS)})" if limited.ended and not limited.original else ""
        size = f"a hard limit of {format_bytes(limited.limit_bytes)} ({limited.kind})"
        if limited.ours or limited.original:
            told_fates = f"this model {fate[limited.ours]}, the original {fate[limited.original]}"
            lines.append(f"under {size} {told_fates}{ended}")
        else:
            counted = COUNTS.get(limited.kind, "")
            lines.append(f"{size} showed nothing: neither model runs under it{counted}{ended}")
    return lines


def pair_lines(original: ProcessMemory, rewritten: ProcessMemory) -> list[str]:
    """Resident memory of both models, measured."""
    rows = [["process memory, measured", "original", "this model", "change"]]
    for name, old, new in zip(NAMES, _figures(original), _figures(rewritten), strict=True):
        change = percent(100 * (new - old) / old) if old > 0 else ""
        rows.append([name, format_bytes(max(0, old)), format_bytes(max(0, new)), change])
    rows[-1][3] = ""
    return columns(rows, "<>>>")


COUNTS = {"RLIMIT_DATA": ", as it also counts what is reserved, touched or not, and mapped weights"}
"""What a limit counts beyond what a process holds, by its kind."""
MOST_CHARACTERS = 100  # of how a model ended
NAMES = ("  loading, at most", "  once loaded", "  first run", "  later runs", "  of which mapped files")


def _figures(memory: ProcessMemory) -> tuple[int, ...]:
    return (
        memory.load_peak_bytes,
        memory.loaded_bytes,
        memory.first_run_bytes,
        memory.later_runs_bytes,
        memory.mapped_bytes,
    )


def forecast_lines(memory: ProcessMemory, runs: RunsForecast) -> list[str]:
    """What a process will hold, by simulation."""
    rows = [["process memory, predicted", ""]]
    rows += [[name, format_bytes(size)] for name, size in zip(NAMES, _figures(memory), strict=True)]
    if runs.block_bytes and runs.ballast_bytes is None:
        rows.append(["  of which the block of later runs", format_bytes(runs.block_bytes)])
    return columns(rows, "<>")
