"""`python -m tests.fuzz`: run what is missing of the fuzz cases."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from tests.fuzz.campaign import KINDS, run_kind, summary


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--shard", default="1/1", show_default=True, help="Part of the cases, such as 2/8.")
@click.option("--minutes", type=float, help="End after so long; every kind has the same share of it.")
@click.option("--only", type=click.Choice(list(KINDS)), multiple=True, help="Kind of cases; may be repeated.")
@click.option("--most", type=int, help="So many cases of each kind at most.")
def main(folder: Path, shard: str, minutes: float | None, only: tuple[str, ...], most: int | None) -> None:
    """Append rows to files in FOLDER; cases that have one there are done."""
    kinds = only or tuple(KINDS)
    seconds = None if minutes is None else minutes * 60 / len(kinds)
    for kind in kinds:
        click.echo("\n".join(summary(run_kind(kind, folder, shard, seconds, most))))


if __name__ == "__main__":
    # A shell starts what it puts in the background with interrupts ignored, and commands that are killed inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
