"""Training steps of whole models, run by the runtime with its default options, against torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from remat_cli.autodiff.step import TrainingStep, build_step
from remat_cli.core.values.training import TrainOptions
from remat_cli.onnx_io.read.load import DimBindings, load
from sample_models.papers import paper_model
from sample_models.zoo import load_zoo, zoo_names

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812

from tests.autodiff.torch_twin import AS_SEEN, Result, Twin, cross_entropy, train_once

MODELS = Path(__file__).parents[2] / "sample_models"
TOLERANCE = 1e-3  # of the largest element of a weight's gradient
NO_GRADIENT = 1e-10  # of the largest gradient in the model: zero but for rounding, as of a bias before a normalization
ROUNDING = 1e-5  # of the largest gradient in the model: what float32 may make of a zero

SIDE = 64
IMAGES = {"batch": 2, "resolution": 32, "width": 0.125, "classes": 5}
TEXT = {"batch": 2, "length": 16, "context": 32, "vocabulary": 90, "layers": 2, "heads": 2, "head_width": 16}
PAPERS: dict[str, dict[str, Any]] = {
    "vgg16": IMAGES,
    "vgg19": IMAGES,
    "resnet18": {**IMAGES, "resolution": 64},
    "resnet34": {**IMAGES, "resolution": 64},
    "resnet50": {**IMAGES, "resolution": 64},
    "mobilenet": {**IMAGES, "resolution": 64},
    "unet": IMAGES,
    "unet_vgg": IMAGES,
    "fcn8": IMAGES,
    "segnet": IMAGES,
    "segnet_vgg": IMAGES,
    "gpt2": TEXT,
    "bert": {**TEXT, "classes": 3},
}
SLOW = frozenset({"vgg19", "resnet34", "resnet50", "segnet_vgg", "mobilenet", "inception"})
SAMPLES = ("attention_unet", "chain", "densenet", "detector", "inception", "resnet", "transformer", "unet")


@dataclass(frozen=True)
class Setting:
    """A forward model, how it is trained, and the tensor that torch computes the loss from."""

    model: onnx.ModelProto
    options: TrainOptions
    end: str
    class_axis: int = 1

    def loss(self, output: torch.Tensor, target: Any) -> torch.Tensor:
        if self.options.loss == "cross-entropy":
            return cross_entropy(self.class_axis)(output, target)
        return F.mse_loss(output, target)


def gradients_of(loss: str | None = "cross-entropy", **options: Any) -> TrainOptions:
    return TrainOptions(loss=loss, optimizer=None, dropout=False, **options)


def sample(name: str) -> Setting:
    """A sample model; small images instead of its own."""
    model = onnx.load(MODELS / f"{name}.onnx")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim in dims[2:] if len(dims) == 4 else ():
        dim.dim_value = SIDE
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    output = "classes_0" if name == "detector" else model.graph.output[0].name
    loss = "cross-entropy" if name == "resnet" else "mse"
    return Setting(model, gradients_of(loss, output=output), output)


def paper(name: str) -> Setting:
    model = paper_model(name, **PAPERS[name])
    return Setting(model, gradients_of(), "logits", class_axis=2 if name == "gpt2" else 1)


def zoo(name: str) -> Setting:
    """Most end in a Softmax: the loss is made from what goes into it."""
    model = load_zoo(name)
    last = model.graph.node[-1]
    return Setting(model, gradients_of(), last.input[0] if last.op_type == "Softmax" else last.output[0])


def step_of(setting: Setting, folder: Path) -> TrainingStep:
    onnx.save(setting.model, folder / "model.onnx")
    return build_step(load(folder / "model.onnx", DimBindings()).ir, setting.options)


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


def data_for(step: TrainingStep, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs and target: normally distributed numbers, token ids, classes (two, which every model has)."""
    rng, feeds = np.random.default_rng(seed), {}
    for value in step.model.graph.inputs:
        if value.name in step.state or value.name == "learning_rate":
            continue
        shape = tuple(value.shape.numpy())
        if value.dtype == ir.DataType.FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            feeds[value.name] = rng.integers(0, 2 if value.name == "target" else 90, shape)
    return feeds


def with_branches(step: TrainingStep, model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """The step with more outputs: tensors that show which way ops with kinks went."""
    names = {n.input[0] if n.op_type == "MaxPool" else n.output[0] for n in model.graph.node if n.op_type in AS_SEEN}
    proto = ir.to_proto(step.model)
    made = {name for node in proto.graph.node for name in node.output}
    more = sorted(names & made - {value.name for value in proto.graph.output})
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    return proto, more


def torch_result(
    setting: Setting, step: TrainingStep, data: dict[str, Any], seen: dict[str, Any] | None = None
) -> Result:
    """One step in float64."""
    twin = Twin(setting.model, step.facts.trained, torch.float64)
    feeds = {name: array for name, array in data.items() if name != step.facts.target}
    output = twin.forward(feeds, setting.end, setting.options.batch_norm, seen=seen)
    return train_once(twin, setting.loss(output, twin.tensor(data[step.facts.target])))


def assert_same(ours: dict[str, np.ndarray], theirs: Result) -> None:
    assert float(ours["loss"]) == pytest.approx(theirs.loss, rel=1e-4)
    scales = {name: np.max(np.abs(grad)) for name, grad in theirs.gradients.items()}
    largest = max(scales.values())
    errors = {name: np.max(np.abs(ours[f"{name}.gradient"] - grad)) for name, grad in theirs.gradients.items()}
    allowed = {n: TOLERANCE * s if s > NO_GRADIENT * largest else ROUNDING * largest for n, s in scales.items()}
    assert {name: (errors[name], scales[name]) for name in errors if errors[name] > allowed[name]} == {}
    for name, value in theirs.statistics.items():
        np.testing.assert_allclose(ours[f"{name}.next"], value, atol=1e-4 * np.max(np.abs(value)))


def check(setting: Setting, folder: Path) -> None:
    """Gradients and statistics of one step; nothing of the model is left out."""
    step = step_of(setting, folder)
    data = data_for(step)
    proto, seen = with_branches(step, setting.model)
    ours = run(session_of(proto), {**step.state, **data})
    theirs = torch_result(setting, step, data, {name: ours[name] for name in seen})
    assert all(name in theirs.gradients for name in step.facts.trained)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SAMPLES])
