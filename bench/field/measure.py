"""The field bench: trained models that packages ship, compiled, and the packages' own programs run with them.

`python -m bench.field.measure` appends a row to `bench/results/field.jsonl` as soon as it is there and skips rows that
are there already; `bench/field/report.py` makes the page and the README's table of them. A row is one program as it
is, or one compile of its model as a user would make it and the program run with the new file in place of its own. The
programs and their runtime lie in `build/field`, which `make bench-field` fills.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from bench.bench import Case, Key, Shard, shard_option
from bench.compiling import OUTPUT, PLAN, ROOT, Row
from bench.field.places import BUILT, MODULES, NODE, PYTHON, SCRATCH, Place
from bench.field.programs import PROGRAMS
from bench.field.report import AS_IT_IS, BENCH, HALF, LEAST, PROCESS, RANGES
from bench.field.sizes import Shapes, dimensions, feeds_of
from remat_cli.runtime.observe.resident import ResidentJob, measure_resident
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings, runtime_version

ASKS = (AS_IT_IS, HALF, RANGES, PROCESS, LEAST)
PROCESS_SHARE = 0.6
ALONE_RUNS = 3
TIMEOUT_SECONDS = 1800.0
CACHE = BUILT / "cache"
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
    largest = max(model["shapes"], key=_elements)
    return row | {"options": {key: model[key] for key in OPTIONS}, "takes_bytes": _alone_bytes(place.original, largest)}


def compiled_row(place: Place, ask: str, plain: Row) -> Row:
    """One compile, and the program with what it wrote."""
    use = "many" if ask == RANGES else "one"
    original: Row = _figures(run_program(place, None, use)) if ask == RANGES else plain["one"]
    row: Row = {"program": place.program.name, "ask": ask, "use": use, "machine": _machine(), "before": original}
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / place.path.name if not place.program.entry else Path(name) / OUTPUT
        flags = _flags(place, ask, plain, dimensions(place.original, original["shapes"]))
        started = time.monotonic()
        code, report, said = _compile(place.original, flags, output)
        row |= {"flags": flags, "exit_code": code, "seconds": round(time.monotonic() - started, 1), "said": said}
        row |= {key: report.get(key) for key in KEPT}
        row |= {
            "solution": {key: (report.get("solution") or {}).get(key) for key in ("peak_bytes", "baseline_peak_bytes")}
        }
        row |= {"measured_overhead_percent": (report.get("verification") or {}).get("measured_overhead_percent")}
        row |= {"process_bytes": (report.get("asked") or {}).get("process_bytes")}
        if code == 0:
            row["seen"] = _figures(run_program(place, output, use))
            row["again"] = _figures(
                run_program(place, None, use)
            )  # beside it, as other loads of the machine change times
    return row


def _flags(place: Place, ask: str, plain: Row, sizes: Mapping[str, str]) -> list[str]:
    """What a user of the program says to the compiler."""
    budget = {HALF: "50%", RANGES: "50%", LEAST: "min"}.get(ask) or str(int(PROCESS_SHARE * plain["takes_bytes"]))
    flags = ["--budget", budget, "--intra-op-threads", str(plain["options"]["intra_op_threads"])]
    flags += [word for name, size in sizes.items() for word in ("--dim", f"{name}={size}")]
    return flags + (["--no-external-data"] if plain["options"]["given"] == "bytes" else [])


def _compile(model: Path, flags: Sequence[str], output: Path) -> tuple[int | None, Row, str]:
    """Exit code (None: stopped), report, and what was said last."""
    command = [
        sys.executable,
        "-m",
        "remat_cli",
        "compile",
        str(model),
        *flags,
        "--verify",
        "fast",
        "--quiet",
        "--force",
    ]
    command += ["--format", "json", "--output", str(output), "--plan", str(output.with_name(PLAN))]
    try:
        done = subprocess.run(
            ["env", f"REMAT_CACHE_DIR={CACHE}", *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, {}, f"stopped after {TIMEOUT_SECONDS:.0f} s"
    report: Row = json.loads(done.stdout) if done.stdout.strip() else {}
    return done.returncode, report, (done.stderr.strip().splitlines() or [""])[-1].replace(str(model), model.name)


def run_program(place: Place, model: Path | None, use: str) -> Row:
    """What the program's process was seen to do with this model, or with its own.

    Raises:
        ClickException: the program fails.
    """
    program = place.program
    with place.holding(model), tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "seen.json"
        command: list[str | Path] = [PYTHON, "-m", "bench.field.drive", program.name, use, result]
        if program.is_node:
            drive = Path(__file__).with_name("drive.mjs")
            command = ["node", drive, MODULES, program.name, use, place.path, PICTURES, result]
        done = subprocess.run(
            ["env", f"PYTHONPATH={ROOT}", "ORT_DISABLE_TELEMETRY=1", *command],
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


def _alone_bytes(model: Path, shapes: Shapes) -> int:
    """What a process takes that loads and runs the model at these sizes, in a session with default options."""
    job = ResidentJob(str(model), pack_all(feeds_of(model, shapes)), SessionSettings(exact=False), ALONE_RUNS)
    seen = run_fresh(measure_resident, job)
    return max(peak.total_bytes for peak in (seen.load_peak_bytes, *seen.run_peak_bytes))


def _elements(shapes: Shapes) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values())


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, ONNX Runtime {runtime_version()}"


def _draw() -> None:
    """Pictures for programs that cannot draw them."""
    if not PICTURES.exists():
        subprocess.run([PYTHON, "-m", "bench.field.inputs", str(PICTURES)], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
