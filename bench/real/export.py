"""Make the models of the bench: `python -m bench.real.export FOLDER [NAME ...]`, in the environment of this folder."""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from pathlib import Path

import onnx
import torch

from bench.real.architectures import MODELS, SEED, Exportable, fill
from bench.real.variants import VARIANTS


def main() -> None:
    """Write the models asked for, or all, each in a process of its own; one that is there already is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if len(asked.names) == 1:
        make(asked.folder, asked.names[0])
        return
    failed = [name for name in asked.names or (*MODELS, *VARIANTS) if not _made_apart(asked.folder, name)]
    if failed:
        sys.exit(f"not made: {', '.join(failed)}")


def _made_apart(folder: Path, name: str) -> bool:
    command = [sys.executable, "-m", "bench.real.export", str(folder), name]
    return subprocess.run(command, check=False).returncode == 0


def make(folder: Path, name: str) -> None:
    """Write one model: exported, or converted from another that is there already."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return
    say(f"making {path}")
    draft = path.with_suffix(".part")
    if name in VARIANTS:
        base, convert = VARIANTS[name]
        convert(folder / f"{base}.onnx", draft)
    else:
        torch.manual_seed(SEED)
        export(MODELS[name](), draft)
    draft.rename(path)


def say(line: str) -> None:
    """Tell at once what is being done."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def export(made: Exportable, path: Path) -> None:
    """Write a module as one ONNX file: by torch's exporter of graphs, else by its older one of traces."""
    made.module.eval()
    fill(made.module, made.arguments)
    warnings.filterwarnings("ignore")
    common = {"input_names": list(made.names), **made.options}
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            torch.onnx.export(
                made.module,
                made.arguments,
                str(path),
                dynamo=True,
                external_data=False,
                optimize=True,
                verbose=False,
                **common,
            )
    except Exception as error:
        say(f"  graph exporter: {str(error).splitlines()[0][:100]}; by traces instead")
        torch.onnx.export(made.module, made.arguments, str(path), dynamo=False, opset_version=17, **common)
    onnx.checker.check_model(str(path))


if __name__ == "__main__":
    main()
