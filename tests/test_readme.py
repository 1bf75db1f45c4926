"""Every command of the README does what it says."""

from __future__ import annotations

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from remat_cli.cli import main, make_group

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
DEVICES = (ROOT / "docs" / "devices.md").read_text()
PAGING = (ROOT / "docs" / "paging.md").read_text()
SOLVERS = (ROOT / "docs" / "solvers.md").read_text()
PIPELINES = (ROOT / "docs" / "pipelines.md").read_text()
SEE = (ROOT / "docs" / "see.md").read_text()
PLANNING = {"compile", "train", "max-batch"}
RESULTS = ("*.remat.onnx*", "*.plan.json", "*.train.onnx*", "*.state.npz", "*.failed.onnx*", "*.gated.onnx*")
RESULTS = (*RESULTS, "*.sweep.jsonl")
LONG = ("max-batch", "inception", "chain.train", "densenet", "encoder", "20MiB", "--max-tensor", "small.train")
LONG = (*LONG, "thorough", "compare", "bench", "24MiB", "chain.onnx --budget 50%", "digits.train.onnx --budget")
LONG = (*LONG, "sweep")
DRAWN = () if find_spec("vl_convert") else ("remat report",)  # by an extra
LONG = (*LONG, *DRAWN)
"""Commands with these words take many seconds: they run where the whole README does, and are looked at below."""


def commands(text: str = README) -> list[str]:
    """Lines of a text's shell blocks, comments cut off."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.split("#")[0].strip()]


def test_there_are_commands():
    assert {line.split()[0] for line in commands()} == {"make", "pip", "remat"}


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"make ([a-z]+(?:-[a-z]+)*)`?", README)) - {"it"}
    assert {"demo", "test"} <= named
    assert named - {"is"} <= targets | {"anew"}


def test_files_that_the_readme_names_exist():
    for path in re.findall(r"\]\(([^)]+)\)|`(bench/[^`]+)`", README):
        assert (ROOT / (path[0] or path[1])).is_file(), path


def copy_without_results(folder: str, target: Path) -> None:
    """A folder of the checkout as it is at first: not with what a reader made there who followed the README."""
    shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns(*RESULTS))


def quick(words: list[str]) -> list[str]:
    """The command with three seconds per plan, where the text leaves it at 30: whether it works, not how well."""
    is_open = words[0] in PLANNING and not {"--time-limit", "--help"} & set(words)
    return [*words, "--time-limit", "3s"] if is_open else words


@pytest.mark.parametrize(
    ("text", "made", "left_out"),
    [
        pytest.param(README, "memory.svg", LONG, id="README"),
        pytest.param(README, "trace.json", (), id="all of the README", marks=pytest.mark.slow),
        pytest.param(DEVICES, "placed.svg", (), id="docs/devices", marks=pytest.mark.slow),
        pytest.param(SOLVERS, "bench/instances/gpt_3_layers_train.json", (), id="docs/solvers", marks=pytest.mark.slow),
        pytest.param(PAGING, "trace.json", (), id="docs/paging", marks=pytest.mark.slow),
        pytest.param(SEE, "verify.json", DRAWN, id="docs/see", marks=pytest.mark.slow),
        pytest.param(PIPELINES, "trained.npz", (), id="docs/pipelines", marks=pytest.mark.slow),
    ],
)
def test_the_remat_commands_run_in_the_order_of_the_text(tmp_path, monkeypatch, capsys, text, made, left_out):
    for folder in ("sample_models", "examples", "configs/bench", "configs/devices", "bench/instances"):
        copy_without_results(folder, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    for line in commands(text):
        if line.startswith("remat ") and not any(word in line for word in left_out):
            words = quick(shlex.split(line)[1:])
            try:
                code = main(words)
            except SystemExit as stop:
                code = stop.code
            captured = capsys.readouterr()
            assert not code, f"{line}: exit {code}: {captured.err}"
            assert captured.out, line
    assert (tmp_path / made).is_file()


@pytest.mark.parametrize("text", [README, DEVICES, PAGING, SOLVERS, PIPELINES, SEE], ids=range(6))
def test_the_remat_commands_are_ones_that_there_are_with_options_that_they_take(text):
    """Of those too that are left out above, and of files that the text names and the checkout has."""
    lines = [shlex.split(line)[1:] for line in commands(text) if line.startswith("remat ")]
    assert lines
    for name, *words in lines:
        options = {text for each in make_group().commands[name].params for text in (*each.opts, *each.secondary_opts)}
        asked = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert asked <= options | {"--help", "--help-all"}, (name, asked - options)
        sources = [word for word in words if word.endswith((".onnx", ".yaml", ".json")) and "/" in word]
        made = [word for word in sources if re.search(r"\.(plan|train|remat|stages)\b", word)]
        assert all((ROOT / word).is_file() for word in sources if word not in made), (name, sources)


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    copy_without_results("sample_models", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    (block,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if "remat.compile" in block
    ]
    exec(compile(block.replace('"30s"', '"1s"'), "README.md", "exec"), {})
    assert "unet.remat.onnx" in capsys.readouterr().out


def test_the_exit_codes_are_those_of_the_command_line():
    words = {0: "done", 2: "usage", 3: "budget proved impossible", 4: "no plan found", 5: "verification"}
    for code, word in words.items():
        assert re.search(rf"{code} {word}", README), word
