"""Sizes for which the whole is no more than a tile of the largest: run without a loop, shared tensors made once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.cli import main

HEADS, HEAD, LONGEST, LAYERS = 2, 64, 640, 2
WIDTH = HEADS * HEAD
FIXED = ("--format", "json", "--quiet", "--force", "--verify", "fast", "--time-limit", "60s")


def biased_encoder() -> onnx.ModelProto:
    """Layers of attention that all add one bias of relative positions and a mask, as T5 has it."""
    rng = np.random.default_rng(0)
    weights = {"table": rng.standard_normal((2 * LONGEST, HEADS)).astype(np.float32), "most": np.int64(LONGEST)}
    weights |= {"zero": np.int64(0), "one": np.int64(1), "at1": np.array(1, np.int64), "hidden": np.float32(-1e9)}
    weights |= {"ax0": np.array([0], np.int64), "ax1": np.array([1], np.int64), "ax12": np.array([1, 2], np.int64)}
    weights |= {"split": np.array([0, 0, HEADS, HEAD], np.int64), "joined": np.array([0, 0, WIDTH], np.int64)}
    nodes: list[onnx.NodeProto] = []

    def op(kind: str, *reads: str, to: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, reads, [to], name=to, **attributes))
        return to

    op("Gather", op("Shape", "x", to="shape"), "at1", to="length")
    places = op("Range", "zero", "length", "one", to="places")
    distance = op(
        "Sub", op("Unsqueeze", places, "ax0", to="columns"), op("Unsqueeze", places, "ax1", to="rows"), to="d"
    )
    looked = op("Gather", "table", op("Add", distance, "most", to="bucket"), to="looked")
    bias = op("Unsqueeze", op("Transpose", looked, to="turned", perm=[2, 0, 1]), "ax0", to="bias")
    shown = op("Unsqueeze", op("Greater", "mask", "zero", to="shown"), "ax12", to="mask4")
    masked = op("Where", shown, bias, "hidden", to="masked")
    x = "x"
    for layer in range(LAYERS):
        parts = []
        for part in "qkv":
            weights[f"{part}{layer}"] = (rng.standard_normal((WIDTH, WIDTH)) / 12).astype(np.float32)
            made = op("MatMul", x, f"{part}{layer}", to=f"{part}_flat{layer}")
            perm = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
            parts.append(
                op(
                    "Transpose",
                    op("Reshape", made, "split", to=f"{part}_heads{layer}"),
                    to=f"{part}_{layer}",
                    perm=perm,
                )
            )
        scores = op("Add", op("MatMul", parts[0], parts[1], to=f"qk{layer}"), masked, to=f"scores{layer}")
        seen = op("MatMul", op("Softmax", scores, to=f"share{layer}", axis=-1), parts[2], to=f"seen{layer}")
        flat = op("Reshape", op("Transpose", seen, to=f"back{layer}", perm=[0, 2, 1, 3]), "joined", to=f"flat{layer}")
        x = op("Add", x, flat, to="y" if layer == LAYERS - 1 else f"x{layer}")
    port, dims = helper.make_tensor_value_info, ["batch", "seq"]
    inputs = [port("x", TensorProto.FLOAT, [*dims, WIDTH]), port("mask", TensorProto.INT64, dims)]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [port("y", TensorProto.FLOAT, [*dims, WIDTH])], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """The encoder for any size, in little of what it takes."""
    folder = tmp_path_factory.mktemp("short")
    onnx.save(biased_encoder(), folder / "encoder.onnx")
    dims = ("--dim", "batch=1..2", "--dim", f"seq=1..{LONGEST}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(folder / "cache"))
        arguments = ["compile", str(folder / "encoder.onnx"), "--budget", "40%", *dims, *FIXED]
        assert main([*arguments, "-o", str(folder / "any.onnx")]) == 0
    return folder / "any.onnx"


def ops_of(graph: onnx.GraphProto) -> list[tuple[str, onnx.NodeProto]]:
    """All ops, with the graph that each is in."""
    found = [(graph.name, node) for node in graph.node]
    return found + [each for node in graph.node for a in node.attribute for each in ops_of(a.g)]


def shared_dims(compiled: Path) -> tuple[str, list[dict[str, object]]]:
    """What is made once for short sizes, with its dimensions for all."""
    known = json.loads(compiled.with_suffix(".plan.json").read_text())["promise"]["family"]["dims"]
    return next((name, dims) for name, dims in known.items() if "/shared0/" in name)


@pytest.mark.slow
def test_bits_are_the_users_at_short_sizes_and_long_ones(compiled):
    original, ours = (ort.InferenceSession(str(path)) for path in (compiled.with_name("encoder.onnx"), compiled))
    rng = np.random.default_rng(1)
    for batch, seq in [(1, 1), (2, LONGEST), (1, LONGEST), (2, 3), *((1 + at % 2, 37 + 19 * at) for at in range(30))]:
        feeds = {"x": rng.standard_normal((batch, seq, WIDTH)).astype(np.float32)}
        feeds["mask"] = (rng.random((batch, seq)) < 0.9).astype(np.int64)
        one, other = (session.run(None, feeds)[0] for session in (original, ours))
        assert one.tobytes() == other.tobytes(), (batch, seq)


def test_what_all_layers_read_is_made_once_for_short_sizes(compiled):
    ops = ops_of(onnx.load(compiled).graph)
    whole = [node for graph, node in ops if graph.endswith("/whole")]
    assert [node.op_type for node in whole].count("Softmax") == LAYERS
    assert not [node for node in whole if node.op_type in ("Gather", "Where")]
    assert [node.op_type for _, node in ops].count("Where") == 1 + LAYERS  # once for all, and in the loop of each


def test_the_plan_knows_for_which_sizes(compiled):
    _, dims = shared_dims(compiled)
    bounds = [dim["within"] for dim in dims if "within" in dim]
    assert len(bounds) == 1
    names = [factor["terms"][0]["names"] for factor in bounds[0]["factors"]]
    assert sorted(names) == [["batch"], ["seq"], ["seq"]]
    assert 1 < bounds[0]["most"] < 2 * LONGEST**2
    seen = json.loads(compiled.with_suffix(".plan.json").read_text())["verification"]["family"]["runs"]
    products = sorted(run["sizes"]["batch"] * run["sizes"]["seq"] ** 2 for run in seen)
    assert max(each for each in products if each <= bounds[0]["most"]) > 0.9 * bounds[0]["most"]  # on either side of it
    assert min(each for each in products if each > bounds[0]["most"]) < 1.1 * bounds[0]["most"]


def test_inspect_tells_what_short_sizes_hold(compiled, capsys):
    held = []
    for seq in (64, 200, LONGEST):
        plan = str(compiled.with_suffix(".plan.json"))
        assert main(["inspect", plan, "--format", "json", "--dim", "batch=1", "--dim", f"seq={seq}"]) == 0
        held.append(json.loads(capsys.readouterr().out)["peak_bytes"])
    assert held == sorted(held)
