"""Write docs/options.md, every command with its options, from the command line itself: `python -m docs.make_pages`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from remat_cli.cli import make_group
from remat_cli.cli.grouped import HEADINGS

TARGET = Path(__file__).with_name("options.md")
HEAD = """# Every option

Made by `make pages` from the commands themselves. `remat COMMAND --help` shows those that matter most, `--help-all`
all.
What stands in square brackets at the end is the default. A file for `--config` has the same words; flags win over it.
"""


def page() -> str:
    """The page as Markdown."""
    group = make_group()
    outer = click.Context(group, info_name="remat", **group.context_settings)  # click keeps the first help option
    parts = [_command(name, command, outer) for name, command in group.commands.items()]
    return "\n".join([HEAD, *parts])


def _command(name: str, command: click.Command, outer: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=outer)
    about = " ".join((command.help or "").split("\n\n")[0].split())
    lines = [f"## remat {name}", "", _plain(about), "", "```text", context.get_usage().removeprefix("Usage: ")]
    lines += ["```", ""]
    options = [
        (each.name or "", record)
        for each in command.get_params(context)
        if isinstance(each, click.Option) and not each.is_eager and (record := each.get_help_record(context))
    ]
    headed = {one for names in HEADINGS.values() for one in names}
    lines += _table("", [record for one, record in options if one not in headed])
    for heading, names in HEADINGS.items():
        lines += _table(heading, [record for one, record in options if one in names])
    return "\n".join(lines)


def _table(heading: str, records: list[tuple[str, str]]) -> Iterator[str]:
    """A heading and its options; nothing where there are none."""
    if not records:
        return
    if heading:
        yield from (f"**{heading}**", "")
    yield from ("| option | what it does |", "| --- | --- |")
    for words, told in records:
        yield f"| {_plain(f'`{words}`')} | {_plain(told)} |"
    yield ""


def _plain(text: str) -> str:
    """Text for a cell: a bar would end it, and what looks like markup is none, but for code."""
    parts = text.replace("|", "\\|").split("`")
    marks = str.maketrans({"<": "&lt;", "*": "\\*"})
    return "`".join(part if place % 2 else part.translate(marks) for place, part in enumerate(parts))
