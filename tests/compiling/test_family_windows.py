"""Convolutions of pictures of any height and width, computed in rows of tiles: the first, inner ones and the last."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from remat_cli.cli import main
from tests.compiling.test_family import all_ops

AT_ANY_PRICE = ("--max-overhead", "10000%")  # what is promised of memory is looked at, on a machine that may be busy
FIXED = (
    "--format",
    "json",
    "--quiet",
    "--force",
    "--verify",
    "fast",
    "--time-limit",
    "60s",
    "--budget",
    "min",
    *AT_ANY_PRICE,
)


pytestmark = pytest.mark.usefixtures("cache")


def node(op_type: str, read: list[str], made: str, **attributes: object) -> onnx.NodeProto:
    return onnx.helper.make_node(op_type, read, [made], name=made, **attributes)


def saved(path: Path, nodes: list[onnx.NodeProto], weights: dict[str, tuple[int, ...]], dims: list[str]) -> Path:
    """A model whose output is `y`, with normal weights of these shapes."""
    rng = np.random.default_rng(0)
    arrays = {
        name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in weights.items()
    }
    arrays["twice"] = np.array([1, 1, 2, 2], np.float32)
    port = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    ports = [port("x", shape=[1, 3, *dims]), port("y", shape=[1, 4, *(f"{dim}_out" for dim in dims)])]
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "rows", ports[:1], ports[1:], initializers)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def save_plain(path: Path) -> Path:
    """Convolutions one after the other, a sum around two of them, and a stride at the end."""
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "wa"], "a", **pads),
        node("Relu", ["a"], "b"),
        node("Conv", ["b", "wc"], "c", **pads),
        node("Add", ["c", "b"], "d"),
        node("Conv", ["d", "wy"], "y", strides=[2, 2], **pads),
    ]
    return saved(path, nodes, {"wa": (32, 3, 3, 3), "wc": (32, 32, 3, 3), "wy": (4, 32, 3, 3)}, ["height", "width"])


def save_halving(path: Path) -> Path:
    """Halves a picture and doubles it, beside what was there before."""
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "wa"], "a", **pads),
        node("MaxPool", ["a"], "b", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["b", "wc"], "c", **pads),
        node(
            "Resize",
            ["c", "", "twice"],
            "d",
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        node("Concat", ["a", "d"], "e", axis=1),
        node("Conv", ["e", "wf"], "f", **pads),
        node("Relu", ["f"], "g"),
        node("Conv", ["g", "wy"], "y"),
    ]
    weights = {"wa": (16, 3, 3, 3), "wc": (32, 16, 3, 3), "wf": (32, 48, 3, 3), "wy": (4, 32, 1, 1)}
    return saved(path, nodes, weights, ["height", "width"])


def save_padded_by_itself(path: Path) -> Path:
    """The stem of a detector as Paddle writes it: windows of two that pad as they see fit, and a pool of such."""
    pads, own = {"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER", "kernel_shape": [2, 2]}
    nodes = [
        node("Conv", ["x", "wa"], "a", strides=[2, 2], **pads),
        node("Conv", ["a", "wb"], "b", **own),
        node("Relu", ["b"], "c"),
        node("Conv", ["c", "wd"], "d", **own),
        node("MaxPool", ["a"], "e", strides=[1, 1], **own),
        node("Concat", ["d", "e"], "f", axis=1),
        node("Conv", ["f", "wy"], "y", strides=[2, 2], **pads),
    ]
    weights = {"wa": (24, 3, 3, 3), "wb": (12, 24, 2, 2), "wd": (24, 12, 2, 2), "wy": (4, 48, 3, 3)}
    return saved(path, nodes, weights, ["height", "width"])


def save_spread(path: Path) -> Path:
    """The head of a detector: a quarter of a picture, enlarged twice by convolutions that spread."""
    twice = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("Conv", ["x", "wa"], "a", strides=[4, 4], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "wb"], "b", pads=[1, 1, 1, 1]),
        node("ConvTranspose", ["b", "wc"], "c", **twice),
        node("Relu", ["c"], "d"),
        node("ConvTranspose", ["d", "we"], "e", **twice),
        node("Sigmoid", ["e"], "y"),
    ]
    weights = {"wa": (24, 3, 3, 3), "wb": (24, 24, 3, 3), "wc": (24, 24, 2, 2), "we": (24, 4, 2, 2)}
    return saved(path, nodes, weights, ["height", "width"])


MODELS = {
    "plain": (save_plain, "height=9..150", "width=8..40", 1),
    "halving": (save_halving, "height=8..160:2", "width=8..40:4", 2),
}


@pytest.fixture(scope="module", params=["plain", pytest.param("halving", marks=pytest.mark.slow)])
def compiled(request, tmp_path_factory) -> tuple[Path, Path]:
    save, height, width, _ = MODELS[request.param]
    path = save(tmp_path_factory.mktemp(request.param) / "model.onnx")
    written = path.with_name("any.onnx")
    assert main(["compile", str(path), "--dim", height, "--dim", width, *FIXED, "-o", str(written)]) == 0
    return path, written


def plan_of(written: Path) -> dict:
    return json.loads(written.with_suffix(".plan.json").read_text())


def test_bits_are_those_of_the_users_model_at_any_size(compiled):
    path, written = compiled
    ranges = [
        range(each["low"], each["high"] + 1, each.get("step", 1))
        for each in plan_of(written)["request"]["family"]["ranges"]
    ]
    chosen = np.random.default_rng(0)
    sizes = [*zip(*((each[0], each[-1]) for each in ranges), strict=True)]
    sizes += [tuple(int(chosen.choice(each)) for each in ranges) for _ in range(50)]
    original, ours = (ort.InferenceSession(str(each)) for each in (path, written))
    for size in sizes:
        feeds = {"x": chosen.standard_normal((1, 3, *size)).astype(np.float32)}
        assert original.run(None, feeds)[0].tobytes() == ours.run(None, feeds)[0].tobytes(), size


def test_what_is_promised_is_much_less_and_holds(compiled):
    plan = plan_of(compiled[1])
    seen = plan["verification"]["family"]
    assert plan["splitting"]["regions"]
    assert len(seen["runs"]) == 16
    assert all(run["outputs_identical"] and run["order_honoured"] for run in seen["runs"])
    assert max(run["peak_bytes"] for run in seen["runs"]) <= seen["promised_bytes"] + 4096
    assert seen["promised_bytes"] < max(run["original_peak_bytes"] for run in seen["runs"]) * 0.6
    assert plan["splitting"]["facts"][0]["halo_percent"] > 0


def test_models_under_old_operator_sets_list_tiles_too(tmp_path):
    """Where a Loop passes no sequences on, it would hold what it joins three times."""
    path, written = save_plain(tmp_path / "model.onnx"), tmp_path / "any.onnx"
    model = onnx.load(path)
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", 9))
    onnx.save(model, path)
    dims = ("--dim", "height=9..150", "--dim", "width=8..40")
    asked = ("--quiet", "--budget", "60%", *AT_ANY_PRICE, "--no-capped-run")
    assert main(["compile", str(path), *asked, *dims, "-o", str(written)]) == 0
    made = onnx.load(written)
    assert "ConcatFromSequence" in {each.op_type for each in all_ops(made.graph)}
    original, ours = (ort.InferenceSession(str(each)) for each in (path, written))
    for at, size in enumerate([(150, 40), (40, 8), (9, 8), (150, 39), (61, 17)]):
        feeds = {"x": np.random.default_rng(at).standard_normal((1, 3, *size)).astype(np.float32)}
        assert original.run(None, feeds)[0].tobytes() == ours.run(None, feeds)[0].tobytes(), size


def test_pictures_whose_channels_come_last_between_convolutions_run_in_rows(tmp_path):
    """The runtime makes the Transposes part of what puts blocks of channels in order: rows are another axis there."""
    nodes = [
        node("Conv", ["x", "wa"], "a", pads=[1, 1, 1, 1]),
        node("Transpose", ["a"], "last", perm=[0, 2, 3, 1]),
        node("LayerNormalization", ["last", "wm", "ws"], "even"),
        node("Transpose", ["even"], "first", perm=[0, 3, 1, 2]),
        node("Conv", ["first", "wb"], "b", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Conv", ["b", "wc"], "y"),
    ]
    weights = {"wa": (32, 3, 3, 3), "wm": (32,), "ws": (32,), "wb": (16, 32, 3, 3), "wc": (4, 16, 1, 1)}
    path, written = saved(tmp_path / "model.onnx", nodes, weights, ["height", "width"]), tmp_path / "any.onnx"
    dims = ("--dim", "height=8..160:8", "--dim", "width=8..64:8")
    asked = ("--quiet", "--budget", "40%", *AT_ANY_PRICE, "--no-capped-run")
    assert main(["compile", str(path), *asked, *dims, "-o", str(written)]) == 0
    outside, everywhere = onnx.load(written).graph.node, all_ops(onnx.load(written).graph)
    inside = [each for each in everywhere if each.name not in {op.name for op in outside}]
    turned = {each.op_type for each in inside for a in each.attribute if a.name == "channels_last" and a.i}
    assert turned == {"ReorderInput", "ReorderOutput"}
    original, ours = (ort.InferenceSession(str(each)) for each in (path, written))
    for at, size in enumerate([(160, 64), (8, 8), (80, 16), (160, 56), (152, 64)]):
        feeds = {"x": np.random.default_rng(at).standard_normal((1, 3, *size)).astype(np.float32)}
        assert original.run(None, feeds)[0].tobytes() == ours.run(None, feeds)[0].tobytes(), size


def test_weights_are_there_once(compiled):
    def arrays(graph: onnx.GraphProto) -> int:
        inner = (arrays(a.g) for each in graph.node for a in each.attribute if a.HasField("g"))
        return sum(len(w.raw_data) for w in graph.initializer) + sum(inner)

    original, ours = (arrays(onnx.load(path).graph) for path in compiled)
    assert ours < 1.5 * original  # channels may be filled up to whole blocks


def test_it_verifies_again(compiled, capsys):
    assert main(["verify", str(compiled[1].with_suffix(".plan.json")), "--verify", "fast"]) == 0
    assert "outputs identical at 16 of them" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "budget", "cut"),
    [(save_padded_by_itself, "50%", {"MaxPool", "Concat"}), (save_spread, "60%", {"ConvTranspose"})],
)
def test_detectors_of_any_size_run_in_rows(save, budget, cut, tmp_path):
    path, written = save(tmp_path / "model.onnx"), tmp_path / "any.onnx"
    dims = ("--dim", "height=32..320:32", "--dim", "width=32..96:32")
    asked = (*dims, "--budget", budget, "--time-limit", "10min", *AT_ANY_PRICE, "--no-capped-run", "--quiet")
    assert main(["compile", str(path), *asked, "-o", str(written)]) == 0
    plan = plan_of(written)
    types = {each.name: each.op_type for each in onnx.load(path).graph.node}
    assert cut <= {types.get(op) for region in plan["splitting"]["regions"] for op in region["ops"]}
    original, ours = (ort.InferenceSession(str(each)) for each in (path, written))
    sizes = [(320, 96), (32, 32), (64, 96), (320, 96), (288, 32), (160, 64), (192, 96)]
    for at, size in enumerate(sizes):
        feeds = {"x": np.random.default_rng(at).standard_normal((1, 3, *size)).astype(np.float32)}
        assert original.run(None, feeds)[0].tobytes() == ours.run(None, feeds)[0].tobytes(), size
