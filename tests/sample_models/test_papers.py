import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from sample_models.make_models import main, resolution
from sample_models.papers import paper_model, paper_names, paper_network

TEXT = {"gpt2", "bert"}
TINY_IMAGES = {"resolution": (64, 32), "width": 1 / 16}
TINY_TEXTS = {"length": 12, "context": 16, "vocabulary": 50, "layers": 2, "heads": 2, "head_width": 8}
PUBLISHED = {
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "mobilenet": 4_231_976,
    "unet": 31_037_698 - 5_888,  # the usual count has batch normalization, two numbers per channel for a bias's one
    "gpt2": 124_439_808,
    "bert": 109_483_778,
}
PUBLISHED_BYTES = {  # of weights and running statistics, in the graphs that Jain et al. 2020 were evaluated on
    "unet_vgg": 49_331_020,
    "fcn8": 537_827_940,
    "segnet": 14_829_644,
}

Array = np.ndarray[Any, np.dtype[Any]]


def tiny(name: str, batch: int | None = None) -> onnx.ModelProto:
    sizes: dict[str, Any] = TINY_TEXTS if name in TEXT else TINY_IMAGES
    return paper_model(name, batch, **sizes)


def random_input(name: str, batch: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if name in TEXT:
        return rng.integers(0, TINY_TEXTS["vocabulary"], (batch, TINY_TEXTS["length"]))
    return rng.standard_normal((batch, 3, *TINY_IMAGES["resolution"]), dtype=np.float32)


def run(model: onnx.ModelProto, values: Array) -> Array:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: values})[0]


def weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def dims(model: onnx.ModelProto) -> set[int | str]:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    found = [dim for value in values for dim in value.type.tensor_type.shape.dim]
    return {dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in found}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name):
    assert paper_network(name).parameter_count() == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED_BYTES)
def test_weights_take_as_many_bytes_as_published(name):
    assert sum(4 * weight.size for weight in paper_network(name).weights.values()) == PUBLISHED_BYTES[name]


def test_segnet_on_vgg_has_the_published_millions():
    assert round(paper_network("segnet_vgg", classes=12).parameter_count() / 1e6, 2) == 29.45


def test_every_count_is_checked():
    assert {*PUBLISHED, *PUBLISHED_BYTES, "segnet_vgg"} == set(paper_names())


@pytest.mark.parametrize("name", paper_names())
def test_outputs_vary_react_to_the_input_and_keep_images_apart(name):
    model = tiny(name)
    first, other = random_input(name, 2, seed=0), random_input(name, 1, seed=1)
    logits = run(model, first)
    assert np.isfinite(logits).all()
    assert logits.std() > 1e-2
    assert np.abs(logits).max() < 100
    changed = run(model, np.concatenate([first[:1], other]))
    np.testing.assert_allclose(changed[0], logits[0], rtol=1e-4, atol=1e-5)
    assert np.abs(changed[1] - logits[1]).max() > 1e-3


@pytest.mark.parametrize("name", paper_names())
def test_model_is_valid_with_readable_names(name):
    model = tiny(name)
    onnx.checker.check_model(model, full_check=True)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    read = {tensor for node in model.graph.node for tensor in node.input}
    assert set(weights(model)) <= read
    made = {tensor for node in model.graph.node for tensor in node.output}
    assert made == {value.name for value in (*model.graph.value_info, *model.graph.output)}
    assert [value.name for value in model.graph.input] == ["tokens" if name in TEXT else "x"]
    assert [value.name for value in model.graph.output] == ["logits"]


@pytest.mark.parametrize("name", paper_names())
def test_batch_is_open_or_fixed(name):
    assert {dim for dim in dims(tiny(name)) if isinstance(dim, str)} == {"batch"}
    assert not any(isinstance(dim, str) or dim < 1 for dim in dims(tiny(name, batch=3)))


@pytest.mark.parametrize(
    ("name", "size"), [("unet", (416, 608)), ("fcn8", (416, 608)), ("segnet_vgg", (416, 608)), ("unet_vgg", (208, 304))]
)
def test_labels_have_the_size_of_the_image_or_half(name, size):
    shape = paper_network(name, batch=8).skeleton().graph.output[0].type.tensor_type.shape
    assert tuple(dim.dim_value for dim in shape.dim)[2:] == size


def test_weights_are_named_as_in_torch():
    names = set(weights(tiny("resnet50")))
    parts = ("weight", "bias", "running_mean", "running_var")
    assert {"layer1.0.conv1.weight", "layer1.0.downsample.0.weight", "fc.weight", "fc.bias"} <= names
    assert {f"layer4.2.bn3.{part}" for part in parts} <= names
    assert "layer1.0.conv1.bias" not in names
    assert {"features.0.weight", "features.28.bias", "classifier.6.weight"} <= set(weights(tiny("vgg16")))


def test_running_variances_are_positive():
    found = weights(tiny("mobilenet"))
    assert all(values.min() > 0.3 for name, values in found.items() if name.endswith("running_var"))


def test_equal_calls_give_equal_bytes_and_weights_differ_from_each_other():
    model = tiny("bert")
    assert model.SerializeToString(deterministic=True) == tiny("bert").SerializeToString(deterministic=True)
    found = weights(model)
    first, second = (found[f"encoder.layer.{layer}.output.dense.weight"] for layer in (0, 1))
    assert np.abs(first - second).max() > 0.1


