"""The field bench: trained models that packages ship, compiled, and the packages' own programs run with them.

`python -m bench.field.measure` appends a row to `bench/results/field.jsonl` as soon as it is there and skips rows that
are there already; `bench/field/report.py` makes the page and a table of docs/benchmarks.md of them. A row is one
program as it is, or one compile of its model as a user would make it and the program run with the new file in place of
its own. The programs and their runtime lie in `build/field`, which `make bench-field` fills.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.bench import Case, Key, Shard, shard_option
from bench.compiling import OUTPUT, ROOT, Row, run_compiler
from bench.field.feeds import files, largest, packed
from bench.field.places import BUILT, MODULES, NODE, PYTHON, SCRATCH, Place
from bench.field.programs import PROGRAMS
from bench.field.report import ADVISED, AS_IT_IS, BENCH, HALF, LEAST, PROCESS, RANGES, grown_bytes
from remat_cli.runtime.observe.resident import ResidentJob, measure_resident
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings, runtime_version

ASKS = (AS_IT_IS, HALF, RANGES, PROCESS, LEAST)
PROCESS_SHARE = 0.6
ALONE_RUNS = 3
TIMEOUT_SECONDS = 1800.0
TIME_LIMIT = "2m"  # of a machine that does other work meanwhile
PROPOSED = "in place of --inputs give "
CACHE = BUILT / "cache"
FEEDS = BUILT / "feeds"
PICTURES = BUILT / "pictures"
KEPT = ("verdict", "promises", "warnings", "split_obstacle", "seconds", "runs_on")
OPTIONS = ("given", "arena", "pattern", "mode", "level", "intra_op_threads")


@click.command()
@click.option("--only", multiple=True, help="Name of a program; may be repeated. All when left out.")
@click.option("--asks", default=",".join(ASKS), show_default=True, help="What rows are measured, in this order.")
@shard_option
def main(only: Sequence[str], asks: str, shard: Shard) -> None:
    """Measure what is missing."""
    known = {each.name for each in PROGRAMS}
    if set(only) - known:
        raise click.UsageError(
            f"no program {', '.join(sorted(set(only) - known))}: there are {', '.join(sorted(known))}"
        )
    places = [place for each in PROGRAMS if (not only or each.name in only) and (place := Place.of(each)) is not None]
    if not places:
        raise click.UsageError(f"no packages in {BUILT}: make bench-field")
    _draw()
    for ask in asks.split(","):
        BENCH.run((Case(place, [(place.program.name, ask)]) for place in places), _measured, shard=shard)


def _measured(place: Place, keys: Sequence[Key]) -> Iterator[Row]:
    for name, ask in keys:
        plain = next((row for row in BENCH.rows() if (row["program"], row["ask"]) == (name, AS_IT_IS)), None)
        if ask == AS_IT_IS:
            yield original_row(place)
        elif plain is not None and (ask != RANGES or place.program.varies):
            yield compiled_row(place, ask, plain)


def original_row(place: Place) -> Row:
    """The program as it is, with inputs of one size."""
    seen = run_program(place, None, "one")
    model = _of_model(seen)
    row = {"program": place.program.name, "ask": AS_IT_IS, "machine": _machine(), "one": _figures(seen)}
    takes_bytes = _alone_bytes(place.compiled, largest(fed(place, "one")))
    return row | {"options": {key: model[key] for key in OPTIONS}, "takes_bytes": takes_bytes}


def compiled_row(place: Place, ask: str, plain: Row) -> Row:
    """One compile, and the program with what it wrote."""
    use = "many" if ask == RANGES else "one"
    original: Row = _figures(run_program(place, None, use)) if ask == RANGES else plain["one"]
    row: Row = {"program": place.program.name, "ask": ask, "use": use, "machine": _machine(), "before": original}
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / place.path.name if not place.program.entry else Path(name) / OUTPUT
        flags = _flags(ask, plain) + sizes(place.compiled, fed(place, use), output)
        started = time.monotonic()
        code, report, said = _compile(place.compiled, flags, output)
        told = [Path(word).name if word.endswith(".npz") else word for word in flags]
        row |= {"flags": told, "exit_code": code, "seconds": round(time.monotonic() - started, 1), "said": said}
        row |= {key: report.get(key) for key in KEPT}
        solution = report.get("solution") or {}
        row |= {
            "solution": {key: solution.get(key) for key in ("peak_bytes", "baseline_peak_bytes", "overhead_percent")}
        }
        row |= {"process_bytes": (report.get("asked") or {}).get("process_bytes")}
        if code == 0:
            row["seen"] = _figures(run_program(place, output, use))
            if not plain["options"]["arena"]:
                row["advised"] = _figures(run_program(place, output, use, environment=[ADVISED]))
            row["again"] = _figures(
                run_program(place, None, use)
            )  # beside it, as other loads of the machine change times
    return row


def _flags(ask: str, plain: Row) -> list[str]:
    """What a user of the program says to the compiler, sizes apart."""
    takes_bytes = min(plain["takes_bytes"], grown_bytes(plain["one"]))
    budget = {HALF: "50%", RANGES: "50%", LEAST: "min"}.get(ask) or str(int(PROCESS_SHARE * takes_bytes))
    flags = ["--budget", budget, "--intra-op-threads", str(plain["options"]["intra_op_threads"])]
    flags += ["--time-limit", TIME_LIMIT]
    return flags + (["--no-external-data"] if plain["options"]["given"] == "bytes" else [])


def sizes(model: Path, feeds: Sequence[Path], output: Path) -> list[str]:
    """The feeds; where their sizes differ, what the compiler asks for in their place."""
    given = [word for path in feeds for word in ("--inputs", str(path))]
    if len(feeds) == 1:
        return given
    *_, said = _compile(model, ["--budget", "min", *given], output)
    _, _, words = said.partition(PROPOSED)
    return shlex.split(words) or given


def _compile(model: Path, flags: Sequence[str], output: Path) -> tuple[int | None, Row, str]:
    return run_compiler(model, flags, output, CACHE, TIMEOUT_SECONDS)


def fed(place: Place, use: str) -> list[Path]:
    """What the program feeds its own model, once for all feeds of the same sizes, kept from a run for that alone."""
    folder = FEEDS / place.program.name / use
    if not folder.exists():
        with tempfile.TemporaryDirectory() as runs:
            run_program(place, None, use, keeps=runs)
            return packed(Path(runs), folder)
    return files(folder)


def run_program(place: Place, model: Path | None, use: str, keeps: str = "", environment: Sequence[str] = ()) -> Row:
    """What the program's process was seen to do with this model, or with its own; `keeps`: a folder for what it feeds.

    `environment` has settings of the process beside its own.

    Raises:
        ClickException: the program fails.
    """
    program = place.program
    with place.holding(model), tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "seen.json"
        command: list[str | Path] = [PYTHON, "-m", "bench.field.drive", program.name, use, result, keeps]
        if program.is_node:
            drive = Path(__file__).with_name("drive.mjs")
            command = ["node", drive, MODULES, program.name, use, place.path, PICTURES, result, keeps]
        done = subprocess.run(
            ["env", f"PYTHONPATH={ROOT}", "ORT_DISABLE_TELEMETRY=1", *environment, *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=NODE if program.is_node else SCRATCH,
            timeout=TIMEOUT_SECONDS,
        )
        if not result.exists():
            if model is None:
                raise click.ClickException(f"{program.name}: {done.stderr.strip()[-500:]}")
            return {"failed": done.stderr.strip()[-500:]}
        seen: Row = json.loads(result.read_text(encoding="utf-8"))
    return seen


def _of_model(seen: Row) -> Row:
    """The session of the program's model: that which ran, of several that have it the last."""
    found: Row = next(note for note in reversed(seen["sessions"]) if note["is_model"] and note["run_ms"])
    return found


