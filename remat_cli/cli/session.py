"""What every command does around its own work: settings, progress, result, exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from remat_cli.base.errors import EXIT_INTERRUPTED
from remat_cli.cli.console import emit, stdout_style, watching
from remat_cli.cli.printing import printing_of

if TYPE_CHECKING:
    from remat_cli.base.progress import Progress
    from remat_cli.cli.printing import Printing
    from remat_cli.report import Report
    from remat_cli.settings.settings import Settings


class Interrupted(click.ClickException):
    """Ctrl-C ended the work; raised in place of KeyboardInterrupt, for which click would print an empty line."""

    exit_code = EXIT_INTERRUPTED


def settings(flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> tuple[Settings, Printing]:
    """What a command works with and how it speaks: flags over the file that `--config` names, over its own defaults."""
    from remat_cli.settings.settings import load_settings

    given = dict(flags)
    file = given.pop("config_file", None)
    return load_settings(given, file, defaults), printing_of(given, file)


def run(printing: Printing, work: Callable[[Progress], Report]) -> int:
    """Do the work under progress and Ctrl-C, print its report on stdout, and return its exit code."""
    from remat_cli.report import render_json, render_text

    try:
        with watching(printing) as progress:
            report = work(progress)
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None
    emit(render_json(report) if printing.format == "json" else render_text(report, stdout_style(printing)))
    return report.exit_code
