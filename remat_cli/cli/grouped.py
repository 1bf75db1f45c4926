"""Help that people find things in: the options that matter first, all of them under headings with `--help-all`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

MOST_SHOWN: Final = 10
FEW: Final = 16  # a command with so few options shows them all
FIRST: Final = (
    *("budget", "budgets", "original", "places", "count", "memory", "micro_batches", "local", "loss", "loss_output"),
    *("batch", "optimizer", "trainable", "input", "output", "max_overhead", "dims", "inputs", "devices", "target"),
    *("verify", "repeat", "trace", "svg", "resume", "solvers", "time_limit", "force", "solver", "verbose", "format"),
)
"""Options by the word that each sets, those that matter most first."""
HEADINGS: Final[Mapping[str, Sequence[str]]] = {
    "Budget": ("budget", "budgets", "budget_scope", "max_overhead", "count_mapped"),
    "Splitting": ("max_tensor", "split", "max_tiles", "split_axis", "allow_reassociation", "race"),
    "Model and its sizes": ("dims", "limits", "input_shapes", "inputs", "custom_ops"),
    "Where the file will run": ("target", "portable", "runtime", "session", "intra_op_threads", "plain"),
    "Devices": ("devices", "estimate", "overlap", "spill"),
    "Verification": ("verify", "capped_run", "run_limit", "memory_limit"),
    "Output": ("output", "plan", "svg", "external_data", "packed_weights", "force", "work_dir"),
    "Solver": ("solver", "options", "order", "time_limit", "gap", "seed", "threads"),
    "Screen and settings": ("format", "quiet", "verbose", "config_file", "debug"),
}
"""Of all options; what is in none is one of a command's own."""
ALL: Final = "remat.help_all"


class GroupedCommand(click.Command):
    """A command whose help shows the ten options that matter, and with `--help-all` all of them."""

    @property
    def has_few(self) -> bool:
        """Whether all options are shown at once."""
        return sum(isinstance(one, click.Option) for one in self.params) <= FEW

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """With `--help-all`, where there is more to show."""
        found = super().get_params(ctx)
        if self.has_few:
            return found
        text = "Show all options, under headings."
        every = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, help=text, callback=_show_all
        )
        return [*found[:-1], every, *found[-1:]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write those options that are to be shown."""
        found = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        records = [(one, record) for one in found if (record := one.get_help_record(ctx))]
        ends = [record for one, record in records if one.is_eager]
        options = [(one.name or "", record) for one, record in records if not one.is_eager]
        if ctx.meta.get(ALL) or self.has_few:
            headed = {name for names in HEADINGS.values() for name in names}
            own = [record for name, record in options if name not in headed]
            _write(formatter, "Options", own)
            for heading, names in HEADINGS.items():
                _write(formatter, heading, [record for name, record in options if name in names])
            _write(formatter, "Help", ends)
            return
        ranked = sorted((FIRST.index(name), place) for place, (name, _) in enumerate(options) if name in FIRST)
        shown = [options[place][1] for _, place in ranked if options[place][1][0] != "--no-verify"][:MOST_SHOWN]
        _write(formatter, "Options that matter most", shown)
        _write(formatter, f"Help on these and {len(options) - len(shown)} more", ends)


def _write(formatter: click.HelpFormatter, heading: str, records: Sequence[tuple[str, str]]) -> None:
    if records:
        with formatter.section(heading):
            formatter.write_dl(records)


def _show_all(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> Any:
    if is_asked:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
