"""What ops without a gradient make counts as a constant."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from remat_cli.autodiff.reverse import Recorder
from remat_cli.autodiff.rules import RULES, ZERO_GRADIENT
from remat_cli.autodiff.tape import OPSET, Rule, Tape


def trained() -> ir.Value:
    return ir.Value(name="w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3]))


@pytest.mark.parametrize("op_type", ["Floor", "Sign", "RandomNormalLike"])
def test_the_result_of_such_an_op_is_a_constant(op_type: str) -> None:
    weight = trained()
    recorder = Recorder(Tape(), RULES, active={weight})
    rounded = recorder.op(op_type, weight)
    result = recorder.op("Mul", weight, rounded)
    (call,) = recorder.leading_to([result])
    assert (call.op_type, call.wanted) == ("Mul", {0})
    assert not recorder.without_rule([result])


def test_an_op_outside_the_list_without_a_rule_is_missed() -> None:
    weight = trained()
    recorder = Recorder(Tape(), {}, active={weight})
    assert recorder.without_rule([recorder.op("Exp", weight)]) == {"Exp": 1}


def test_a_rule_that_is_given_counts_instead() -> None:
    weight = trained()
    straight_through = {**RULES, "Round": Rule(lambda tape, call, grads: {})}
    recorder = Recorder(Tape(), straight_through, active={weight})
    (call,) = recorder.leading_to([recorder.op("Round", weight)])
    assert call.wanted == {0}


def test_the_list_names_ops_of_the_opset() -> None:
    assert all(onnx.defs.has(op_type, OPSET, "") for op_type in ZERO_GRADIENT)
