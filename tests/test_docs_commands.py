"""Every command and every snippet of the pages for people does what it says, in the order of the page."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.cli import main, make_group
from remat_cli.settings.devices import read_device
from tests.docs_text import ROOT, blocks, commands, page, shell_commands

PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", *(f"docs/{each.name}" for each in ROOT.glob("docs/*.md"))]
OWN_TESTS = {
    "docs/deploy.md": "tests/test_docs_deploy.py",
    "docs/compile-last.md": "tests/test_olive.py",
    "CONTRIBUTING.md": "test_the_rule_of_the_contributing_page_is_one_of_the_table",
}
"""Pages whose code is run by other tests."""
PLANNING = {"compile", "train", "max-batch"}
RESULTS = ("*.remat.onnx*", "*.plan.json", "*.train.onnx*", "*.state.npz", "*.failed.onnx*", "*.gated.onnx*")
RESULTS = (*RESULTS, "*.sweep.jsonl", "*.stages")
FOLDERS = ("sample_models", "examples", "configs/bench", "configs/devices", "bench/instances")
LANGUAGES = {"sh", "python", "text", "yaml"}
DRAWN = () if find_spec("vl_convert") else ("remat report",)  # by an extra
LAST_MADE = {
    "README.md": "sample_models/unet.remat.onnx",
    "docs/budgets.md": "chain.svg",
    "docs/devices.md": "placed.svg",
    "docs/files.md": "detector.remat.onnx",
    "docs/fit.md": "curve.svg",
    "docs/memory.md": "held.svg",
    "docs/paging.md": "trace.json",
    "docs/pipelines.md": "trained.npz",
    "docs/sample_models.md": "zoo/resnet18.train.remat.onnx",
    "docs/see.md": "verify.json",
    "docs/sizes.md": "examples/encoder.remat.onnx",
    "docs/solvers.md": "plots",
    "docs/splitting.md": "small-tensors.onnx",
    "docs/start.md": "memory.svg",
    "docs/training.md": "small.train.onnx",
    "docs/verify.md": "sample_models/unet.remat.onnx",
}
"""What a page's commands leave, by pages that have commands of remat."""
FAST = {"README.md": 3}
"""Pages that fast tests run, and the seconds for a plan there."""
slow = pytest.mark.slow


def runnable() -> list[str]:
    """Pages with commands of remat that this file runs."""
    return [
        name for name in PAGES if name not in OWN_TESTS and any("remat " in line for line in shell_commands(page(name)))
    ]


def copy_without_results(folder: str, target: Path) -> None:
    """A folder of the checkout as it is at first: not with what a reader made there who followed a page."""
    shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns(*RESULTS))


def quick(words: list[str], seconds: int) -> list[str]:
    """The command with less time for a plan where the text leaves it at 30 s: whether it works, not how well."""
    is_open = words[0] in PLANNING and not {"--time-limit", "--help", "--help-all"} & set(words)
    return [*words, "--time-limit", f"{seconds}s"] if is_open else words


