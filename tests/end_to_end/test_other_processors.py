"""Files on processors for which they were not made, under an emulator: refused by name, never other numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from remat_cli.cli import main
from remat_cli.core.values.runs_on import MADE_FOR
from remat_cli.onnx_io.read.compiled import runs_on_at
from remat_cli.onnx_io.write.processor_guard import guard_in
from tests.small_cnn import SIZE, small_cnn

EMULATOR = "qemu-x86_64-static"
PROCESSORS = ["Haswell", pytest.param("Nehalem", marks=pytest.mark.slow)]
SECONDS = 300
RUN_ALL = """
import json, sys
import numpy as np
import onnxruntime as ort
ort.set_default_logger_severity(4)
feeds, found = dict(np.load(sys.argv[1])), {}
for path in sys.argv[2:]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        found[path] = session.run(None, feeds)[0].tobytes().hex()
    except Exception as error:
        found[path] = "error: " + str(error)
print(json.dumps(found))
"""

pytestmark = [
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(
        shutil.which(EMULATOR) is None, reason=f"{EMULATOR} (Debian: qemu-user-static) is not installed"
    ),
]


def outputs_on(processor: str, folder: Path, paths: list[Path]) -> dict[str, str]:
    """Outputs of each model on an emulated processor as hexadecimal digits, or the error, by the file's name."""
    feeds = folder / "feeds.npz"
    np.savez(feeds, x=np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_CORETYPE": processor}
    command = [EMULATOR, "-cpu", processor, os.path.realpath(sys.executable), "-c", RUN_ALL, str(feeds)]
    done = subprocess.run(
        [*command, *map(str, paths)], env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return {Path(path).name: found for path, found in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, cache: None) -> dict[str, Path]:
    """A small network, and what becomes of it: compiled, portable, and compiled with the guard taken out."""
    folder = tmp_path_factory.mktemp("files")
    paths = {name: folder / f"{name}.onnx" for name in ("original", "compiled", "portable", "unguarded")}
    onnx.save(small_cnn(), paths["original"])
    command = ["compile", str(paths["original"]), "--budget", "100%", "--time-limit", "2s", "--verify", "fast"]
    for name, more in (("compiled", []), ("portable", ["--portable"])):
        plan = str(folder / f"{name}.json")
        assert main([*command, "-o", str(paths[name]), "--plan", plan, "--quiet", *more]) == 0
    if runs_on_at(paths["compiled"]).layout_block != 16:
        pytest.skip("this processor's blocks are not those that an older one lacks")
    _without_guard(paths["compiled"], paths["unguarded"])
    return paths


def _without_guard(source: Path, target: Path) -> None:
    """The same file as it was before there were guards: what waits for the guard waits for the model's input."""
    model = ir.load(source)
    guard = next(node for node in model.graph if (node.name or "").startswith(MADE_FOR))
    guard.outputs[0].replace_all_uses_with(model.graph.inputs[0])
    model.graph.remove(guard)
    ir.save(model, target)
    onnx.checker.check_model(onnx.load(target))


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_compiled_file_is_refused_by_name_where_blocks_are_smaller(files, tmp_path, processor):
    found = outputs_on(processor, tmp_path, list(files.values()))
    refusal = found["compiled.onnx"]
    assert refusal.startswith("error: ")
    assert guard_in(ir.load(files["compiled"])).name in refusal
    assert "compile_again_on_this_processor" in refusal
    assert not found["original.onnx"].startswith("error: ")
    unguarded = found["unguarded.onnx"]
    assert not unguarded.startswith("error: "), "the network no longer shows what the guard is for"
    original = np.frombuffer(bytes.fromhex(found["original.onnx"]), np.float32)
    assert np.abs(np.frombuffer(bytes.fromhex(unguarded), np.float32) - original).max() > 1
    portable = np.frombuffer(bytes.fromhex(found["portable.onnx"]), np.float32)
    assert np.array_equal(portable, original)


def test_only_the_file_for_one_processor_has_a_guard_and_both_say_where_they_run(files, capsys):
    assert guard_in(ir.load(files["portable"])) is None
    portable, compiled = runs_on_at(files["portable"]), runs_on_at(files["compiled"])
    assert portable.line.startswith("runs on: any processor ")
    assert portable.layout_block is None
    assert compiled.line.startswith("runs on: x86-64 with AVX-512, ONNX Runtime ")
    assert compiled.line.endswith("for others `--target any`")
    assert compiled.is_guarded
    capsys.readouterr()
    plan = files["compiled"].with_suffix(".json")
    for file in (files["compiled"], plan):
        assert main(["inspect", str(file)]) == 0
        assert capsys.readouterr().out.rstrip().endswith(compiled.line)
    assert main(["verify", str(plan), "--verify", "fast"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(compiled.line)
    assert json.loads(plan.read_text())["runs_on"]["layout_block"] == 16


def test_inspect_says_of_a_file_without_a_guard_that_it_has_none(files, capsys):
    assert main(["inspect", str(files["unguarded"]), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert any("no guard" in warning and "compile it again" in warning for warning in told["warnings"])
    assert told["runs_on"]["is_guarded"] is False
