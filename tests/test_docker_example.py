"""The commands of examples/docker.md do what it says, as far as that shows without docker."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from examples.run_model import STATUS, BadInputError, random_input
from remat_cli.cli import main

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "run_model.py"
TEXT = (ROOT / "examples" / "docker.md").read_text()
OLD = {"ir_version": 8, "opset_imports": [helper.make_opsetid("", 17)]}
WITH_VALUE = {"-m", "--memory-swap", "-v"}
RUN = re.compile(r"run (\d+): ([\d.]+) MiB resident, ([\d.]+) MiB of mapped files, ([\d.]+) MiB at most so far")


def blocks() -> list[str]:
    """The text's shell blocks, those in lists included."""
    return re.findall(r"^ *```sh\n(.*?)```", TEXT, flags=re.DOTALL | re.MULTILINE)


def lines(first: str) -> list[list[str]]:
    """The words of every command that begins so."""
    found = [line.strip() for block in blocks() for line in block.splitlines()]
    return [shlex.split(line) for line in found if line.startswith(first + " ")]


def dockerfile() -> str:
    (build,) = [block for block in blocks() if block.startswith("docker build")]
    return re.search(r"<<'END'\n(.*)\nEND\n", build, flags=re.DOTALL)[1]


def parsed(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """`docker run` taken apart: options, and the command after the image's name."""
    options, rest = {}, words[2:]
    while rest[0].startswith("-"):
        name = rest.pop(0)
        options[name] = rest.pop(0) if name in WITH_VALUE else ""
    assert rest[0] == "ort", "the image that the text builds"
    return options, rest[1:]


def script(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A `python ...` command in a folder, with this Python."""
    assert words[0] == "python"
    done = subprocess.run([sys.executable, *words[1:]], cwd=folder, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done


def figures(printed: str) -> list[tuple[float, float, float]]:
    """Resident, mapped and highest MiB of each run, from what run_model.py prints."""
    rows = [RUN.fullmatch(line).groups() for line in printed.splitlines()]
    assert [int(row[0]) for row in rows] == [*range(1, len(rows) + 1)]
    return [(float(row[1]), float(row[2]), float(row[3])) for row in rows]


def test_the_image_is_the_one_that_the_runs_need():
    assert [line.split()[0] for line in dockerfile().splitlines()] == ["FROM", "RUN", "WORKDIR"]
    assert "RUN pip install onnxruntime numpy" in dockerfile()
    assert lines("docker build")[0][:4] == ["docker", "build", "-t", "ort"]


def test_every_container_has_one_limit_and_no_swap():
    options = [parsed(words)[0] for words in lines("docker run")]
    assert len(options) == 2
    assert options[0] == options[1]
    assert options[0].keys() == {"--rm", *WITH_VALUE}
    assert options[0]["-m"] == options[0]["--memory-swap"]


@pytest.mark.slow  # that a process stays within its budget is seen in end_to_end/test_process_budget.py
@pytest.mark.skipif(not STATUS.exists(), reason="this system does not say what a process holds")
def test_the_compiled_model_fits_where_the_original_does_not(tmp_path, monkeypatch, capsys):
    for folder in ("sample_models", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    sample, tiny = lines("python")
    script(sample, tmp_path)
    (compiling,) = lines("remat")
    code = main([*compiling[1:], "--time-limit", "1s"])
    captured = capsys.readouterr()
    assert not code, captured.err
    for words in ("process memory, measured", "of which mapped files", "the process needs"):
        assert words in captured.out
        assert words in TEXT

    held = []
    for options, command in map(parsed, lines("docker run")):
        source, inside, _ = options["-v"].split(":")
        assert (source, f"WORKDIR {inside}") == ("$PWD", dockerfile().splitlines()[-1])  # so paths stay as they are
        held.append(figures(script(command, tmp_path).stdout))
    original, compiled = held
    assert len(original) == len(compiled) == 20
    size = float(re.fullmatch(r"(\d+)m", options["-m"])[1])
    assert compiled[-1][2] < size < original[-1][2]
    resident, mapped, _ = original[-1]
    assert size < resident - mapped, "the original fits once its mapped files are dropped"

    empty = figures(script(tiny, tmp_path).stdout)[-1][2]
    needed = float(re.search(r"the process needs .*\(([\d.]+) MiB\)", captured.out)[1])
    assert compiled[-1][2] == pytest.approx(empty + needed, abs=8), "the rule for SIZE"


def test_inputs_of_every_ordinary_type_are_made(tmp_path):
    types = [TensorProto.DataType.Name(number) for number in range(1, 14)]  # from FLOAT to UINT64
    values = [helper.make_tensor_value_info(name, getattr(TensorProto, name), ["n", 3]) for name in types]
    results = [helper.make_tensor_value_info(f"{name}.y", getattr(TensorProto, name), None) for name in types]
    nodes = [helper.make_node("Identity", [name], [f"{name}.y"]) for name in types]
    model = helper.make_model(helper.make_graph(nodes, "types", values, results), **OLD)
    onnx.save(model, tmp_path / "types.onnx")
    done = script(["python", str(SCRIPT), "types.onnx", "2"], tmp_path)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["run 1", "run 2"]
    assert not done.stderr


def test_inputs_are_seeded_and_small():
    made = [random_input("x", "tensor(float)", [None, "n", 3], np.random.default_rng(0)) for _ in range(2)]
    assert made[0].shape == (1, 1, 3)
    assert (made[0] == made[1]).all()
    assert random_input("length", "tensor(int64)", [1], np.random.default_rng(0)).tolist() == [1]
    assert set(random_input("ids", "tensor(int64)", [64], np.random.default_rng(0)).tolist()) == {0, 1}
    with pytest.raises(BadInputError, match=r"input xs is a seq\(tensor\(float\)\)"):
        random_input("xs", "seq(tensor(float))", [], np.random.default_rng(0))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "usage: "),
        (["none.onnx"], "no such file: none.onnx"),
        ([str(SCRIPT)], "cannot be opened: "),
        ([str(SCRIPT), "many"], "RUNS is a whole number from 1 on, not 'many'"),
        ([str(SCRIPT), "0"], "RUNS is a whole number"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, words, told):
    done = subprocess.run([sys.executable, SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert told in done.stderr
