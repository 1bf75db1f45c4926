"""What one `remat bench` command asks for, checked before any work, and the results file while it grows."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.files import atomic_write, check_target
from remat_cli.contest.bench_file import Overrides
from remat_cli.contest.report.bench_run import BenchRun, encode_run, read_runs
from remat_cli.settings.parsers import parse_seconds
from remat_cli.settings.yaml_file import read_yaml

YAML = frozenset({".yaml", ".yml"})
FOR_RUNNING = ("output", "resume", "seed", "threads", "time_limit")


@dataclass(frozen=True)
class BenchRequest:
    """A bench file to run (None: only tabulate) and the results file; `is_resumed` keeps what that holds already.

    Otherwise the runs of the suites in question are forgotten first.
    """

    bench: Path | None
    results: Path
    overrides: Overrides
    is_resumed: bool = False
    markdown: Path | None = None
    svg: Path | None = None


def bench_request(file: Path, flags: Mapping[str, Any]) -> BenchRequest:
    """Read the flags of the command; `flags` holds None, empty or False for what was not given.

    Raises:
        ConfigError: a flag makes no sense here, or a file cannot be written.
        MissingDependency: pictures are asked for, but matplotlib is not installed.
    """
    config_file = flags.get("config_file")
    settings = {} if config_file is None else read_yaml(config_file)
    given: dict[str, Any] = {key: settings[key] for key in ("seed", "threads", "time_limit") if key in settings}
    given |= {key: value for key, value in flags.items() if value}
    if flags.get("seed") is not None:
        given["seed"] = flags["seed"]
    limit = given.get("time_limit")
    seconds = None if limit is None else parse_seconds(limit)
    overrides = Overrides(tuple(given.get("only", ())), given.get("seed"), given.get("threads"), seconds)
    overwrite = bool(given.get("force") or given.get("resume"))
    markdown, svg = given.get("markdown"), given.get("svg")
    if markdown is not None:
        check_target(markdown, sources=(file,), overwrite=overwrite)
    if svg is not None:
        from remat_cli.report.pictures.svg_chart import require_matplotlib

        require_matplotlib()
        if svg.exists() and not svg.is_dir():
            raise ConfigError(f"{svg} is not a folder: --svg takes the folder for the pictures")
    if file.suffix.lower() not in YAML:
        # Flags for running, where the file holds results, which are only read.
        for name in FOR_RUNNING:
            if flags.get(name) not in (None, False):
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"--{flag} is for running a bench file; {file} holds results (no .yaml): leave it out"
                )
        return BenchRequest(None, file, overrides, markdown=markdown, svg=svg)
    results = given.get("output") or Path(f"{file.stem}.jsonl")
    if results.exists() and not overwrite:
        raise ConfigError(f"output {results} exists: add --resume to go on with it, or --force to begin anew")
    check_target(results, sources=(file,), overwrite=overwrite)
    return BenchRequest(file, results, overrides, bool(given.get("resume")), markdown, svg)


def runs_so_far(results: Path) -> tuple[BenchRun, ...]:
    """The runs of a results file; none if it is not there yet, or when all suites are skipped."""
    return read_runs(results) if results.exists() else ()


def forget(results: Path, only: tuple[str, ...]) -> None:
    """Remove the runs of these suites from a results file; all of them when no suites are named."""
    if only:
        kept = [run for run in read_runs(results) if run.suite not in only]
        atomic_write(results, b"".join(map(encode_run, kept)))
    else:
        results.unlink()


def make_ready(results: Path) -> None:
    """Find out before the first run, which may take minutes, whether lines can be added, and make that safe.

    A last line without its end, left by a kill, is removed; no empty file is left behind.

    Raises:
        RematError: the file cannot be written.
    """
    was_there = results.exists()
    with _open_end(results):
        pass
    if not was_there:
        results.unlink()
        return
    data = results.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        atomic_write(results, whole)


def append(results: Path, line: bytes) -> None:
    """Append a line, with its newline, to a results file.

    Raises:
        RematError: the file cannot be written.
    """
    with _open_end(results) as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _open_end(results: Path) -> Iterator[BinaryIO]:
    try:
        with results.open("ab") as file:
            yield file
    except OSError as error:
        raise RematError(f"{results} cannot be written: {error.strerror or error}") from None
