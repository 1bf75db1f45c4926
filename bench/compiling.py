"""Compile a model in a process of its own, as a user would, and put the outcome in a row: what model benches share."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from sample_models.zoo import load_zoo, zoo_names

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
OF_THIS_RUN = frozenset(
    {"model", "output", "plan", "failed_output", "snippet", "one_line"}
)  # paths: they say nothing elsewhere
EXIT_WORDS = {0: "verified", 3: "impossible", 4: "no plan found", 5: "FAILED"}
OUTPUT, PLAN = "out.onnx", "out.json"  # in the folder of a compile

Row = dict[str, Any]


def sample_paths(wanted: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Sample models as they stand in the repository; all when `wanted` is empty."""
    for path in sorted((ROOT / "sample_models").glob("*.onnx")):
        if not wanted or path.stem in wanted:
            yield path.stem, path


def zoo_paths(folder: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Zoo graphs with seeded weights; each file exists while it is the current one."""
    for name in zoo_names():
        if not wanted or name in wanted:
            path = folder / f"{name}.onnx"
            onnx.save(load_zoo(name), path)
            yield name, path
            path.unlink()


def run_remat(
    *words: object, cache: Path | None = None, timeout_seconds: float | None = None
) -> tuple[int | None, Row, str]:
    """Exit code of a command in a process of its own (None: stopped), its report, and what was said last."""
    command = [] if cache is None else ["env", f"REMAT_CACHE_DIR={cache}"]
    command += [sys.executable, "-m", "remat_cli", *map(str, words), "--quiet", "--force", "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return None, {}, f"stopped after {timeout_seconds:.0f} s"
    report: Row = json.loads(done.stdout) if done.stdout.strip() else {}
    return done.returncode, report, (done.stderr.strip().splitlines() or [""])[-1]


def run_compiler(
    model: Path, flags: Sequence[str], output: Path, cache: Path, timeout_seconds: float | None = None
) -> tuple[int | None, Row, str]:
    """Exit code (None: stopped), report, and what was said last, with the model's name for its path."""
    words = ("compile", model, *_verified(flags, "fast"), "--output", output, "--plan", output.with_name(PLAN))
    code, report, said = run_remat(*words, cache=cache, timeout_seconds=timeout_seconds)
    return code, report, said.replace(str(model), model.name)


def compile_row(name: str, path: Path, budget: str, flags: Sequence[str], folder: Path) -> Row:
    """Compile and verify; the new model and its plan are left in the folder."""
    words = ("compile", path, "--budget", budget, *_verified(flags, "thorough"))
    code, report, said = run_remat(*words, "--output", folder / OUTPUT, "--plan", folder / PLAN)
    return {
        "model": name,
        "budget": budget,
        "exit_code": code,
        "message": said,
        "report": {key: value for key, value in report.items() if key not in OF_THIS_RUN},
    }


def _verified(flags: Sequence[str], how: str) -> tuple[str, ...]:
    """The flags, with a way to verify where they name none."""
    return (*flags,) if "--verify" in flags else ("--verify", how, *flags)


def table_lines(head: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *cells)]


def machine(rows: Sequence[Row]) -> str:
    """Processor, Python and ONNX Runtime."""
    seen = [row["report"].get("verification") or {} for row in rows]
    versions = {version for each in seen if (version := each.get("runtime_version"))}
    return f"{platform.machine()}, Python {platform.python_version()}, ONNX Runtime {', '.join(sorted(versions))}"


def text(value: object) -> str:
    """A value in a cell; empty where there is none."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.1f}"
    return "" if value is None else str(value)


def mib(value: int | None) -> str:
    """Bytes as MiB."""
    return "" if value is None else f"{value / 2**20:.2f}"


def percent(value: float | None) -> str:
    """A percentage."""
    return "" if value is None else f"{value:.2f}"


def peak_cells(verification: Row) -> list[str]:
    """What was predicted, what was measured, and under which caps both models ran."""
    figures = (
        "predicted_peak_bytes",
        "measured_peak_bytes",
        "measured_peak_default_session_bytes",
        "original_default_session_peak_bytes",
        "smallest_cap_bytes",
        "original_smallest_cap_bytes",
    )
    return [mib(verification.get(figure)) for figure in figures]


def promise_cells(solution: Row, verification: Row) -> list[str]:
    """Extra time, predicted, measured and proved, and whether bits and order are kept."""
    return [
        percent(verification.get("predicted_overhead_percent")),
        percent(verification.get("measured_overhead_percent")),
        percent(solution.get("lower_bound_percent")),
        text(verification.get("outputs_identical")),
        text(verification.get("order_honoured")),
    ]