def test_gpt2_looks_back_only():
    model, tokens = tiny("gpt2"), random_input("gpt2", 1, seed=0)
    changed = tokens.copy()
    changed[0, 7] = (changed[0, 7] + 1) % TINY_TEXTS["vocabulary"]
    difference = np.abs(run(model, tokens) - run(model, changed))[0].max(axis=1)
    assert difference[:7].max() == 0
    assert (difference[7:] > 1e-4).all()


def torch_layer(found: dict[str, Array], names: dict[str, str], is_gpt: bool) -> Any:
    """A layer of torch with the weights of a layer of ours; `names` are ours by torch's."""
    import torch
    from torch.nn import functional

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh" if is_gpt else "none")

    epsilon = 1e-5 if is_gpt else 1e-12
    layer = torch.nn.TransformerEncoderLayer(16, 2, 64, 0.0, gelu, epsilon, batch_first=True, norm_first=is_gpt)
    state = {}
    for theirs, ours in names.items():
        parts = [found[name].T for name in ours.split()]
        state[theirs] = torch.from_numpy(np.concatenate(parts))
    layer.load_state_dict(state)
    return layer


def layer_names(prefix: str, pairs: dict[str, str]) -> dict[str, str]:
    """Weights and biases by torch's name."""
    found = {}
    for theirs, ours in pairs.items():
        for part in ("weight", "bias"):
            joint = f"_{part}" if theirs.endswith("in_proj") else f".{part}"
            found[f"{theirs}{joint}"] = " ".join(f"{prefix}.{name}.{part}" for name in ours.split())
    return found


def between(model: onnx.ModelProto, start: str, end: str, values: Array) -> tuple[Array, Array]:
    """Two tensors inside the model."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in (start, end)]
    model.graph.output.extend(ends)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    first, second = session.run([start, end], {"tokens": values})
    return first, second


def test_gpt2_block_is_that_of_torch():
    torch = pytest.importorskip("torch")
    model, length = tiny("gpt2"), TINY_TEXTS["length"]
    pairs = {
        "self_attn.in_proj": "attn.c_attn",
        "self_attn.out_proj": "attn.c_proj",
        "linear1": "mlp.c_fc",
        "linear2": "mlp.c_proj",
        "norm1": "ln_1",
        "norm2": "ln_2",
    }
    layer = torch_layer(weights(model), layer_names("h.0", pairs), is_gpt=True)
    entered, left = between(model, "embeddings", "h.0.add_2", random_input("gpt2", 2, seed=0))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
    with torch.no_grad():
        expected = layer(torch.from_numpy(entered), src_mask=mask).numpy()
    np.testing.assert_allclose(left, expected, rtol=1e-4, atol=1e-5)


def test_bert_layer_is_that_of_torch():
    torch = pytest.importorskip("torch")
    model = tiny("bert")
    pairs = {
        "self_attn.in_proj": "attention.self.query attention.self.key attention.self.value",
        "self_attn.out_proj": "attention.output.dense",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm1": "attention.output.LayerNorm",
        "norm2": "output.LayerNorm",
    }
    layer = torch_layer(weights(model), layer_names("encoder.layer.0", pairs), is_gpt=False)
    values = random_input("bert", 2, seed=0)
    entered, left = between(model, "embeddings.LayerNorm", "encoder.layer.0.output.LayerNorm", values)
    with torch.no_grad():
        expected = layer(torch.from_numpy(entered)).numpy()
    np.testing.assert_allclose(left, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("lenet", {}, "unknown model 'lenet'"),
        ("gpt2", {"resolution": 64}, "gpt2 has no resolution"),
        ("vgg16", {"length": 64}, "vgg16 has no length"),
        ("unet", {"resolution": 100}, "multiples of 16"),
        ("bert", {"length": 600}, "1 to 512 tokens"),
    ],
)
def test_impossible_sizes_are_refused(name, sizes, message):
    with pytest.raises(ValueError, match=message):
        paper_network(name, **sizes)


def test_width_scales_channels():
    half, full = (paper_network("vgg16", width=width).parameter_count() for width in (0.5, 1))
    assert math.isclose(full / half, 4, rel_tol=0.05)


def test_command_line_writes_what_is_named(tmp_path, capsys):
    sizes = ["--batch", "2", "--resolution", "64x32", "--width", "0.1", "--length", "8"]
    main(["--zoo", "--only", "mobilenet,bert", "--out", str(tmp_path), *sizes])
    assert {path.name for path in tmp_path.iterdir()} == {"mobilenet.onnx", "bert.onnx"}
    assert capsys.readouterr().out.count(".onnx") == 2
    shapes = [
        onnx.load(tmp_path / f"{name}.onnx").graph.input[0].type.tensor_type.shape for name in ("mobilenet", "bert")
    ]
    assert [[dim.dim_value for dim in shape.dim] for shape in shapes] == [[2, 3, 64, 32], [2, 8]]


def test_command_line_refuses_unknown_names(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--zoo", "--only", "lenet"])
    assert stop.value.code == 2
    assert "no lenet" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "sides"), [("224", (224, 224)), ("416x608", (416, 608))])
def test_resolution_is_one_number_or_two(text, sides):
    assert resolution(text) == sides
