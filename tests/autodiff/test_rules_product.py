"""Gradients of matrix products against finite differences and torch, and how they are written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.reverse import Recorder, write_gradients
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import OPSET, Tape
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import (
    Case,
    assert_close,
    build,
    check,
    check_with_torch,
    cotangent,
    differentiate,
    runtime,
)

PAIRS = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((9, 8), (2, 8, 2)),
    ((3, 4), (1, 1, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((5, 4, 2), (2, 1, 2, 3)),
    ((1, 3, 4), (6, 4, 1)),
]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


CASES = [
    *(Case("MatMul", [draw(*left), draw(*right)]) for left, right in PAIRS),
    Case("Gemm", [draw(3, 4), draw(5, 4), draw(5)], {"transB": 1, "alpha": 0.5}),
    Case("FusedMatMul", [draw(3, 4), draw(5, 4)], {"transB": 1, "alpha": 0.5}, domain="com.microsoft"),
]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    case = Case("MatMul", [draw(*left), draw(*right)])
    check(case)
    check_with_torch(case, torch.matmul)


def written(case: Case) -> Counter[str]:
    """How many of each kind of op the gradients took, with the forward op."""
    model, _ = build(case, np.float32, RULES, gradients=True)
    return Counter(node.op_type for node in model.graph.node)


def test_a_shared_weight_gets_its_gradient_from_one_product_over_all_rows() -> None:
    ops = written(Case("MatMul", [draw(2, 3, 4), draw(4, 5)]))
    assert ops["Gemm"] == 2
    assert not ops.keys() & {"Transpose", "ReduceSum"}


def test_a_shared_left_factor_takes_the_smaller_way() -> None:
    assert written(Case("MatMul", [draw(9, 8), draw(2, 8, 2)], fixed=(1,)))["Gemm"] == 1
    assert written(Case("MatMul", [draw(3, 4), draw(2, 4, 50)], fixed=(1,)))["Gemm"] == 0


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (3, 1), (1, 5), (3, 5)])
def test_gemm(turned: tuple[int, int], bias: tuple[int, ...] | None) -> None:
    a, b = draw(3, 4), draw(4, 5)
    inputs = [a.T if turned[0] else a, b.T if turned[1] else b, *([] if bias is None else [draw(*bias)])]
    check(Case("Gemm", inputs, {"transA": turned[0], "transB": turned[1], "alpha": 0.5, "beta": -2.0}))


def test_gemm_without_factors() -> None:
    torch = pytest.importorskip("torch")
    case = Case("Gemm", [draw(3, 4), draw(5, 4), draw(5)], {"transB": 1})
    check(case)
    check_with_torch(case, torch.nn.functional.linear)
    assert written(case)["Mul"] == 0


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("ranks", [(2, 2), (3, 3), (3, 2), (2, 3), (4, 3)])
def test_fused_matmul(turned: tuple[int, int], ranks: tuple[int, int]) -> None:
    batch = (3, 2)
    a, b = draw(*batch[4 - ranks[0] :], 3, 4), draw(*batch[4 - ranks[1] :], 4, 5)
    inputs = [a.swapaxes(-1, -2) if turned[0] else a, b.swapaxes(-1, -2) if turned[1] else b]
    check(Case("FusedMatMul", inputs, {"transA": turned[0], "transB": turned[1], "alpha": 0.5}, domain="com.microsoft"))


def test_fused_matmul_with_transposed_batch_is_refused() -> None:
    with pytest.raises(ModelError, match="transposed batches"):
        written(Case("FusedMatMul", [draw(2, 3, 4), draw(3, 4, 5)], {"transBatchA": 1}, domain="com.microsoft"))


def attention(tape: Tape, q: ir.Value, k: ir.Value, v: ir.Value) -> tuple[Recorder, ir.Value]:
    recorder = Recorder(tape, RULES, active={q, k, v})
    turned = recorder.op("Transpose", k, perm=[0, 1, 3, 2])
    scores = recorder.op("MatMul", q, turned)
    weights = recorder.op("Softmax", recorder.op("Mul", scores, tape.scalar(0.3, q)), axis=-1)
    return recorder, recorder.op("MatMul", weights, v)


def test_attention_against_torch() -> None:
    torch = pytest.importorskip("torch")
    arrays = {name: draw(2, 4, rows, 8).astype(np.float32) for name, rows in (("q", 9), ("k", 13), ("v", 13))}
    values = {
        name: ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
        for name, array in arrays.items()
    }
    tape = Tape()
    recorder, end = attention(tape, *values.values())
    found: dict[str, ir.Value] = {}
    seeds = {end: tape.constant(cotangent((2, 4, 9, 8), np.float32))}
    arrived: Any = {value: lambda value, grad: found.__setitem__(value.name, grad) for value in values.values()}
    write_gradients(tape, recorder.leading_to([end]), RULES, seeds, arrived)
    graph = ir.Graph(
        list(values.values()),
        [found[name] for name in arrays],
        nodes=tape.nodes,
        initializers=list(tape.constants.values()),
        opset_imports={"": OPSET},
        name="attention",
    )
    ours = runtime(ir.to_proto(ir.Model(graph, ir_version=10)), arrays)
    q, k, v = (torch.tensor(array, requires_grad=True) for array in arrays.values())
    torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3).backward(
        torch.tensor(cotangent((2, 4, 9, 8), np.float32))
    )
    for mine, leaf in zip(ours, (q, k, v), strict=True):
        assert_close(mine, leaf.grad.numpy(), 1e-4, "attention")


def test_float16_products_keep_their_type() -> None:
    found = differentiate(Case("MatMul", [draw(2, 3, 4), draw(4, 5)]), np.float16, RULES, runtime)
    assert {grad.dtype for grad in found.values()} == {np.dtype(np.float16)}
