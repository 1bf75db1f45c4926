"""One file for a whole conversation: a cache that starts empty, outputs fed back, a sum that is limited."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.decoder_models import Decoder as FourBits
from bench.decoder_models import decoder as four_bits
from remat_cli.cli import main

LAYERS, HEADS, WIDTH, WORDS = 2, 4, 64, 200
SIZES = ("--dim", "batch=1", "--dim", "past=0..512", "--dim", "seq=1..128", "--limit", "past+seq<=512")


class Decoder:
    """A language model as exporters write it: words, a mask and caches in; what comes next and longer caches out."""

    def __init__(self, total: str) -> None:
        self.total, self.nodes, self.weights = total, [], []
        self.dice = np.random.default_rng(0)

    def weight(self, name, values, kind=np.float32):
        self.weights.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def drawn(self, name, *shape):
        return self.weight(name, self.dice.standard_normal(shape) / np.sqrt(shape[0]))

    def op(self, kind, reads, made, **attributes):
        self.nodes.append(helper.make_node(kind, reads, [made], made, **attributes))
        return made

    def saved(self, path):
        self.op("Gather", [self.drawn("words", WORDS, WIDTH), "ids"], "layer0")
        self.op("Unsqueeze", ["mask", self.weight("axes", [1, 2], np.int64)], "wide")
        self.op("Cast", ["wide"], "seen", to=TensorProto.FLOAT)
        self.op("Sub", [self.weight("one", 1.0), "seen"], "hidden")
        self.op("Mul", ["hidden", self.weight("far", -1e9)], "apart")
        self.weight("split", [0, 0, HEADS, WIDTH // HEADS], np.int64)
        self.weight("joined", [0, 0, WIDTH], np.int64)
        self.weight("scale", (WIDTH // HEADS) ** -0.5)
        for number in range(LAYERS):
            self.attention(f"a{number}/", f"layer{number}", number)
            self.gated(f"g{number}/", f"a{number}/sum", f"layer{number + 1}")
        self.op("MatMul", [f"layer{LAYERS}", self.drawn("head", WIDTH, WORDS)], "scores")
        caches = [f"{number}_{kind}" for number in range(LAYERS) for kind in "kv"]
        ports = [("ids", TensorProto.INT64, ["batch", "seq"]), ("mask", TensorProto.INT64, ["batch", self.total])]
        cache = ["batch", HEADS, "past", WIDTH // HEADS]
        longer = ["batch", HEADS, self.total, WIDTH // HEADS]
        ports += [(f"past_{name}", TensorProto.FLOAT, cache) for name in caches]
        ends = [("scores", TensorProto.FLOAT, ["batch", "seq", WORDS])]
        ends += [(f"present_{name}", TensorProto.FLOAT, longer) for name in caches]
        infos = [[helper.make_tensor_value_info(*port) for port in each] for each in (ports, ends)]
        graph = helper.make_graph(self.nodes, "decoder", *infos, self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    def norm(self, name, source):
        return self.op("LayerNormalization", [source, self.drawn(f"{name}w", WIDTH)], name, axis=-1)

    def attention(self, name, source, number):
        normed = self.norm(f"{name}norm", source)
        for kind in "qkv":
            made = self.op("MatMul", [normed, self.drawn(f"{name}w{kind}", WIDTH, WIDTH)], f"{name}{kind}")
            heads = self.op("Reshape", [made, "split"], f"{name}{kind}4")
            self.op("Transpose", [heads], f"{name}{kind}t", perm=[0, 2, 1, 3])
        for kind in "kv":
            self.op("Concat", [f"past_{number}_{kind}", f"{name}{kind}t"], f"present_{number}_{kind}", axis=2)
        turned = self.op("Transpose", [f"present_{number}_k"], f"{name}keys", perm=[0, 1, 3, 2])
        scores = self.op("MatMul", [f"{name}qt", turned], f"{name}scores")
        masked = self.op("Add", [self.op("Mul", [scores, "scale"], f"{name}scaled"), "apart"], f"{name}masked")
        shares = self.op("Softmax", [masked], f"{name}shares", axis=-1)
        found = self.op("MatMul", [shares, f"present_{number}_v"], f"{name}found")
        turned = self.op("Transpose", [found], f"{name}turned", perm=[0, 2, 1, 3])
        flat = self.op("Reshape", [turned, "joined"], f"{name}flat")
        mixed = self.op("MatMul", [flat, self.drawn(f"{name}wo", WIDTH, WIDTH)], f"{name}mixed")
        self.op("Add", [source, mixed], f"{name}sum")

    def gated(self, name, source, made):
        normed = self.norm(f"{name}norm", source)
        wide = self.op("MatMul", [normed, self.drawn(f"{name}w1", WIDTH, 4 * WIDTH)], f"{name}wide")
        gate = self.op("Sigmoid", [wide], f"{name}gate")
        lean = self.op("Mul", [wide, gate], f"{name}gated")
        back = self.op("MatMul", [lean, self.drawn(f"{name}w2", 4 * WIDTH, WIDTH)], f"{name}back")
        self.op("Add", [source, back], made)


def spoken(path, turns, given=("ids", "mask")):
    """What a conversation gives: each turn's words, with caches fed back."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    ports = [port for port in session.get_inputs() if port.name.startswith("past_")]
    caches = {port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), np.float32) for port in ports}
    dice, length, found = np.random.default_rng(7), 0, []
    for count in turns:
        length += count
        feeds = dict(zip(given, (dice.integers(0, WORDS, (1, count)), np.ones((1, length), np.int64)), strict=True))
        scores, *longer = session.run(None, feeds | caches)
        told = [port.name for port in ports]
        caches = dict(zip(told, longer, strict=True))
        found.append(scores)
    return [*found, *caches.values()]


