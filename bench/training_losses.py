"""A hundred steps of training with planned steps beside unplanned ones: their losses, and what their processes hold.

`make bench-train-losses` measures the rows that are missing; `--models vit --bits equal --again` measures one anew.
Networks are those of torch (`bench/training_models.py`) and the one of `examples/finetune.py`. Resident memory of the
process that trains is held against what the plan promises of processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from bench.bench import Bench, Case, Key
from bench.compiling import EXIT_WORDS, OUTPUT, PLAN, ROOT, Row, machine, mib, percent, table_lines, text
from bench.training_run import TrainingJob, train
from remat_cli.runtime.sessions._ort import run_fresh

TOLERANCE = 1e-4  # of losses, relative, where sums may be added up in another order
BITS: Mapping[str, tuple[str, ...]] = {"equal": (), "close": ("--allow-reassociation",)}


@dataclass(frozen=True)
class Training:
    """How a network is trained, and its budgets, by kind of bits."""

    batch: int
    learning_rate: float
    flags: tuple[str, ...] = ()
    budgets: Mapping[str, str] = field(default_factory=dict)
    model: str = ""


CASES: Mapping[str, Training] = {
    "digits": Training(128, 0.002, ("--optimizer", "adam"), {"equal": "60%"}),
    "digits-momentum": Training(128, 0.02, ("--optimizer", "momentum"), {"close": "40%"}, "digits"),
    "digits-momentum-slow": Training(128, 0.002, ("--optimizer", "momentum"), {"close": "40%"}, "digits"),
    "resnet18": Training(32, 0.05, ("--optimizer", "momentum"), {"equal": "60%", "close": "50%"}),
    "vit": Training(32, 0.001, ("--optimizer", "adamw"), {"equal": "60%", "close": "40%"}),
    "gpt2": Training(16, 0.002, ("--optimizer", "adamw"), {"equal": "60%", "close": "40%"}),
    "lora": Training(16, 0.005, ("--optimizer", "adam", "--trainable", "*lora*"), {"equal": "60%", "close": "35%"}),
}
HEAD = (
    *("network", "bits", "batch", "budget", "result", "loss, first", "loss, last", "most difference", "one ulp"),
    *(
        "budget MiB",
        "live MiB",
        "was",
        "process MiB",
        "of files",
        "promised",
        "was",
        "tiles",
        "recomputed",
        "predicted +%",
        "run +%",
    ),
)


def measured_rows(name: str, keys: Sequence[Key], seconds: float, folder: Path) -> Iterator[Row]:
    """A row for each kind of bits: the plain step is trained with once."""
    case = CASES[name]
    step, state = written_step(name, folder)
    job = TrainingJob(str(step), str(state), case.learning_rate)
    plain, nudged = run_fresh(train, job), run_fresh(train, msgspec.structs.replace(job, nudged=True))
    for _, bits in keys:
        flags = ("--budget", case.budgets[bits], "--time-limit", f"{seconds:g}s", "--no-capped-run", *BITS[bits])
        done = _remat("compile", step, *flags, "-o", folder / OUTPUT, "--plan", folder / PLAN)
        report = json.loads(done.stdout) if done.stdout.strip() else {}
        planned = None
        if done.returncode == 0:
            planned = run_fresh(train, TrainingJob(str(folder / OUTPUT), str(state), case.learning_rate))
        yield {
            "network": name,
            "bits": bits,
            "batch": case.batch,
            "budget": case.budgets[bits],
            "exit_code": done.returncode,
            "message": (done.stderr.strip().splitlines() or [""])[-1],
            "learning_rate": case.learning_rate,
            "plain": msgspec.to_builtins(plain),
            "nudged": msgspec.to_builtins(nudged),
            "planned": msgspec.to_builtins(planned),
            "report": {key: report.get(key) for key in ("solution", "verification", "regions")},
        }


def written_step(name: str, folder: Path) -> tuple[Path, Path]:
    """The training step of a network and its first state."""
    case = CASES[name]
    network = case.model or name
    model = ROOT / "examples" / f"{network}.onnx"
    if not model.exists():
        from bench.training_models import export

        model = export(network, folder / f"{network}.onnx")
    step = folder / f"{name}.train.onnx"
    done = _remat("train", model, "--loss", "cross-entropy", "--batch", case.batch, *case.flags, "-o", step)
    if done.returncode:
        raise click.ClickException(done.stderr.strip())
    return step, Path(json.loads(done.stdout)["state"])


def _remat(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "remat_cli", *map(str, words), "--force", "--quiet", "--format", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def difference(row: Row, other: str = "planned") -> float | None:
    """How far a loss of the planned step, or of another, is from that of the plain one, at most, relative to it."""
    if row.get(other) is None:
        return None
    pairs = zip(row["plain"]["losses"], row[other]["losses"], strict=True)
    return float(max(abs(ours - theirs) / max(abs(theirs), 1e-12) for theirs, ours in pairs))


def table(rows: Sequence[Row]) -> str:
    """The results as Markdown."""
    lines = [
        "# A hundred steps of training, planned and plain",
        "",
        "Generated by `make bench-train-losses` (`bench/training_losses.py`): small networks as torch exports",
        "them, and the one of `examples/finetune.py`, trained on drawn data by the loop that `remat train`",
        "prints, with the unplanned step and with the planned one. `close` allows sums over the batch in another",
        f"order (`--allow-reassociation`): losses may then differ by {TOLERANCE:g}, relative; else not in the last",
        "bit. One ulp: the same difference of the plain step from itself where every first weight is one unit in its",
        "last place higher; where that is as large, losses are chaotic, and no tolerance holds for another order of",
        "sums: train with a smaller learning rate, or with equal bits. Live: the most that tensors of a default",
        "session take. Process: the most that the process that trains held over all steps, loading included, beyond",
        "the runtime, a tiny session and the first state; of files: pages of files beside that, such as the code of",
        "kernels, which the system can drop; rows without that figure are older, and have such pages in the process.",
        "Promised: what plans say of processes, without such pages.",
        "Times are of all runs, on a machine with other work. Machine: " + machine(rows) + ".",
        "",
        *table_lines(HEAD, [_cells(row) for row in rows]),
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    plain, planned, report = row["plain"], row["planned"], row["report"]
    seen, solution, most = report["verification"] or {}, report["solution"] or {}, difference(row)
    cells = [row["network"], row["bits"], str(row["batch"]), row["budget"]]
    cells += [result(row)]
    cells += [f"{plain['losses'][0]:.4f}", f"{plain['losses'][-1]:.4f}"]
    cells += [_told_difference(most), _told_difference(difference(row, "nudged"))]
    cells += [mib(solution.get("budget_bytes"))]
    if planned is None:
        return cells + [""] * (len(HEAD) - len(cells))
    return [
        *cells,
        mib(seen.get("measured_peak_default_session_bytes")),
        mib(seen.get("original_default_session_peak_bytes")),
        mib(planned["peak_bytes"]),
        mib(planned.get("mapped_bytes")),
        mib(seen["process"]["predicted"]["later_runs_bytes"]),
        mib(plain["peak_bytes"]),
        " ".join(str(region["tiles"]) for region in report["regions"] or ()),
        text(solution.get("recomputed_ops")),
        percent(seen.get("predicted_overhead_percent")),
        percent(100 * (planned["seconds"] / plain["seconds"] - 1)),
    ]


def result(row: Row) -> str:
    """What came of a row: a plan that was verified may still lead to losses that are too far away."""
    most = difference(row)
    if most is not None and most > (TOLERANCE if row["bits"] == "close" else 0):
        return "missed: losses differ"
    return str(EXIT_WORDS.get(row["exit_code"], f"exit {row['exit_code']}"))


def _told_difference(most: float | None) -> str:
    return "" if most is None else "none" if most == 0 else f"{most:.1e}"


def _told(row: Row) -> str:
    return f"{row['network']} {row['bits']}  exit {row['exit_code']}  {difference(row)}  {row['message']}"


def _place(row: Row) -> tuple[int, int]:
    return list(CASES).index(row["network"]), list(BITS).index(row["bits"])


@click.command()
@click.option("--models", default=",".join(CASES), show_default=True)
@click.option("--bits", default=",".join(BITS), show_default=True, help="Some of these.")
@click.option("--time-limit", default=30.0, show_default=True, help="Seconds for each plan.")
@click.option("--again", is_flag=True, help="Measure rows that are there already, too.")
def main(models: str, bits: str, time_limit: float, again: bool) -> None:
    """Measure what is missing, and make the page."""
    with tempfile.TemporaryDirectory() as folder:

        def measured(name: str, keys: Sequence[Key]) -> Iterator[Row]:
            return measured_rows(name, keys, time_limit, Path(folder))

        cases = [
            Case(name, [(name, each) for each in bits.split(",") if each in CASES[name].budgets])
            for name in models.split(",")
        ]
        BENCH.run(cases, measured, again=again)
    BENCH.write()


BENCH = Bench("training_losses", ("network", "bits"), table, _told, _place)

if __name__ == "__main__":
    main()
