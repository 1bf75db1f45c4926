"""What other tools make of compiled files: the table of `docs/compile-last.md`.

`python -m bench.compile_last --python PATH` compiles samples to 60 %, lets each tool of `bench/compile_last_tools.py`
work on the files in the environment whose Python is given, and looks at what comes out: does it run, with which bits,
with how much live memory, and what does `inspect` say of it. `--write` puts the table into the page.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import onnx

from bench.compile_last_tools import TOOLS
from bench.compiling import OUTPUT, ROOT, compile_row
from bench.opsets import run_in
from remat_cli.base.errors import RuntimeFailure
from remat_cli.onnx_io.read.checking import all_nodes
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load
from remat_cli.onnx_io.write.as_written import condition_of
from remat_cli.runtime.sessions.feeds import MadeFeeds
from remat_cli.runtime.sessions.session import SessionSettings
from remat_cli.runtime.verify.family import see_at_sizes

PAGE = ROOT / "docs" / "compile-last.md"
START, END = "<!-- table: make bench-compile-last -->\n", "<!-- end of table -->\n"
SCRIPT = ROOT / "bench" / "compile_last_tools.py"
BUDGET, MIB = "60%", 2**20
SECONDS = 600
FILES = {
    "U-Net": ("unet", ()),
    "transformer": ("transformer", ()),
    "U-Net, `--portable`": ("unet", ("--portable",)),
}
NAMES = {
    "save": "onnx: load and save",
    "shapes": "onnx: infer shapes, strictly",
    "opset": "onnx: convert to opset 21",
    "onnxslim": "onnxslim",
    "onnxsim": "onnxsim",
    "quantize": "onnxruntime: quantize_dynamic",
    "preprocess": "onnxruntime: quant_pre_process",
    "float16": "onnxconverter-common: float16",
    "openvino": "OpenVINO: read and compile",
}
QUANTISED = ("Quantize", "Integer", "DynamicQuantize")  # in the names of ops that work on bytes
ROOM = 1.01  # beside what the compiled file holds: less is noise of a few bytes


@dataclass(frozen=True)
class Outcome:
    """What a tool made of a file: `refusal` where it made nothing, `failure` where that does not run.

    `is_as_written` is what `inspect` says of the result; `difference` is that of its outputs from the compiled file's,
    and `quantised` counts ops on bytes.
    """

    refusal: str = ""
    failure: str = ""
    is_as_written: bool | None = None
    same_bits: bool = False
    difference: float = 0.0
    peak_bytes: int = 0
    quantised: int = 0


@click.command()
@click.option("--python", type=click.Path(path_type=Path), required=True, help="The Python that has the tools.")
@click.option("--write", is_flag=True, help="Put the table into the page.")
def main(python: Path, write: bool) -> None:
    """Compile, let the tools work, and say what came out."""
    if not python.exists():
        raise click.ClickException(f"{python} does not exist: `make bench-compile-last` sets it up")
    with tempfile.TemporaryDirectory() as folder:
        lines = table({name: _outcomes(name, python, Path(folder) / str(at)) for at, name in enumerate(FILES)})
    if write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")
    click.echo("\n".join(lines))


def _outcomes(name: str, python: Path, folder: Path) -> tuple[int, dict[str, Outcome]]:
    folder.mkdir()
    return outcomes(*FILES[name], python, folder, tuple(TOOLS))


def with_table(page: str, lines: Sequence[str]) -> str:
    """The page with another table."""
    before, _, rest = page.partition(START)
    return before + START + "\n" + "\n".join(lines) + "\n\n" + END + rest.partition(END)[2]


def outcomes(
    sample: str, flags: Sequence[str], python: Path, folder: Path, tools: Sequence[str]
) -> tuple[int, dict[str, Outcome]]:
    """What a compiled sample holds, and what each tool makes of it."""
    source = ROOT / "sample_models" / f"{sample}.onnx"
    done = compile_row(sample, source, BUDGET, ["--verify", "fast", *flags], folder)
    if done["exit_code"]:
        raise click.ClickException(f"{sample} {' '.join(flags)}: {done['message']}")
    peak_bytes = peak_of(folder / OUTPUT, source)
    return peak_bytes, {tool: outcome(tool, source, folder / OUTPUT, python) for tool in tools}


def outcome(tool: str, source: Path, file: Path, python: Path) -> Outcome:
    """Let one tool work on a compiled file, and look at what it made."""
    target = file.with_name(f"{tool}.onnx")
    target.unlink(missing_ok=True)
    command = [str(python), "-I", str(SCRIPT), tool, str(file), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    if done.returncode:
        return Outcome(refusal=refusal_of(done.returncode, done.stderr))
    if not target.exists():
        return Outcome()
    is_as_written = condition_of(target).is_as_written
    run = run_in(Path(sys.executable), file, target)
    if run["file_error"]:
        return Outcome(failure=run["file_error"], is_as_written=is_as_written)
    ops = [node.op_type for node in all_nodes(onnx.load(target).graph)]
    return Outcome(
        is_as_written=is_as_written,
        same_bits=run["same_bits"],
        difference=run["difference"],
        peak_bytes=peak_of(target, source),
        quantised=sum(any(word in op for word in QUANTISED) for op in ops),
    )


def refusal_of(code: int, told: str) -> str:
    """How a tool ended, in a few words."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {code}"


def peak_of(model: Path, source: Path) -> int:
    """The most that the first run in a default session holds, in live tensors."""
    feeds = MadeFeeds(inputs_of(load(source, DimBindings()).ir), 0)
    try:
        return see_at_sizes(model, [feeds], SessionSettings(exact=False)).peak_bytes[0]
    except RuntimeFailure as error:
        raise click.ClickException(f"{model}: {error}") from error


def table(found: dict[str, tuple[int, dict[str, Outcome]]]) -> list[str]:
    """A line for each tool, a column for each file."""
    lines = [f"| tool | {' | '.join(found)} |", "| --- |" + " --- |" * len(found)]
    tools = dict.fromkeys(tool for _, results in found.values() for tool in results)
    for tool in tools:
        cells = (" ".join(said_of(tool, results[tool], peak)) for peak, results in found.values())
        lines.append(f"| {NAMES[tool]} | {' | '.join(cells)} |")
    return lines


def said_of(tool: str, seen: Outcome, peak_bytes: int) -> Iterator[str]:
    """What became of a file."""
    if seen.refusal:
        yield f"fails: {_short(seen.refusal)}"
    elif seen.failure:
        yield f"**broken**: {_short(seen.failure)}"
    elif not seen.peak_bytes:
        yield "works"
    else:
        yield ("as written:" if seen.is_as_written else "another graph:")
        yield "same bits," if seen.same_bits else f"outputs differ by {seen.difference:.0e},"
        peaks = f"{seen.peak_bytes / MIB:.1f} MiB for {peak_bytes / MIB:.1f}"
        yield f"**{peaks}**" if seen.peak_bytes > ROOM * peak_bytes else "same peak"
        if tool == "quantize":
            yield "and **nothing quantised**" if not seen.quantised else f"and {seen.quantised} ops on bytes"


def _short(text: str, most: int = 90) -> str:
    text = text.replace("|", "/").replace("`", "'")
    return f"`{text if len(text) <= most else text[:most] + '...'}`"


if __name__ == "__main__":
    main()
