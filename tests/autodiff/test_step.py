"""Training steps: what they take and give, which weights they train, what they refuse."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from remat_cli.autodiff.forward import Rebatch
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.step import arranged, build_step
from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.core.values.training import TrainOptions
from remat_cli.onnx_io.read.default_order import default_order
from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.onnx_io.read.source_names import SCOPES_KEY, module_of
from tests.autodiff.rule_case import runtime

RNG = np.random.default_rng(3)
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[4, 6] x) => (float[4, 3] y)
<float[6, 8] w1, float[8] b1, float[8, 3] w2, float half = {0.5}>
{
    h = MatMul(x, w1)
    s = Add(h, b1)
    r = Relu(s)
    z = MatMul(r, w2)
    y = Mul(z, half)
}
"""


def net(text: str = TEXT, **weights) -> ir.Model:
    """The text as a model with random weights."""
    proto = onnx.parser.parse_model(text)
    infos = {i.name: i for i in [*proto.graph.value_info, *proto.graph.input]}
    for name, info in infos.items():
        if name.startswith(("w", "b")):
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            array = weights.get(name, RNG.standard_normal(shape).astype(np.float32))
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del proto.graph.value_info[:]
    return ir.from_proto(proto)


def feeds_of(step, **data):
    inputs = {value.name: value for value in step.model.graph.inputs}
    feeds = {**step.state, **data}
    if "learning_rate" in inputs:
        feeds["learning_rate"] = np.array(0.1, np.float32)
    return feeds


def run(step, **data):
    names = [value.name for value in step.model.graph.outputs]
    return dict(zip(names, runtime(ir.to_proto(step.model), feeds_of(step, **data)), strict=True))


DATA = {"x": RNG.standard_normal((4, 6)).astype(np.float32), "target": np.array([0, 2, 1, 1])}
ENTROPY = TrainOptions(loss="cross-entropy")


def test_a_step_takes_state_and_gives_the_next():
    step = build_step(net(), TrainOptions(loss="cross-entropy", optimizer="adam"))
    inputs = [value.name for value in step.model.graph.inputs]
    assert inputs[:2] == ["x", "target"]
    assert set(inputs[2:]) == {"learning_rate", *step.state}
    assert set(step.state) == {"step_count", *(f"{w}{s}" for w in ("w1", "b1", "w2") for s in ("", ".mean", ".square"))}
    assert step.facts.state == {f"{name}.next": name for name in step.state}
    results = run(step, **DATA)
    assert next(iter(results)) == "loss"
    assert set(results) == {"loss", *(f"{name}.next" for name in step.state)}
    assert results["step_count.next"] == 1.0


def test_the_loss_falls_when_outputs_are_fed_back():
    step = build_step(net(), TrainOptions(loss="cross-entropy", optimizer="momentum"))
    losses, state = [], dict(step.state)
    for _ in range(30):
        results = run(type(step)(step.model, state, step.facts), **DATA)
        losses.append(float(results["loss"]))
        state = {old: results[new] for new, old in step.facts.state.items()}
    assert losses[-1] < 0.3 * losses[0]


def test_gradients_only_gives_gradients_and_moves_nothing():
    step = build_step(net(), TrainOptions(loss="cross-entropy", optimizer=None))
    results = run(step, **DATA)
    assert set(results) == {"loss", "w1.gradient", "b1.gradient", "w2.gradient"}
    assert set(step.state) == {"w1", "b1", "w2"}
    assert step.facts.state == {}
    bump = {**step.state, "b1": step.state["b1"] + np.float32(1e-2) * np.eye(8, dtype=np.float32)[2]}
    higher = run(type(step)(step.model, bump, step.facts), **DATA)["loss"]
    assert (higher - results["loss"]) / 1e-2 == pytest.approx(results["b1.gradient"][2], rel=0.05, abs=1e-3)


def test_ops_carry_their_phase():
    step = build_step(net(), ENTROPY)
    phases = [node.metadata_props["remat.phase"] for node in step.model.graph]
    assert phases.count("forward") == step.facts.forward_ops
    assert phases.count("backward") == step.facts.backward_ops > 0
    assert phases.count("update") == step.facts.update_ops > 0
    assert set(phases) == {"forward", "backward", "update"}