def _figures(seen: Row) -> Row:
    """What is kept of a run of the program."""
    if "failed" in seen:
        return seen
    model = _of_model(seen)
    shapes = list({json.dumps(shape, sort_keys=True): shape for shape in model["shapes"]}.values())
    kept = {key: seen[key] for key in ("answer", "shown", "before_bytes", "peak_bytes", "end_bytes", "runtime")}
    times = {"call_seconds": [round(each, 3) for each in seen["call_seconds"]]}
    return kept | times | {"shapes": shapes, "model_seconds": round(sum(model["run_ms"]) / 1000, 3)}


def _alone_bytes(model: Path, feeds: Mapping[str, Any]) -> int:
    """What a process takes that loads the model and runs it with these feeds, in a session with default options."""
    job = ResidentJob(str(model), pack_all(feeds), SessionSettings(exact=False), ALONE_RUNS)
    seen = run_fresh(measure_resident, job)
    return max(peak.total_bytes for peak in (seen.load_peak_bytes, *seen.run_peak_bytes))


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, ONNX Runtime {runtime_version()}"


def _draw() -> None:
    """Pictures for programs that cannot draw them."""
    if not PICTURES.exists():
        subprocess.run([PYTHON, "-m", "bench.field.inputs", str(PICTURES)], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
