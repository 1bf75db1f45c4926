"""Losses: value and gradient against torch."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.learning import LOSS_RULES, LOSSES, class_axis_of
from remat_cli.autodiff.reverse import Recorder, write_gradients
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import IR_VERSION, OPSET, Tape
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import assert_close, runtime

RNG = np.random.default_rng(1)


def of_shape(shape, name="x", kind=ir.DataType.FLOAT):
    return ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(shape))


def loss_and_gradient(name, logits, target, axis=1):
    tape, rules = Tape(["x", "t"]), {**RULES, **LOSS_RULES}
    x = of_shape(logits.shape)
    kind, shape = LOSSES[name].target(x, axis)
    assert shape == target.shape
    t = of_shape(shape, "t", kind)
    recorder = Recorder(tape, rules, active={x})
    loss = LOSSES[name].write(recorder, x, t, axis)
    found = {}
    seeds = {loss: tape.constant(np.ones((), np.float32))}
    write_gradients(
        tape, recorder.leading_to([loss]), rules, seeds, {x: lambda value, grad: found.update({value: grad})}
    )
    graph = ir.Graph(
        [x, t],
        [loss, found[x]],
        nodes=tape.nodes,
        initializers=list(tape.constants.values()),
        opset_imports={"": OPSET},
    )
    graph.name = "loss"
    return runtime(ir.to_proto(ir.Model(graph, ir_version=IR_VERSION)), {"x": logits, "t": target})


@pytest.mark.parametrize(("shape", "axis"), [((8, 5), 1), ((2, 7, 5), 2), ((2, 5, 4, 3), 1)])
def test_cross_entropy(shape, axis):
    torch = pytest.importorskip("torch")
    logits = (5 * RNG.standard_normal(shape)).astype(np.float32)
    target = RNG.integers(0, shape[axis], shape[:axis] + shape[axis + 1 :])
    leaf = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(leaf.movedim(axis, 1), torch.tensor(target))
    expected.backward()
    loss, grad = loss_and_gradient("cross-entropy", logits, target, axis)
    assert_close(loss, expected.detach().numpy(), 1e-5, "loss")
    assert_close(grad, leaf.grad.numpy(), 1e-5, "gradient")


@pytest.mark.parametrize(("name", "torch_name"), [("mse", "mse_loss"), ("l1", "l1_loss")])
def test_regression(name, torch_name):
    torch = pytest.importorskip("torch")
    logits, target = RNG.standard_normal((2, 4, 3, 5)).astype(np.float32), RNG.random((2, 4, 3, 5)).astype(np.float32)
    leaf = torch.tensor(logits, requires_grad=True)
    expected = getattr(torch.nn.functional, torch_name)(leaf, torch.tensor(target))
    expected.backward()
    loss, grad = loss_and_gradient(name, logits, target)
    assert_close(loss, expected.detach().numpy(), 1e-5, "loss")
    assert_close(grad, leaf.grad.numpy(), 1e-5, "gradient")


def test_dice():
    torch = pytest.importorskip("torch")
    logits, target = RNG.standard_normal((2, 4, 3, 5)).astype(np.float32), RNG.random((2, 4, 3, 5)).astype(np.float32)
    leaf, goal = torch.tensor(logits, requires_grad=True), torch.tensor(target)
    chance = torch.sigmoid(leaf)
    overlap = 2 * (chance * goal).sum((2, 3)) + 1
    expected = 1 - (overlap / (chance.sum((2, 3)) + goal.sum((2, 3)) + 1)).mean()
    expected.backward()
    loss, grad = loss_and_gradient("dice", logits, target)
    assert_close(loss, expected.detach().numpy(), 1e-5, "loss")
    assert_close(grad, leaf.grad.numpy(), 1e-5, "gradient")


def test_the_axis_of_classes_is_the_last_of_a_sequence_and_the_second_of_an_image():
    assert class_axis_of(of_shape((8, 5)), None) == 1
    assert class_axis_of(of_shape((2, 7, 5)), None) == 2
    assert class_axis_of(of_shape((2, 5, 4, 3)), None) == 1
    assert class_axis_of(of_shape((2, 5, 4, 3)), -1) == 3
    with pytest.raises(ModelError, match="has no axis 4 for classes: set --class-axis"):
        class_axis_of(of_shape((2, 5, 4, 3)), 4)
