"""Sizes in steps: models that only run at multiples, such as ones that halve a picture and put it together again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from remat_cli.cli import main
from remat_cli.compiling.blame import in_steps
from remat_cli.compiling.search.family_dims import small_sizes
from remat_cli.compiling.search.family_sizes import sizes_to_check
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.values.sizes import SizeFamily, SizeRange

FIXED = ("--format", "json", "--quiet", "--force", "--verify", "fast", "--time-limit", "60s", "--budget", "100%")
DIMS = ("--dim", "height=8..64:8", "--dim", "width=16..40:4")


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def halving(tmp_path_factory) -> Path:
    """Halves a picture twice and doubles it twice, by a Resize and by a ConvTranspose, beside what was there before."""
    rng, weights = np.random.default_rng(0), list[onnx.TensorProto]()
    node = onnx.helper.make_node

    def conv(read: str, made: str, shape: tuple[int, ...], **attributes: object) -> onnx.NodeProto:
        weights.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 9, f"{made}/w"))
        kind = "ConvTranspose" if shape[2] == 2 else "Conv"
        return node(kind, [read, f"{made}/w"], [made], **attributes)

    weights.append(onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "twice"))
    pads, halves = {"pads": [1, 1, 1, 1]}, {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        conv("x", "a", (16, 3, 3, 3), **pads),
        node("MaxPool", ["a"], ["b"], **halves),
        conv("b", "c", (32, 16, 3, 3), **pads),
        node("MaxPool", ["c"], ["d"], **halves),
        conv("d", "e", (32, 32, 3, 3), **pads),
        node("Resize", ["e", "", "twice"], ["f"], mode="nearest"),
        node("Concat", ["f", "c"], ["g"], axis=1),
        conv("g", "h", (64, 16, 2, 2), strides=[2, 2]),
        node("Concat", ["h", "a"], ["i"], axis=1),
        conv("i", "y", (4, 32, 3, 3), **pads),
    ]
    port = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    ports = [port("x", shape=[1, 3, "height", "width"]), port("y", shape=[1, 4, "height", "width"])]
    graph = onnx.helper.make_graph(nodes, "halving", ports[:1], ports[1:], weights)
    path = tmp_path_factory.mktemp("steps") / "halving.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def compiled(halving) -> Path:
    written = halving.with_name("any.onnx")
    assert main(["compile", str(halving), *DIMS, *FIXED, "-o", str(written)]) == 0
    return written


def test_bits_are_those_of_the_users_model_at_every_step(halving, compiled):
    original, ours = (ort.InferenceSession(str(path)) for path in (halving, compiled))
    sizes = [(height, width) for height in range(8, 65, 8) for width in range(16, 41, 4)]
    for at in np.random.default_rng(0).permutation(len(sizes)):
        feeds = {"x": np.random.default_rng(at).standard_normal((1, 3, *sizes[at])).astype(np.float32)}
        assert np.array_equal(original.run(None, feeds)[0], ours.run(None, feeds)[0]), sizes[at]


def test_the_plan_has_the_steps_and_was_verified_on_them(compiled):
    plan = json.loads(compiled.with_suffix(".plan.json").read_text())
    assert plan["request"]["family"]["ranges"] == [
        {"name": "height", "low": 8, "high": 64, "step": 8},
        {"name": "width", "low": 16, "high": 40, "step": 4},
    ]
    runs = plan["verification"]["family"]["runs"]
    assert len(runs) == 16
    assert all(run["outputs_identical"] for run in runs)
    assert all(run["sizes"]["height"] % 8 == run["sizes"]["width"] % 4 == 0 for run in runs)
    assert any(run["sizes"]["height"] < run["sizes"]["width"] for run in runs)


def test_a_size_off_the_step_is_refused(compiled, capsys):
    path = str(compiled.with_suffix(".plan.json"))
    assert main(["inspect", path, "--dim", "height=48", "--dim", "width=20", "-q"]) == 0
    capsys.readouterr()
    assert main(["inspect", path, "--dim", "height=44", "-q"]) == 2
    said = capsys.readouterr().err
    assert "height=44, width=40 is not among the sizes that the plan is for: height=8..64:8, width=16..40:4" in said
    assert said.count("\n") == 1


def test_a_model_that_runs_at_multiples_only_names_the_next_step(halving, capsys):
    words = ("--dim", "height=8..64", "--dim", "width=16..40", *FIXED, "-o", str(halving.with_name("no.onnx")))
    assert main(["compile", str(halving), *words]) == 2
    said = capsys.readouterr().err
    assert "where the model only runs at multiples give a step, such as --dim height=16..64:16" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SizeRange("height", 32, 256), "such as --dim height=32..256:16"),
        (SizeRange("height", 33, 250), "such as --dim height=48..240:16"),
        (SizeRange("height", 32, 256, 16), "such as --dim height=32..256:32"),
        (SizeRange("batch", 1, 4), ""),
    ],
)
def test_a_step_that_is_told_is_one_that_can_be_given(given, said):
    assert in_steps(SizeFamily((given,))).endswith(said)
    assert bool(in_steps(SizeFamily((given,)))) == bool(said)
    assert in_steps(None) == ""


@pytest.mark.parametrize("step", [2, 3, 16])
def test_small_sizes_are_on_the_step(step):
    for count in range(2, 30):
        each = SizeRange("height", 32, 32 + step * (count - 1), step)
        seen = [sizes["height"] for sizes in small_sizes(SizeFamily((each,)))]
        assert len(set(seen)) >= min(count, 3), count
        assert set(seen) <= set(each.sizes), count


def test_sizes_to_check_are_on_the_step(compiled):
    plan = read_plan(compiled.with_suffix(".plan.json"))
    assert plan.request.family is not None
    assert all(plan.request.family.admits(sizes) for sizes in sizes_to_check(plan))
