"""Gradients of normalisations per channel against finite differences and torch; running statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.reverse import Recorder
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.rules_norm import BATCH_NORM_FROZEN
from remat_cli.autodiff.tape import Call, Tape
from tests.autodiff.rule_case import Case, build, check, check_with_torch, differentiate, reference, runtime

FROZEN = {**RULES, "BatchNormalization": BATCH_NORM_FROZEN}
SHAPES = [(2, 3, 4, 5), (5, 3), (2, 1, 7), (1, 4, 2, 3, 3), (3, 2, 1, 1)]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def normalisation(op_type: str, shape: tuple[int, ...], **attributes: Any) -> Case:
    """An op of input, scale and bias."""
    channels = shape[1]
    return Case(op_type, [draw(*shape) * 2 + 1, draw(channels) + 1, draw(channels)], attributes)


def batch_norm(shape: tuple[int, ...], **attributes: Any) -> Case:
    case = normalisation("BatchNormalization", shape, **attributes)
    channels = shape[1]
    statistics = [draw(channels), np.abs(draw(channels)) + 0.5]
    outputs = 3 if attributes.get("training_mode") else 1
    return Case(case.op_type, [*case.inputs, *statistics], case.attributes, fixed=(3, 4), outputs=outputs)


CASES = [
    batch_norm((2, 3, 4, 5)),
    normalisation("InstanceNormalization", (2, 3, 4, 5)),
    normalisation("GroupNormalization", (2, 4, 3, 5), num_groups=2, stash_type=11),
]


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_of_the_batch(shape: tuple[int, ...], mode: int) -> None:
    attributes = {"epsilon": 0.01} if mode else {}
    check(batch_norm(shape, training_mode=mode, **attributes))


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_with_frozen_statistics(shape: tuple[int, ...], mode: int) -> None:
    check(batch_norm(shape, training_mode=mode), FROZEN)


@pytest.mark.parametrize("trained", [0, 1, 2])
@pytest.mark.parametrize("rules", [RULES, FROZEN], ids=["batch", "frozen"])
def test_batch_norm_where_one_input_is_trained(trained: int, rules: Any) -> None:
    case = batch_norm((2, 3, 4))
    check(Case(case.op_type, case.inputs, fixed=[place for place in range(5) if place != trained]), rules)


@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (1e3, 1), (1e3, 0.1), (-1e4, 10), (0, 1e-4)])
def test_batch_norm_against_torch(mean: float, deviation: float) -> None:
    """A large mean must not drown what is left after it is subtracted."""
    torch = pytest.importorskip("torch")
    case = batch_norm((4, 3, 9, 11))
    x = (case.inputs[0] * deviation + mean).astype(np.float32)
    case = Case(case.op_type, [x, *case.inputs[1:]], fixed=(3, 4))
    check_with_torch(case, lambda x, s, b: torch.nn.functional.batch_norm(x, None, None, s, b, training=True))


@pytest.mark.parametrize("op_type", ["BatchNormalization", "InstanceNormalization", "GroupNormalization"])
def test_constant_channels_give_finite_gradients(op_type: str) -> None:
    inputs = [np.full((2, 3, 4), 5.0), *batch_norm((2, 3, 4)).inputs[1:]]
    if op_type == "BatchNormalization":
        case = Case(op_type, inputs, fixed=(3, 4))
    else:
        case = Case(op_type, inputs[:3], {"num_groups": 1} if op_type == "GroupNormalization" else {})
    found = differentiate(case, np.float32, RULES, runtime)
    assert all(np.isfinite(grad).all() for grad in found.values())


def running_step(training_mode: int, constant: bool) -> tuple[Recorder, list[ir.Value]]:
    """A forward BatchNormalization whose running statistics are fed in, or are constants."""
    tape = Tape()
    recorder = Recorder(tape, RULES)
    values = [_input(name, (2, 3, 4) if name == "x" else (3,)) for name in ("x", "s", "b", "m", "v")]
    if constant:
        values[3:] = [tape.constant(np.zeros(3)), tape.constant(np.ones(3))]
    recorder.active.update(values[:3])
    attributes = {
        a.name: a for a in ir.convenience.convert_attributes({"momentum": 0.8, "training_mode": training_mode})
    }
    names = ["y", "m1", "v1"] if training_mode else ["y"]
    recorder.run(Call("bn", "BatchNormalization", tuple(values), attributes), names)
    return recorder, values


def _input(name: str, shape: tuple[int, ...]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape(shape))


def test_constant_statistics_are_not_updated() -> None:
    assert running_step(0, constant=True)[0].updates == []


@pytest.mark.parametrize("training_mode", [0, 1])
def test_running_statistics_move_as_the_standard_says(training_mode: int) -> None:
    recorder, values = running_step(training_mode, constant=False)
    assert [old for old, _ in recorder.updates] == values[3:]
    results = [new for _, new in recorder.updates]
    graph = ir.Graph(
        values,
        results,
        nodes=recorder.tape.nodes,
        initializers=list(recorder.tape.constants.values()),
        opset_imports={"": 21},
        name="step",
    )
    x, m, v = draw(2, 3, 4) + 3, draw(3), draw(3) ** 2
    feeds = {"x": x, "s": np.ones(3), "b": np.zeros(3), "m": m, "v": v}
    mean, variance = reference(ir.to_proto(ir.Model(graph, ir_version=10)), feeds)
    np.testing.assert_allclose(mean, 0.8 * m + 0.2 * x.mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(variance, 0.8 * v + 0.2 * x.var((0, 2)), rtol=1e-12)


@pytest.mark.parametrize(
    "case",
    [
        batch_norm((2, 3, 4, 5)),
        normalisation("InstanceNormalization", (2, 3, 4, 5)),
        normalisation("GroupNormalization", (2, 4, 3, 5), num_groups=2),
    ],
    ids=lambda case: case.op_type,
)
def test_no_large_tensor_is_written_twice_alike(case: Case) -> None:
    """The runtime would share the two, and so keep the forward one in memory until the backward pass."""
    model, _ = build(case, np.float32, RULES, gradients=True)
    size = case.arrays[0].size
    large = {
        v.name for v in model.graph.value_info if np.prod([d.dim_value for d in v.type.tensor_type.shape.dim]) == size
    }
    nodes = [n for n in model.graph.node if n.output[0] in large and n.op_type != "Reshape"]
    assert len(nodes) >= 4
    assert len({(n.op_type, *n.input, *map(str, n.attribute)) for n in nodes}) == len(nodes)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 6), (3, 1, 2, 2, 3)])
def test_instance_norm(shape: tuple[int, ...]) -> None:
    check(normalisation("InstanceNormalization", shape, epsilon=1e-3))


@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (1e3, 0.5)])
def test_instance_norm_against_torch(mean: float, deviation: float) -> None:
    torch = pytest.importorskip("torch")
    case = normalisation("InstanceNormalization", (2, 3, 7, 5))
    x = (case.inputs[0] * deviation + mean).astype(np.float32)
    case = Case(case.op_type, [x, *case.inputs[1:]])
    check_with_torch(case, lambda x, s, b: torch.nn.functional.instance_norm(x, weight=s, bias=b))


@pytest.mark.parametrize(("shape", "groups"), [((2, 4, 3, 5), 2), ((1, 6, 4), 3), ((2, 4, 3), 4), ((3, 4, 2, 2), 1)])
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    check(normalisation("GroupNormalization", shape, num_groups=groups, stash_type=11))


@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (1e3, 0.5)])
def test_group_norm_against_torch(mean: float, deviation: float) -> None:
    torch = pytest.importorskip("torch")
    case = normalisation("GroupNormalization", (2, 6, 7, 5), num_groups=2)
    x = (case.inputs[0] * deviation + mean).astype(np.float32)
    case = Case(case.op_type, [x, *case.inputs[1:]], case.attributes)
    check_with_torch(case, lambda x, s, b: torch.nn.functional.group_norm(x, 2, s, b))
