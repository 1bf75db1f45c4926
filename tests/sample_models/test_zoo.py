import numpy as np
import onnx
import onnxruntime as ort
import pytest

from sample_models.zoo import load_zoo, zoo_names

SLOW = {"bvlc_alexnet", "vgg19", "zfnet512"}  # hundreds of megabytes of weights
QUICK = "squeezenet"


def parameters() -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in zoo_names()]


def weights(model: onnx.ModelProto) -> dict[str, bytes]:
    return {tensor.name: tensor.raw_data for tensor in model.graph.initializer}


def test_there_are_nine_models() -> None:
    assert len(zoo_names()) == 9


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown model 'lenet'"):
        load_zoo("lenet")


def test_seed_decides_the_weights() -> None:
    first = weights(load_zoo(QUICK))
    assert first == weights(load_zoo(QUICK))
    assert first != weights(load_zoo(QUICK, seed=1))


@pytest.mark.parametrize("name", parameters())
def test_repaired_model_varies_and_reacts_to_the_input(name: str) -> None:
    model = load_zoo(name)
    graph = model.graph
    assert model.ir_version >= 8
    assert len(graph.input) == 1
    assert not any(node.op_type == "ConstantOfShape" for node in graph.node)
    assert len({node.name for node in graph.node}) == len(graph.node)
    assert {tensor.name for tensor in graph.initializer} <= {i for node in graph.node for i in node.input}

    content = model.SerializeToString()
    onnx.checker.check_model(content)
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(entry.shape, dtype=np.float32) for _ in range(2)]
    first, other = (session.run(None, {entry.name: values})[0].ravel() for values in inputs)
    assert np.isfinite(first).all()
    assert len(np.unique(first)) > 500
    assert np.abs(first - other).max() > 0.005 * np.abs(first).max()
    if graph.node[-1].op_type == "Softmax":
        assert first.max() < 0.9