@pytest.mark.parametrize(
    ("total", "words"), [("total", ("--dim", "total=past+seq")), pytest.param("past + seq", (), marks=pytest.mark.slow)]
)
def test_a_conversation_from_its_first_word_to_its_last(tmp_path, capsys, total, words):
    path, made = Decoder(total).saved(tmp_path / "decoder.onnx"), tmp_path / "small.onnx"
    command = ["compile", str(path), *SIZES, *words, "--budget", "60%", "-o", str(made), "--format", "json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    seen = report["verification"]["family"]["runs"]
    assert any(each["sizes"]["past"] == 0 for each in seen)
    turns = (100, 1, 1, 64, 1, 128, 1)
    for whole, lean in zip(spoken(path, turns), spoken(made, turns), strict=True):
        assert whole.tobytes() == lean.tobytes()
    sizes = ["--dim", "past=0", "--dim", "seq=9", *words]
    assert main(["verify", str(made), "--original", str(path), *sizes]) == 0


@pytest.mark.slow
def test_a_conversation_with_a_decoder_of_four_bits(tmp_path, capsys):
    sizes = FourBits("seq", "past", "total", "total", width=128, heads=8, shared=4, inner=512, words=WORDS)
    path, made = tmp_path / "decoder.onnx", tmp_path / "small.onnx"
    onnx.save(four_bits(sizes).model, path)
    command = ["compile", str(path), *SIZES[2:], "--dim", "total=past+seq", "--budget", "80%", "-o", str(made)]
    assert main([*command, "--max-overhead", "1000%"]) == 0, capsys.readouterr()
    turns, given = (100, 1, 1, 64, *[1] * 128), ("input_ids", "attention_mask")
    for whole, lean in zip(spoken(path, turns, given), spoken(made, turns, given), strict=True):
        assert whole.tobytes() == lean.tobytes()


def in_one_buffer(path, turns):
    """What a conversation gives whose cache is one buffer, read and written by each turn, and the cache."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    ports = [port for port in session.get_inputs() if port.name.startswith("past_")]
    caches = {port.name: ort.OrtValue.ortvalue_from_numpy(np.zeros(port.shape, np.float32)) for port in ports}
    scores, *made = [port.name for port in session.get_outputs()]
    dice, length, found = np.random.default_rng(7), 0, []
    for count in turns:
        length += count
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", dice.integers(0, WORDS, (1, count)))
        binding.bind_cpu_input("attention_mask", np.ones((1, length), np.int64))
        for (name, cache), longer in zip(caches.items(), made, strict=True):
            binding.bind_ortvalue_input(name, cache)
            binding.bind_ortvalue_output(longer, cache)
        binding.bind_output(scores)
        session.run_with_iobinding(binding)
        found.append(binding.copy_outputs_to_cpu()[-1])
    return [*found, *(cache.numpy()[:, :, :length].copy() for cache in caches.values())]  # what is behind is not used


@pytest.mark.slow
def test_a_conversation_whose_cache_is_one_buffer(tmp_path, capsys):
    sizes = FourBits("seq", 512, 512, "mask", width=128, heads=8, shared=4, inner=512, words=WORDS)
    path, made = tmp_path / "decoder.onnx", tmp_path / "small.onnx"
    onnx.save(four_bits(sizes).model, path)
    command = [
        "compile",
        str(path),
        "--dim",
        "seq=1..128",
        "--dim",
        "mask=128..512",
        "--budget",
        "80%",
        "-o",
        str(made),
    ]
    assert main([*command, "--max-overhead", "1000%"]) == 0, capsys.readouterr()
    turns = (128, 1, 1, 64, 33, *[1] * 128)
    for whole, lean in zip(in_one_buffer(path, turns), in_one_buffer(made, turns), strict=True):
        assert whole.tobytes() == lean.tobytes()


@pytest.mark.slow
def test_plans_are_made_for_the_sizes_at_which_they_hold_most(tmp_path, capsys):
    path, made = Decoder("past + seq").saved(tmp_path / "decoder.onnx"), tmp_path / "small.onnx"
    sizes = ["--dim", "batch=1..4", "--dim", "past=0..64", "--dim", "seq=1..64"]
    limit = ["--limit", "batch*past+batch*seq<=256"]
    command = ["compile", str(path), *sizes, *limit, "--budget", "60%", "-o", str(made), "--format", "json"]
    assert main(command) == 0
    told = capsys.readouterr()
    assert "planned again for batch=4, past=0, seq=64" in told.err  # whole it holds most at another largest size
    report, plan = json.loads(told.out), json.loads((tmp_path / "small.plan.json").read_text())
    assert plan["request"]["dims"] == {"batch": 4, "past": 0, "seq": 64}
    assert plan["request"]["budget"] == "60%"
    seen = report["verification"]["family"]
    assert max(run["peak_bytes"] for run in seen["runs"]) <= seen["promised_bytes"]