def test_ops_and_their_gradients_keep_the_modules_that_torch_wrote():
    model = net()
    for node in model.graph:
        node.metadata_props[SCOPES_KEY] = str(["", "enc", "enc.1", node.name or node.op_type])
    step = build_step(model, ENTROPY)
    modules = {(module_of(node), node.metadata_props["remat.phase"]) for node in step.model.graph}
    assert {("enc.1", "forward"), ("enc.1.grad", "backward"), ("", "update")} <= modules


def test_lone_numbers_and_masks_are_not_trained():
    text = TEXT.replace("z = MatMul(r, w2)", "m = Add(r, w3)\n z = MatMul(m, w2)").replace(
        "float[8, 3] w2", "float[8, 3] w2, float[4, 8] w3"
    )
    mask = np.where(RNG.random((4, 8)) < 0.5, np.float32(0), np.float32(-1e4)).astype(np.float32)
    step = build_step(net(text, w3=mask), ENTROPY)
    assert set(step.facts.trained) == {"w1", "b1", "w2"}
    assert set(step.facts.frozen) == {"half", "w3"}
    assert build_step(net(text, w3=mask), TrainOptions(loss="mse", trainable=("w3",))).facts.trained == ("w3",)


def test_patterns_choose_weights():
    assert set(build_step(net(), TrainOptions(loss="mse", trainable=("w*",))).facts.trained) == {"w1", "w2"}
    assert set(build_step(net(), TrainOptions(loss="mse", frozen=("w*",))).facts.trained) == {"b1"}
    with pytest.raises(ModelError, match=r"no weight matches 'v\*'; there are 4, such as: "):
        build_step(net(), TrainOptions(loss="mse", trainable=("v*",)))
    with pytest.raises(ModelError, match="nothing to train"):
        build_step(net(), TrainOptions(loss="mse", frozen=("*",)))


def test_a_softmax_at_the_end_is_left_out_of_cross_entropy():
    text = TEXT.replace("y = Mul(z, half)", "l = Mul(z, half)\n y = Softmax<axis = 1>(l)")
    model = net(text)
    plain = ir.from_proto(ir.to_proto(model))
    step = build_step(model, ENTROPY)
    assert step.facts.notes == ("output 'y' is a Softmax: the loss is computed from what goes into it",)
    direct = net(TEXT, **{n: np.asarray(v.const_value.numpy()) for n, v in plain.graph.initializers.items()})
    np.testing.assert_allclose(run(step, **DATA)["loss"], run(build_step(direct, ENTROPY), **DATA)["loss"], rtol=1e-6)


def test_ops_without_a_rule_are_listed_with_what_to_do():
    text = TEXT.replace("r = Relu(s)", "d = Det(x1)\n r = Relu(s)").replace(
        "float[4, 6] x", "float[4, 6] x, float[2, 2] x1"
    )
    assert build_step(net(text), ENTROPY)  # what the loss does not need is left out
    text = TEXT.replace("r = Relu(s)", "r = Hardmax(s)")
    with pytest.raises(ModelError, match=r"the loss depends on no trained weight|nothing to train"):
        build_step(net(text), TrainOptions(loss="mse", trainable=("w1", "b1")))
    rules = {name: rule for name, rule in RULES.items() if name not in ("Relu", "Add")}
    with pytest.raises(
        ModelError, match=r"no gradient rule for: Add \(1\), Relu \(1\); .*gradient_rules: \{OpType: module:function\}"
    ):
        build_step(net(), ENTROPY, rules)


def test_the_output_is_named_where_there_are_several():
    text = TEXT.replace("(float[4, 3] y)", "(float[4, 3] y, float[4, 8] r)")
    with pytest.raises(ModelError, match="the model has 2 outputs: name the one to train with --output-name: y, r"):
        build_step(net(text), ENTROPY)
    step = build_step(net(text), TrainOptions(loss="mse", output="r"))
    assert set(step.facts.trained) == {"w1", "b1"}
    with pytest.raises(ModelError, match="the model has no output 'q'; its outputs are: y, r"):
        build_step(net(text), TrainOptions(loss="mse", output="q"))


