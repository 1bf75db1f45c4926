"""A compiled file in the folder of a model of Hugging Face's, opened by `optimum`: the same bits as its own."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from tests.docs_text import blocks, page

WORDS, LENGTH, WIDTH, LABELS = 50, 64, 64, 3
needs_optimum = pytest.mark.skipif(
    not (find_spec("optimum") and find_spec("optimum.onnxruntime")), reason="optimum with onnxruntime is not installed"
)

pytestmark = [pytest.mark.usefixtures("cache"), pytest.mark.filterwarnings("default")]  # those of other packages


def save_classifier(path: Path) -> None:
    """Words are looked up, masked, widened, narrowed, averaged and told apart: an encoder's inputs and outputs."""
    generator = np.random.default_rng(0)
    sizes = {
        "words": (WORDS, WIDTH),
        "wide": (WIDTH, 16 * WIDTH),
        "narrow": (16 * WIDTH, WIDTH),
        "told": (WIDTH, LABELS),
    }
    weights = [
        numpy_helper.from_array(generator.standard_normal(size).astype(np.float32) / 8, name)
        for name, size in sizes.items()
    ]
    weights += [numpy_helper.from_array(np.array([-1], np.int64), "last")]
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["looked"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["looked", "column"], ["masked"]),
        helper.make_node("MatMul", ["masked", "wide"], ["widened"]),
        helper.make_node("Relu", ["widened"], ["positive"]),
        helper.make_node("MatMul", ["positive", "narrow"], ["narrowed"]),
        helper.make_node("ReduceMean", ["narrowed"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "told"], ["logits"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [1, LENGTH]) for name in ("input_ids", "attention_mask")
    ]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, LABELS])
    graph = helper.make_graph(nodes, "classifier", values, [logits], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@needs_optimum
@pytest.mark.parametrize("has_data_file", [False, True])
def test_a_model_of_optimum_with_a_compiled_file_in_its_folder(tmp_path, monkeypatch, has_data_file):
    import torch
    from optimum.onnxruntime import ORTModelForSequenceClassification

    folder = tmp_path / "classifier"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "num_labels": LABELS, "vocab_size": WORDS}))
    save_classifier(folder / "model.onnx")
    found = remat_cli.compile(
        folder / "model.onnx",
        budget="60%",
        output=folder / "compiled.onnx",
        external_data=has_data_file,
        time_limit="5s",
    )
    assert found.exit_code == 0, found.verdict
    assert (folder / "compiled.onnx.data").exists() == has_data_file
    words = {
        "input_ids": torch.arange(LENGTH)[None] % WORDS,
        "attention_mask": torch.ones(1, LENGTH, dtype=torch.int64),
    }
    monkeypatch.chdir(tmp_path)
    (snippet,) = [code for _, code in blocks(page("docs/deploy.md")) if "optimum" in code]
    names: dict[str, object] = {}
    exec(snippet, names)
    plain = ORTModelForSequenceClassification.from_pretrained(folder, file_name="model.onnx")
    logits = [model(**words).logits for model in (plain, names["model"])]
    assert logits[0].shape == (1, LABELS)
    assert logits[0].abs().max() > 0
    assert torch.equal(*logits)