def save_detector(path: Path) -> None:
    """A network of convolutions as Paddle writes it, with dimensions that all have the same name: none."""
    generator = np.random.default_rng(0)
    nodes, weights, value, channels = [], [], "x", 3
    for place, wider in enumerate((16, 16, 4)):
        kernel = generator.standard_normal((wider, channels, 3, 3)).astype(np.float32) / 16
        weights.append(numpy_helper.from_array(kernel, f"kernel_{place}"))
        nodes.append(helper.make_node("Conv", [value, f"kernel_{place}"], [f"c{place}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{place}"], [f"r{place}"]))
        value, channels = f"r{place}", wider
    nodes.append(helper.make_node("GlobalMaxPool", [value], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["?", 3, "?", "?"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["?", channels, 1, 1])
    graph = helper.make_graph(nodes, "detector", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def run_line(line: str, seconds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of a page; those of make and pip are for whoever reads it."""
    words = shlex.split(line)
    if words[0] == "remat":
        try:
            code = main(quick(words[1:], seconds))
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        assert not code, f"{line}: exit {code}: {captured.err}"
        assert captured.out, line
    elif words[0] == "python":
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    else:
        assert words[0] in {"make", "pip"}, line


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else slow) for name in runnable()])
def test_the_code_of_the_page_runs(tmp_path, monkeypatch, capsys, name):
    for folder in FOLDERS:
        copy_without_results(folder, tmp_path)
    save_detector(tmp_path / "detector.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    found: dict[str, object] = {}
    for language, code in blocks(page(name)):
        if language == "sh":
            for line in commands(code):
                if not any(word in line for word in DRAWN):
                    run_line(line, FAST.get(name, 15), capsys)
        if language == "python":
            exec(compile(code.replace('"30s"', '"1s"'), name, "exec"), found)
    assert (tmp_path / LAST_MADE[name]).exists()


@pytest.mark.parametrize("name", [name for name in PAGES if blocks(page(name))])
def test_the_remat_commands_are_ones_that_there_are_with_options_that_they_take(name):
    """Of those too that are shown and not run, and of files that the text names and the checkout has."""
    shown = [line for language, code in blocks(page(name)) if language in {"sh", "text"} for line in commands(code)]
    for line in shown:
        if not line.startswith("remat ") or "[OPTIONS]" in line:
            continue
        command, *words = shlex.split(line)[1:]
        options = {
            text for each in make_group().commands[command].params for text in (*each.opts, *each.secondary_opts)
        }
        asked = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert asked <= options | {"--help", "--help-all"}, (line, asked - options)
        sources = [word for word in words if word.endswith((".onnx", ".yaml", ".json")) and "/" in word]
        made = [word for word in sources if re.search(r"\.(plan|train|remat|stages)\b", word) or "zoo/" in word]
        assert all((ROOT / word).is_file() for word in sources if word not in made), (line, sources)


def test_all_code_is_of_a_kind_that_some_test_runs():
    for name in PAGES:
        languages = {language for language, _ in blocks(page(name))}
        known = LANGUAGES | ({"js", "cpp", "csharp", "java", "rust"} if name == "docs/deploy.md" else set())
        assert languages <= known, name
        assert not re.search(r"\n\n    (remat|python|make|pip) ", page(name)), f"{name}: commands in no block"
    assert set(runnable()) == set(LAST_MADE)


def test_options_that_the_text_names_are_options():
    """In all pages, wherever a word looks like an option of ours."""
    known = {
        text
        for each in make_group().commands.values()
        for one in each.params
        for text in (*one.opts, *one.secondary_opts)
    }
    known |= {"--help", "--help-all", "--version"}
    others = {"--rm", "--memory-swap", "--spec", "--from", "--local", "--expose-gc", "--gpu", "--device", "--shard"}
    others |= {
        "--config",
        "--package-config",
        "--optimization_style",
        "--zoo",
        "--only",
        "--out",
        "--length",
        "--width",
    }
    others |= {"--training", "--batch", "--resolution"}
    for name in PAGES:
        named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", re.sub(r"<!--.*?-->", "", page(name))))
        assert named <= known | others, (name, named - known - others)


def test_the_device_file_of_the_paging_page_is_one(tmp_path):
    (code,) = [code for language, code in blocks(page("docs/paging.md")) if language == "yaml"]
    (tmp_path / "device.yaml").write_text(code.replace("/fast", str(tmp_path)))
    assert read_device(tmp_path / "device.yaml").spill


def test_the_rule_of_the_contributing_page_is_one_of_the_table():
    (code,) = [code for language, code in blocks(page("CONTRIBUTING.md")) if language == "python"]
    assert code.strip() in page("remat_cli/splitting/rules/table.py")


def test_the_gradient_rule_of_the_training_page_gives_the_gradient_that_it_says(tmp_path, monkeypatch, capsys):
    """For an op that has none here, so that what comes out is the page's: that of x * x * x."""
    (code,) = [code for language, code in blocks(page("docs/training.md")) if language == "python"]
    (tmp_path / "my_rules.py").write_text(code)
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["product"]),
        helper.make_node("Round", ["product"], ["rounded"]),
        helper.make_node("ReduceSum", ["rounded"], ["loss"], keepdims=0),
    ]
    w = numpy_helper.from_array(np.array([0.5, -2.0, 3.0], np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "rounding", [x], [loss], [w])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "rounding.onnx"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["train", "rounding.onnx", "--loss-output", "loss", "--gradients-only"]
    assert main([*words, "--gradient-rule", "Round=my_rules:my_op"]) == 0, capsys.readouterr().err
    session = ort.InferenceSession("rounding.train.onnx", providers=["CPUExecutionProvider"])
    given = {"x": np.array([1.0, 2.0, -1.0], np.float32)}
    given |= {each.name: numpy_helper.to_array(w) for each in session.get_inputs() if each.name == "w"}
    (gradient,) = session.run(["w.gradient"], given)
    product = given["x"] * numpy_helper.to_array(w)
    assert np.allclose(gradient, 3 * product**2 * given["x"])
