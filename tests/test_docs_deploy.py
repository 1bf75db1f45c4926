"""The page on where a compiled file runs: what it says can be run is run, with the data file beside the model."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
NODE_MODULES = ROOT / "build" / "targets" / "node" / "node_modules"
"""What `make setup-node` puts there."""
SHAPE = (1, 3, 224, 224)
X = np.full(SHAPE, 0.5, np.float32)
ENDS = {
    "Node": "main().then((y) => require('node:fs').writeFileSync('y.bin', y))\n",
    "Browser": "import fs from 'node:fs'\nfs.writeFileSync('y.bin', await main())\nprocess.exit(0)\n",
}
"""What lets a snippet run by itself, and keep what it gives."""
needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not NODE_MODULES.is_dir(), reason="no packages of Node are here: `make setup-node`"
)

pytestmark = pytest.mark.usefixtures("cache")


def sections() -> dict[str, list[str]]:
    """The code of each section."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"```\w+\n(.*?)```", text, flags=re.DOTALL)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.fixture(scope="module")
def folder(cache, tmp_path_factory) -> Path:
    """A folder with a model, what became of it with a data file, and the same for any processor."""
    made = tmp_path_factory.mktemp("deploy")
    save_network(made / "original.onnx")
    for name, is_portable in (("model", False), ("portable", True)):
        found = remat_cli.compile(
            made / "original.onnx",
            budget="100%",
            output=made / f"{name}.onnx",
            external_data=True,
            portable=is_portable,
            verify="off",
        )
        assert found.exit_code == 0
        assert (made / f"{name}.onnx.data").stat().st_size > 2**20
    return made


def save_network(path: Path) -> None:
    """A convolution, and a product with weights large enough for a data file."""
    generator = np.random.default_rng(0)
    weights = {
        "kernel": generator.standard_normal((8, 3, 7, 7)).astype(np.float32) / 8,
        "weight": generator.standard_normal((8 * 56 * 56, 16)).astype(np.float32) / 64,
        "flat": np.array([1, -1], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], "conv", strides=[4, 4], pads=[3, 3, 3, 3]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Reshape", ["r", "flat"], ["f"], "reshape"),
        helper.make_node("MatMul", ["f", "weight"], ["y"], "product"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in (("x", SHAPE), ("y", (1, 16)))
    )
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "network", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def there(folder, tmp_path, monkeypatch) -> Path:
    """A folder of its own with those files, in which code runs."""
    shutil.copytree(folder, tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    return tmp_path / "there"


def original(folder: Path) -> np.ndarray:
    """What the original gives in a default session here."""
    session = ort.InferenceSession(folder / "original.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


def test_every_language_has_a_snippet_and_says_whether_it_was_run():
    code, texts = sections(), re.split(r"^## ", PAGE, flags=re.MULTILINE)
    for language in ("Python", "Node", "Browser", "C++", "C#", "Java", "Rust"):
        assert code[language], language
        (text,) = (each for each in texts if each.startswith(f"{language}\n"))
        assert re.search(r"^(Run|Not run) by (our tests|us)\b", text, flags=re.MULTILINE), language
        assert "model.onnx" in code[language][0]


@pytest.mark.parametrize("number", [0, 1], ids=["path", "bytes"])
def test_python(there, number):
    found: dict[str, np.ndarray] = {}
    exec(sections()["Python"][number], found)
    assert np.array_equal(found["y"], original(there))


def test_bytes_without_the_folder_are_refused(there, tmp_path, monkeypatch):
    """As bytes the file is looked for where the program runs."""
    data = (there / "model.onnx").read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"model\.onnx\.data"):
        ort.InferenceSession(data, providers=["CPUExecutionProvider"])


def test_the_format_for_phones(there):
    (command,) = sections()["Phones"]
    words = shlex.split(command)[1:]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    session = ort.InferenceSession(there / "model.ort", providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, {"x": X})[0], original(there))


@needs_node
@pytest.mark.parametrize(("title", "suffix", "name"), [("Node", "cjs", "model"), ("Browser", "mjs", "portable")])
def test_javascript(there, title, suffix, name):
    """In WebAssembly bits are those of the original there: both are given to the same snippet."""
    (there / "node_modules").symlink_to(NODE_MODULES)
    found = []
    for model in (name, "original"):
        code = sections()[title][0].replace("model.onnx", f"{model}.onnx")
        if model == "original":
            code = code.replace("externalData: ['original.onnx.data'],", "")
        program = there / f"{model}.{suffix}"
        program.write_text(f"{code}\n{ENDS[title]}")
        words = ["node", program.name]
        environment = os.environ | {"ORT_DISABLE_TELEMETRY": "1"}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr[-500:]
        found.append(np.fromfile(there / "y.bin", np.float32))
    ours, theirs = found
    assert ours.shape == (16,)
    assert np.abs(theirs).max() > 0.1
    if title == "Node":
        assert np.array_equal(ours, theirs)
        assert np.array_equal(ours, original(there).reshape(-1))
    else:
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


LOOP = """
const ort = require('onnxruntime-node')
const taken = () => process.memoryUsage.rss()
async function main() {
  const session = await ort.InferenceSession.create('chain.onnx')
  const { name, shape } = session.inputMetadata[0]
  const feeds = { [name]: new ort.Tensor('float32', new Float32Array(shape.reduce((a, b) => a * b)), shape) }
  const after = []
  for (const last of [4, 20]) {
    for (let run = 0; run < last; run += 1) {
      await session.run(feeds)
      if (COLLECTS) collect()
    }
    after.push(taken())
  }
  console.log(after[1] - after[0])
}
main()
"""


@needs_node
def test_old_outputs_go_late_in_node_but_for_the_collector(there, samples):
    (there / "node_modules").symlink_to(NODE_MODULES)
    shutil.copy(samples.compiled("chain", "60%").output, there / "chain.onnx")
    grown = []
    for collects in ("true", "false"):
        code = f"{sections()['Node'][1]}{LOOP.replace('COLLECTS', collects)}"
        (there / "loop.cjs").write_text(code)
        done = subprocess.run(["node", "loop.cjs"], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr[-500:]
        grown.append(int(done.stdout))
    assert grown[0] < 2 * 2**20 < 6 * 2**20 < grown[1], grown


@needs_node
def test_a_page_without_its_data_file_is_told_so(there):
    (there / "node_modules").symlink_to(NODE_MODULES)
    code = re.sub(r"externalData:.*", "", sections()["Browser"][0]).replace("model.onnx", "portable.onnx")
    (there / "snippet.mjs").write_text(f"{code}\nawait main().catch((error) => console.log(error.message))\n")
    done = subprocess.run(["node", "snippet.mjs"], capture_output=True, text=True, check=False, timeout=120)
    assert "Module.MountedFiles is not available" in done.stdout
