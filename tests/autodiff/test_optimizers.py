"""Optimizers: five steps of one weight against torch."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.learning import make_optimizer, shared_numbers
from remat_cli.autodiff.tape import IR_VERSION, OPSET, Tape
from remat_cli.base.errors import ConfigError
from tests.autodiff.rule_case import assert_close, runtime

RNG = np.random.default_rng(2)
CASES = [
    ("sgd", {}, "SGD", {}),
    ("sgd", {"weight_decay": 0.1}, "SGD", {"weight_decay": 0.1}),
    ("momentum", {}, "SGD", {"momentum": 0.9}),
    ("momentum", {"momentum": 0.8, "nesterov": True}, "SGD", {"momentum": 0.8, "nesterov": True}),
    ("adam", {}, "Adam", {}),
    ("adam", {"beta1": 0.8, "weight_decay": 0.1}, "Adam", {"betas": (0.8, 0.999), "weight_decay": 0.1}),
    ("adamw", {}, "AdamW", {"weight_decay": 0.01}),
    ("adamw", {"weight_decay": 0.3, "epsilon": 1e-6}, "AdamW", {"weight_decay": 0.3, "eps": 1e-6}),
]


@pytest.mark.parametrize(("name", "options", "torch_name", "torch_options"), CASES)
def test_five_steps(name, options, torch_name, torch_options):
    torch = pytest.importorskip("torch")
    weight, grads = RNG.standard_normal((3, 4)).astype(np.float32), RNG.standard_normal((5, 3, 4)).astype(np.float32)
    leaf = torch.tensor(weight, requires_grad=True)
    theirs = getattr(torch.optim, torch_name)([leaf], lr=0.05, **torch_options)
    model, states = step_model(name, options)
    values = {"w": weight, **{state: np.zeros((3, 4), np.float32) for state in states}}
    for count, grad in enumerate(grads, 1):
        leaf.grad = torch.tensor(grad)
        theirs.step()
        feeds = {"g": grad, "rate": np.array(0.05, np.float32), "count": np.array(count, np.float32)}
        used = {port.name for port in model.graph.input}
        results = runtime(model, {k: v for k, v in {**values, **feeds}.items() if k in used})
        values = dict(zip(["w", *states], results, strict=True))
        assert_close(values["w"], leaf.detach().numpy(), 1e-5, f"{name} after {count} steps")


def step_model(name, options):
    tape = Tape(["w", "g", "rate", "count"])
    optimizer = make_optimizer(name, options)
    weight, grad = port("w", (3, 4)), port("g", (3, 4))
    rate, count = port("rate", ()), port("count", ())
    states = [port(state, (3, 4)) for state in optimizer.states]
    shared = shared_numbers(tape, optimizer, rate, lambda: count)
    new = optimizer.update(tape, weight, grad, states, shared)
    inputs = [weight, grad, rate, *([count] if count.uses() else []), *states]
    graph = ir.Graph(
        inputs,
        new,
        nodes=tape.nodes,
        initializers=list(tape.constants.values()),
        opset_imports={"": OPSET},
        name="update",
    )
    return ir.to_proto(ir.Model(graph, ir_version=IR_VERSION)), optimizer.states


def port(name, shape):
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))


def test_an_unknown_option_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"optimizer adam: .*beta.*its options are: beta1, beta2, epsilon"):
        make_optimizer("adam", {"beta": 0.9})
    with pytest.raises(ConfigError, match="optimizer sgd"):
        make_optimizer("sgd", {"weight_decay": "much"})
