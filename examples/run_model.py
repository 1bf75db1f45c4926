"""Run a model and say what the process holds after each run: python examples/run_model.py MODEL [RUNS].

Needs numpy and onnxruntime only, so that it also shows what a container without remat does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

STATUS = Path("/proc/self/status")
FIGURES = {"VmRSS": "resident", "RssFile": "of mapped files", "VmHWM": "at most so far"}
FLOATS = {"float16": "float16", "float": "float32", "double": "float64"}
INTEGERS = {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}


class BadInputError(Exception):
    """What the user gave cannot be run; the text is one line that says why."""


def random_input(
    name: str, kind: str, shape: Sequence[int | str | None], generator: np.random.Generator
) -> npt.NDArray[Any]:
    """Values that fit an input; integers are 0 or 1, as most are indices, masks or lengths."""
    sizes = [size if isinstance(size, int) else 1 for size in shape]
    element = kind.removeprefix("tensor(").removesuffix(")")
    if element in FLOATS:
        drawn = np.float64 if element == "double" else np.float32  # a larger copy would leave its mark on what is held
        return np.asarray(generator.standard_normal(sizes, drawn)).astype(FLOATS[element], copy=False)
    bits = np.asarray(generator.integers(0, 2, sizes))
    if element == "string":
        return bits.astype(str).astype(object)
    if element not in INTEGERS:
        raise BadInputError(f"input {name} is a {kind}, for which this script makes no values")
    return (bits if bits.size > 1 else np.ones_like(bits)).astype(element)


def memory() -> str:
    """What the system says that this process holds; empty where it does not say."""
    if not STATUS.exists():
        return ""
    kib = {key: value.split()[0] for key, _, value in (line.partition(":") for line in STATUS.open()) if key in FIGURES}
    return ", ".join(f"{int(kib[key]) / 1024:.1f} MiB {words}" for key, words in FIGURES.items() if key in kib)


def first_line(error: Exception) -> str:
    """The runtime's own words, without what follows in further lines."""
    return (str(error) or type(error).__name__).splitlines()[0]


def asked(words: Sequence[str]) -> tuple[Path, int]:
    """The model and the number of runs, checked, so that mistakes are told in one line."""
    if len(words) not in {1, 2}:
        raise BadInputError("usage: run_model.py MODEL [RUNS]")
    model, runs = Path(words[0]), words[1] if len(words) == 2 else "20"
    if not model.is_file():
        raise BadInputError(f"no such file: {model}")
    if not (runs.isascii() and runs.isdigit() and int(runs)):
        raise BadInputError(f"RUNS is a whole number from 1 on, not {runs!r}")
    return model, int(runs)


def run(model: Path, runs: int) -> None:
    """Run the model in an ordinary session; as in most programs, outputs are held until the next ones are there."""
    ort.set_default_logger_severity(4)  # what goes wrong is told once, by this script
    try:
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadInputError(f"{model} cannot be opened: {first_line(error)}") from error
    generator = np.random.default_rng(0)
    feeds = {x.name: random_input(x.name, x.type, x.shape, generator) for x in session.get_inputs()}
    for number in range(1, runs + 1):
        try:
            outputs = session.run(None, feeds)  # noqa: F841  (held on purpose)
        except Exception as error:
            raise BadInputError(f"run {number} of {model} failed: {first_line(error)}") from error
        print(": ".join(filter(None, (f"run {number}", memory()))), flush=True)  # it may be killed in the next run


if __name__ == "__main__":
    try:
        run(*asked(sys.argv[1:]))
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