def test_outputs_are_kept_on_request():
    step = build_step(net(), TrainOptions(loss="cross-entropy", keep_outputs=True))
    assert run(step, **DATA)["y"].shape == (4, 3)


def test_the_models_own_loss():
    text = TEXT.replace("(float[4, 3] y)", "(float y)").replace(
        "y = Mul(z, half)", "l = Mul(z, half)\n y = ReduceMean<keepdims = 0>(l)"
    )
    step = build_step(net(text), TrainOptions(loss_output="y"))
    assert step.facts.target is None
    assert run(step, x=DATA["x"])["loss"].shape == ()
    with pytest.raises(ModelError, match=r"output 'y' has shape \[4, 3\]: a loss is one number"):
        build_step(net(), TrainOptions(loss_output="y"))


def test_another_batch_reaches_shapes_that_are_written_down():
    text = TEXT.replace("r = Relu(s)", "q = Relu(s)\n t = Reshape(q, shape)\n r = Reshape(t, back)")
    text = text.replace("float half = {0.5}", "float half = {0.5}, int64[3] shape = {4, 2, 4}, int64[2] back = {4, -1}")
    model = net(text)
    model.graph.inputs[0].shape = ir.Shape([10, 6])
    step = build_step(model, ENTROPY, batch=Rebatch(4, 10))
    data = {"x": RNG.standard_normal((10, 6)).astype(np.float32), "target": RNG.integers(0, 3, 10)}
    assert run(step, **data)["loss"].shape == ()


def test_own_rules_are_loaded(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(
        "def straight(tape, call, grads):\n    return {0: tape.op('Mul', grads[0], tape.scalar(2.0, grads[0]))}\n"
    )
    monkeypatch.chdir(tmp_path)
    plain = run(
        build_step(net(w1=np.ones((6, 8), np.float32)), TrainOptions(loss="mse", optimizer=None)),
        x=DATA["x"],
        target=np.zeros((4, 3), np.float32),
    )
    assert plain
    own = TrainOptions(loss="mse", optimizer=None, gradient_rules={"Relu": "my_rules:straight"})
    assert "b1.gradient" in run(build_step(net(), own), x=DATA["x"], target=np.zeros((4, 3), np.float32))
    for wrong, message in (("my_rules", "write module:function"), ("my_rules:nothing", "cannot be loaded")):
        with pytest.raises(ConfigError, match=message):
            build_step(net(), TrainOptions(loss="mse", gradient_rules={"Relu": wrong}))


def test_a_default_session_updates_the_last_layer_first():
    step = build_step(net(), ENTROPY)
    nodes = list(step.model.graph)
    order = [nodes[index].name for index in default_order(nodes)]
    last = {
        name: max(i for i, op in enumerate(order) if op.startswith(f"{name}/update")) for name in ("w1", "b1", "w2")
    }
    assert last["w2"] < last["b1"]
    assert last["w2"] < last["w1"]
    assert {node.name for node in arranged(nodes)} == {node.name for node in nodes}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_half_precision_weights_are_updated_in_single(optimizer):
    text = TEXT.replace(", float half = {0.5}", "").replace("y = Mul(z, half)", "y = Relu(z)")
    model = net(text.replace("float", "float16"))
    for name, value in list(model.graph.initializers.items()):
        value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=name)
        value.dtype = ir.DataType.FLOAT16
    step = build_step(model, TrainOptions(loss="mse", optimizer=optimizer))
    state = dict(step.state)
    assert {array.dtype for name, array in state.items() if "." in name} <= {np.dtype(np.float32)}
    data = {"x": DATA["x"].astype(np.float16), "target": np.zeros((4, 3), np.float16)}
    losses = []
    for _ in range(20):
        results = run(type(step)(step.model, state, step.facts), **data)
        losses.append(float(results["loss"]))
        state = {old: results[new] for new, old in step.facts.state.items()}
    assert state["w1"].dtype == np.float16
    assert losses[-1] < 0.9 * losses[0]


