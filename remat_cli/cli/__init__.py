"""The command line: a table of commands, and the one place that turns errors into exit codes."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from remat_cli import __version__
from remat_cli.base.errors import EXIT_ERROR, EXIT_INTERRUPTED, RematError
from remat_cli.base.files import LACKS_ROOM
from remat_cli.base.garbage import rare_collection
from remat_cli.base.named import named
from remat_cli.cli.console import complain, show_traceback
from remat_cli.cli.ending import EXIT_TERMINATED, Heard, Terminated, open_streams, orderly_end
from remat_cli.cli.whole_imports import whole_imports

COMMANDS: Mapping[str, str] = {
    "inspect": "remat_cli.cli.inspect:inspect_command",
    "compile": "remat_cli.cli.compile:compile_command",
    "verify": "remat_cli.cli.verify:verify_command",
    "report": "remat_cli.cli.report:report_command",
    "run": "remat_cli.cli.run:run_command",
    "sweep": "remat_cli.contest.cli.sweep:sweep_command",
    "train": "remat_cli.cli.train:train_command",
    "max-batch": "remat_cli.cli.max_batch:max_batch_command",
    "profile": "remat_cli.cli.profile:profile_command",
    "partition": "remat_cli.pipelines.cli.partition:partition_command",
    "doctor": "remat_cli.cli.doctor:doctor_command",
    "examples": "remat_cli.cli.examples:examples_command",
    "solvers": "remat_cli.cli.solvers:solvers_command",
    "solve": "remat_cli.cli.solve:solve_command",
    "compare": "remat_cli.contest.cli.compare:compare_command",
    "bench": "remat_cli.contest.cli.bench:bench_command",
}

ABOUT = """Compile an ONNX model to fit a memory budget: same outputs, bit for bit, on stock ONNX Runtime.

\b
  remat inspect model.onnx
  remat compile model.onnx --budget 80%
\b
Words are completed by Tab after  eval "$(_REMAT_COMPLETE=bash_source remat)"  in ~/.bashrc,
with zsh_source in ~/.zshrc, with fish_source and  | source  in fish.
"""


CONTEXT: Mapping[str, Any] = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
"""Of the group; commands have the same."""


class InOrder(click.Group):
    """A group that lists its commands as the table has them, what most people need first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(self.commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors become one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    open_streams()
    heard = Heard()
    try:
        with orderly_end(is_last=arguments is None, heard=heard), rare_collection(), whole_imports():
            return int(make_group().main(words, prog_name="remat", standalone_mode=False) or 0)
    except click.ClickException as error:
        # Click's own complaint as one line, with the command whose help explains it.
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" (see {context.command_path} --help)" if context else ""
        complain(f"{error.format_message()}{hint}")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt, Terminated) as error:
        return _complain_stop(error)
    except Exception as error:
        # A compiled module that is being imported turns a signal into an ImportError.
        stop: BaseException | None = error
        while stop is not None and not isinstance(stop, KeyboardInterrupt | Terminated):
            stop = stop.__cause__ or stop.__context__
        if heard.is_terminated:  # raised in a callback of compiled code, which dropped it and missed something later
            stop = stop or Terminated()
        return _complain_stop(stop) if stop else _complain_failure(error, is_debug="--debug" in words)


def make_group() -> click.Group:
    """The `remat` command with all its subcommands; what they need beyond click they import when they run."""
    commands = {name: named(target) for name, target in COMMANDS.items()}
    group = InOrder("remat", help=ABOUT, commands=commands, context_settings=CONTEXT)
    return click.version_option(__version__, prog_name="remat", message="%(prog)s %(version)s")(group)


def _complain_stop(stop: BaseException) -> int:
    word, code = ("terminated", EXIT_TERMINATED) if isinstance(stop, Terminated) else ("interrupted", EXIT_INTERRUPTED)
    complain(word)
    return code


def _complain_failure(error: Exception, *, is_debug: bool) -> int:
    """Print one line for an error raised on purpose, or for a bug; the traceback only when asked for."""
    if is_debug:
        show_traceback(error)
    if isinstance(error, MemoryError):
        complain("out of memory: give it more with --memory-limit, a larger machine, or a smaller model")
        return EXIT_ERROR
    if isinstance(error, RematError):
        complain(str(error))
        return error.exit_code
    if isinstance(error, OSError) and error.errno in LACKS_ROOM:
        where = "" if error.filename is None else f" ({error.filename})"
        complain(f"{error.strerror}{where}: make room, set TMPDIR to another disk, or ask for more with `ulimit -f`")
        return EXIT_ERROR
    hint = "" if is_debug else "; run again with --debug for the traceback"
    complain(f"unexpected {type(error).__name__}: {error}{hint}")
    return EXIT_ERROR
