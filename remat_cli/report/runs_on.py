"""Where a compiled file runs, as the last line of every report about it."""

from msgspec import UnsetType

from remat_cli.core.values.runs_on import RunsOn

__all__ = ["RunsOn", "guard_warnings", "runs_on_lines", "runs_on_rows"]

UNGUARDED = (
    "the file has no guard: on another kind of processor than the one that it was compiled on it may compute other "
    "numbers without a word; compile it again"
)


def runs_on_lines(runs_on: RunsOn | UnsetType | None) -> list[str]:
    """The line, with an empty one before it; nothing where it is not known."""
    return ["", runs_on.line] if runs_on else []


def runs_on_rows(runs_on: RunsOn | UnsetType | None) -> list[tuple[str, str]]:
    """The same, briefly, as a word and what there is to say about it."""
    return [("runs on", runs_on.brief)] if runs_on else []


def guard_warnings(runs_on: RunsOn | None) -> tuple[str, ...]:
    """What a user is told of a file that depends on the processor and does not check it: it was made before."""
    return (UNGUARDED,) if runs_on is not None and runs_on.is_unguarded else ()