def test_constants_written_as_nodes_are_trained_only_where_they_hold_most_of_the_numbers():
    text = TEXT.replace("h = MatMul(x, w1)", "c = Constant<value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]>()\n"
                        "m = Mul(x, c)\n h = MatMul(m, w1)")  # fmt: skip
    step = build_step(net(text), ENTROPY)
    assert set(step.facts.trained) == {"w1", "b1", "w2"}
    assert set(step.facts.frozen) == {"half", "c"}
    assert build_step(net(text), TrainOptions(loss="mse", trainable=("c",))).facts.trained == ("c",)
    model = net(text)
    for name in ("w1", "b1", "w2"):
        value = model.graph.initializers.pop(name)
        node = ir.node("Constant", [], {"value": ir.AttrTensor("value", value.const_value)})
        node.outputs[0].name = name
        value.replace_all_uses_with(node.outputs[0])
        model.graph.insert_before(model.graph[0], node)
    assert set(build_step(model, ENTROPY).facts.trained) == {"w1", "b1", "w2", "c"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "h = MatMul(x, w1)\n t = Cast<to = 9>(b1)\n k = Squeeze(t)\n"
            " y = If(k) <then_branch = a () => (float[4, 3] p)"
            " { p = MatMul(x, w2) }, else_branch = b () => (float[4, 3] q) { q = MatMul(x, w2) }>",
            "weights are read in the bodies of If",
        ),
        ("q = QuantizeLinear(w1, b1, zero)\n d = DequantizeLinear(q, b1, zero)\n y = MatMul(x, d)", "quantised"),
    ],
)
def test_nothing_to_train_says_why(text, words):
    head = '<ir_version: 8, opset_import: ["" : 17]>\nnet (float[4, 6] x) => (float[4, 3] y)\n'
    weights = "<float[6, 3] w1, float b1, float[6, 3] w2, int8 zero = {0}>"
    model = net(f"{head}{weights}\n{{\n {text}\n}}")
    with pytest.raises(ModelError, match=f"nothing to train: .*{words}"):
        build_step(model, TrainOptions(loss="mse", frozen=("w1",)))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("attributes", ["", ", ignore_index = 2"])
def test_a_cross_entropy_in_the_model_is_written_out(reduction, attributes):
    text = TEXT.replace("(float[4, 6] x) => (float[4, 3] y)", "(float[4, 6] x, int64[4] t) => (float y)").replace(
        "y = Mul(z, half)",
        f'l = Mul(z, half)\n y, p = SoftmaxCrossEntropyLoss<reduction = "{reduction}"{attributes}>(l, t)',
    )
    model = net(text)
    proto = ir.to_proto(model)
    feeds = {"x": DATA["x"], "t": DATA["target"]}
    step = build_step(model, TrainOptions(loss_output="y", optimizer=None))
    results = run(step, **feeds)
    np.testing.assert_allclose(results["loss"], runtime(proto, feeds)[0], rtol=1e-6)
    bump = {**step.state, "b1": step.state["b1"] + np.float32(1e-2) * np.eye(8, dtype=np.float32)[2]}
    higher = run(type(step)(step.model, bump, step.facts), **feeds)["loss"]
    assert (higher - results["loss"]) / 1e-2 == pytest.approx(results["b1.gradient"][2], rel=0.05, abs=3e-3)


def test_small_weights_may_lie_in_a_file_of_their_own(tmp_path):
    proto = ir.to_proto(net())
    onnx.save(proto, tmp_path / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    source = load(tmp_path / "net.onnx", DimBindings())
    assert set(build_step(source.ir, ENTROPY).facts.trained) == {"w1", "b1", "w2"}


def test_a_rule_of_the_users_must_be_a_function():
    with pytest.raises(ConfigError, match="gradient rule 'os:sep' of Relu is no function"):
        build_step(net(), TrainOptions(loss="mse", gradient_rules={"Relu": "os:sep"}))


def test_a_weight_that_the_loss_does_not_react_to_stays_as_it_is():
    step = build_step(net(TEXT.replace("r = Relu(s)", "r = Hardmax(s)")), ENTROPY)
    results = run(step, **DATA)
    np.testing.assert_array_equal(results["w1.next"], step.state["w1"])
    assert not np.array_equal(results["w2.next"], step.state["w2"])
    assert {node.metadata_props["remat.phase"] for node in step.model.graph} == {"forward", "backward", "update"}
