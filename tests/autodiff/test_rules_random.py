"""Dropout in training: its gradient passes where its result did, and what is seeded may be drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from remat_cli.autodiff.reverse import Recorder
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import Call, Tape
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import Case, build, check, cotangent, reference, runtime

RNG = np.random.default_rng(0)


def dropout(ratio: float | None, **attributes: Any) -> Case:
    rest = [] if ratio is None else [np.array(ratio, np.float32)]
    return Case("Dropout", [RNG.standard_normal((4, 50)), *rest], attributes, fixed=(1,), outputs=2)


CASES = [
    dropout(0.0),
    Case("RandomNormal", [], {"shape": [2, 3]}),
    Case("RandomUniform", [], {"shape": [2, 3]}),
    Case("RandomNormalLike", [RNG.standard_normal(4)]),
    Case("RandomUniformLike", [RNG.standard_normal(4)]),
    Case("Multinomial", [RNG.standard_normal((2, 4))], {"sample_size": 3}),
]


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9, None])
@pytest.mark.parametrize(("dtype", "run"), [(np.float64, reference), (np.float32, runtime)])
def test_the_gradient_is_that_of_the_mask_that_was_drawn(ratio: float | None, dtype: Any, run: Any) -> None:
    """Result and gradient of one run: both are the mask, scaled. (Two evaluators draw different masks.)"""
    model, feeds = build(dropout(ratio), dtype, RULES, gradients=True)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.output.append(onnx.helper.make_tensor_value_info("y0", kind, (4, 50)))
    grad, result = run(model, feeds)
    slope = result / feeds["x0"]
    assert 0.5 * (ratio or 0.5) < np.mean(slope == 0) < 1
    np.testing.assert_allclose(slope[slope != 0], 1 / (1 - (0.5 if ratio is None else ratio)), rtol=1e-5)
    np.testing.assert_allclose(grad, cotangent((4, 50), dtype) * slope, rtol=1e-5)


def test_nothing_is_dropped_at_ratio_zero() -> None:
    check(dropout(0.0))
    model, _ = build(dropout(0.0), np.float32, RULES, gradients=True)
    assert [len(node.input) for node in model.graph.node] == [2, 1]


@pytest.mark.parametrize("ratio", [1.0, -0.1])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(ModelError, match="its ratio is"):
        build(dropout(ratio), np.float32, RULES, gradients=True)


def test_a_computed_ratio_scales_the_gradient() -> None:
    """The model's own Dropout with a ratio that is fed."""
    tape = Tape()
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4, 50]))
    ratio = ir.Value(name="ratio", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    recorder = Recorder(tape, RULES, active={x})
    result = recorder.run(Call("drop", "Dropout", (x, ratio), {}), ["y"])[0]
    ones = tape.constant(np.ones((4, 50), np.float32))
    grad = RULES["Dropout"].gradient(tape, recorder.calls[0], (ones, None))[0]
    assert result is not None
    ends = [tape.op("Identity", grad), tape.op("Identity", result)]
    graph = ir.Graph(
        [x, ratio],
        ends,
        nodes=tape.nodes,
        initializers=list(tape.constants.values()),
        opset_imports={"": 21},
        name="ratio",
    )
    model = ir.to_proto(ir.Model(graph, ir_version=10))
    found, dropped = runtime(model, {"x": np.ones((4, 50), np.float32), "ratio": np.array(0.75, np.float32)})
    assert set(np.unique(found)) == {0.0, 4.0}
    np.testing.assert_array_equal(found, dropped)


def test_each_dropout_has_a_seed_of_its_own_or_keeps_the_one_it_has() -> None:
    tape = Tape()
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4]))
    recorder = Recorder(tape, RULES, active={x})
    given = {"seed": ir.Attr("seed", ir.AttributeType.INT, 77)}
    for number, attributes in enumerate([{}, {}, given]):
        recorder.run(Call(f"drop{number}", "Dropout", (x,), attributes), [f"y{number}"])
    seeds = [node.attributes["seed"].as_int() for node in tape.nodes]
    assert len(set(seeds)) == 3
    assert seeds[2] == 77