def test_sample_models(name, tmp_path):
    check(sample(name), tmp_path)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in PAPERS])
def test_networks_of_papers(name, tmp_path):
    check(paper(name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo_names())
def test_model_zoo(name, tmp_path):
    check(zoo(name), tmp_path)


def small(*nodes: onnx.NodeProto, ends: tuple[str, ...] = ("y",), **weights: np.ndarray) -> onnx.ModelProto:
    """A model that reads `x`: six images of two channels."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (6, 2, 5, 5))],
        [helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, None) for end in ends],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def smooth_classifier() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    return small(
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"], momentum=0.8),
        helper.make_node("Sigmoid", ["n"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"]),
        w=rng.standard_normal((4, 2, 3, 3)),
        scale=1 + rng.random(4),
        shift=rng.standard_normal(4),
        mean=rng.standard_normal(4),
        variance=1 + rng.random(4),
        v=rng.standard_normal((4, 3)),
        b=rng.standard_normal(3),
    )


def test_three_steps_of_adam(tmp_path):
    options = TrainOptions(loss="cross-entropy", optimizer="adam", dropout=False)
    setting = Setting(smooth_classifier(), options, "y")
    step = step_of(setting, tmp_path)
    session = session_of(ir.to_proto(step.model))
    state = dict(step.state)
    twin = Twin(setting.model, step.facts.trained, torch.float64)
    optimizer = torch.optim.Adam(twin.trained.values(), lr=0.01)
    for seed in range(3):
        data = data_for(step, seed)
        results = run(session, {**state, **data, "learning_rate": np.array(0.01, np.float32)})
        state = {step.facts.state[name]: results[name] for name in step.facts.state}
        optimizer.zero_grad()
        theirs = train_once(twin, setting.loss(twin.forward(data, "y"), twin.tensor(data["target"])))
        optimizer.step()
        twin.weights |= twin.updates
        assert float(results["loss"]) == pytest.approx(theirs.loss, rel=1e-5)
    for name in ("w", "scale", "shift", "v", "b", "mean", "variance"):
        expected = twin.weights[name].detach().numpy()
        np.testing.assert_allclose(state[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)
        assert np.max(np.abs(state[name] - step.state[name])) > 0.01, f"{name} stays as it is"


def test_a_model_that_computes_its_loss(tmp_path):
    model = small(
        helper.make_node("Conv", ["x", "w"], ["y"]),
        helper.make_node("Mul", ["y", "y"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["cost"], keepdims=0),
        ends=("y", "cost"),
        w=np.random.default_rng(0).standard_normal((3, 2, 3, 3)),
    )
    setting = Setting(model, gradients_of(None, loss_output="cost"), "cost")
    step = step_of(setting, tmp_path)
    assert step.facts.target is None
    data = data_for(step)
    twin = Twin(model, ["w"], torch.float64)
    assert_same(
        run(session_of(ir.to_proto(step.model)), {**step.state, **data}), train_once(twin, twin.forward(data, "cost"))
    )


def test_a_weight_that_is_used_twice(tmp_path):
    model = small(
        helper.make_node("Conv", ["x", "w"], ["coded"], pads=[1, 1, 1, 1]),
        helper.make_node("Tanh", ["coded"], ["code"]),
        helper.make_node("ConvTranspose", ["code", "w"], ["y"], pads=[1, 1, 1, 1]),
        w=np.random.default_rng(0).standard_normal((3, 2, 3, 3)),
    )
    check(Setting(model, gradients_of("mse"), "y"), tmp_path)


def test_frozen_weights_get_no_gradient_and_change_no_other(tmp_path):
    setting = Setting(smooth_classifier(), gradients_of(frozen=("w", "b")), "y")
    step = step_of(setting, tmp_path)
    assert set(step.facts.trained) == {"scale", "shift", "v"}
    assert {value.name for value in step.model.graph.inputs}.isdisjoint({"w", "b"})
    check(setting, tmp_path)


def test_frozen_statistics_are_those_of_inference(tmp_path):
    setting = Setting(smooth_classifier(), gradients_of(batch_norm="frozen"), "y")
    assert not step_of(setting, tmp_path).facts.state
    check(setting, tmp_path)


def test_more_outputs_to_see_branches_do_not_change_the_step(tmp_path):
    setting = paper("unet")
    step = step_of(setting, tmp_path)
    data = {**step.state, **data_for(step)}
    plain, more = (run(session_of(m), data) for m in (ir.to_proto(step.model), with_branches(step, setting.model)[0]))
    for name, array in plain.items():
        np.testing.assert_allclose(more[name], array, rtol=1e-4, atol=1e-6 * np.max(np.abs(array)))
