"""Random small graphs of many ops, with values read several times and broadcast: gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from remat_cli.autodiff.reverse import Recorder, write_gradients
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import IR_VERSION, OPSET, Call, Tape, shape_of
from tests.autodiff.rule_case import PRECISE, STEP, cotangent, reference, runtime

BROADCASTABLE = ((2, 3, 4), (3, 1), (1,), (), (2, 1, 4), (1, 3, 4), (4,))
WITH_NOTHING = ((2, 0, 4), (0, 1), (1,), (), (2, 1, 4), (1, 0, 4), (4,))
Picks = Sequence[tuple[int, int, int]]  # by op: which one, and the places of two operands among what there is


@dataclass(frozen=True)
class Writer:
    """Writes ops of the forward pass."""

    recorder: Recorder

    def op(self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> ir.Value:
        """An op; its last result."""
        given = {a.name: a for a in ir.convenience.convert_attributes(attributes)}
        result = self.recorder.run(Call("", op_type, inputs, given), [""] * outputs)[-1]
        assert result is not None
        return result

    def ints(self, *numbers: int) -> ir.Value:
        return self.recorder.tape.ints(*numbers)

    def array(self, array: Any, like: ir.Value) -> ir.Value:
        assert like.dtype is not None
        return self.recorder.tape.constant(np.asarray(array).astype(like.dtype.numpy()))


Op = Callable[[Writer, ir.Value, ir.Value], ir.Value]


def _named(*op_types: str) -> list[Op]:
    return [lambda w, a, b, kind=kind: w.op(kind, a) for kind in op_types]


def _pairs(*op_types: str) -> list[Op]:
    return [lambda w, a, b, kind=kind: w.op(kind, a, b) for kind in op_types]


def _reduced(op_type: str, keepdims: int) -> Op:
    """Over the last axis; the whole of a number."""

    def write(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
        return w.op(op_type, a, *([w.ints(-1)] if shape_of(a) else []), keepdims=keepdims)

    return write


def _on_rows(write: Op) -> Op:
    """For ops that need an axis: numbers get one."""
    return lambda w, a, b: write(w, a if shape_of(a) else w.op("Unsqueeze", a, w.ints(0)), b)


def _ratio(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return w.op("Div", a, w.op("Add", w.op("Exp", w.op("Tanh", b)), w.array(1.0, b)))


def _power(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return w.op("Pow", w.op("Exp", w.op("Tanh", a)), b)


def _chosen(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return w.op("Where", w.op("Greater", b, w.array(0.0, b)), a, b)


def _outer(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    """Of all elements with those of the other."""
    return w.op("MatMul", w.op("Reshape", a, w.ints(-1, 1)), w.op("Reshape", b, w.ints(1, -1)))


def _own_product(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    rows = w.op("Reshape", a, w.ints(prod(shape_of(a)[:-1]), shape_of(a)[-1]), allowzero=1)
    return w.op("MatMul", rows, w.op("Transpose", rows, perm=[1, 0]))


def _halves(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    """The second part only: nothing flows back from the first."""
    size = shape_of(a)[-1]
    return w.op("Split", a, w.ints(size // 2, size - size // 2), axis=-1, outputs=2)


def _backwards(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return w.op("Slice", a, w.ints(-1), w.ints(-(2**40)), w.ints(-1), w.ints(-2))


def _gathered(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return w.op("Gather", a, w.ints(-1, 0, -1), axis=-1) if shape_of(a)[-1] else a


def _masked(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    mask = w.array(np.resize([1.0, 0.0], shape_of(a)[-1:]), a)
    return w.op("Mul", a, mask)


def _padded(w: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    first = w.op("Slice", w.op("Reshape", b, w.ints(-1)), w.ints(0), w.ints(1)) if prod(shape_of(b)) else None
    filling = None if first is None else w.op("Squeeze", first, w.ints(0))
    return w.op("Pad", a, w.ints(1, 2), filling, w.ints(-1))


OPS: tuple[Op, ...] = (
    *_named("Tanh", "Sigmoid", "Neg", "Sin", "Relu", "Abs", "Gelu", "Softplus", "Identity", "Elu", "HardSwish"),
    *_pairs("Add", "Sub", "Mul", "Max", "Min", "Sum"),
    lambda w, a, b: w.op("Mean", a, a),  # the evaluator's own cannot broadcast
    lambda w, a, b: w.op("Mul", a, a),
    lambda w, a, b: w.op("Sum", a, b, a),
    lambda w, a, b: w.op("Max", a, b, a),
    lambda w, a, b: w.op("Sqrt", w.op("Exp", w.op("Tanh", a))),
    lambda w, a, b: w.op("Transpose", a),
    lambda w, a, b: w.op("Expand", a, w.ints(2, *([1] * len(shape_of(a))))),
    lambda w, a, b: w.op("Unsqueeze", a, w.ints(-1)),
    lambda w, a, b: w.op("Clip", a, w.array(-0.5, a), w.array(0.7, a)),
    *(_reduced(kind, keep) for kind in ("ReduceSum", "ReduceMean", "ReduceSumSquare") for keep in (0, 1)),
    *map(_on_rows, (_halves, _backwards, _gathered, _own_product, _masked, _padded)),
    _on_rows(lambda w, a, b: w.op("Softmax", a, axis=-1)),
    _on_rows(lambda w, a, b: w.op("LogSoftmax", a, axis=0)),
    _on_rows(lambda w, a, b: w.op("Concat", a, a, axis=-1)),
    _on_rows(lambda w, a, b: w.op("Concat", w.op("Tanh", a), a, axis=0)),
    _on_rows(lambda w, a, b: w.op("CumSum", a, w.array(-1, w.ints(0)), reverse=1)),
    _on_rows(lambda w, a, b: w.op("Tile", a, w.ints(*[1] * (len(shape_of(a)) - 1), 2))),
    _ratio,
    _power,
    _chosen,
    _outer,
)


def _graph(picks: Picks, shapes: Sequence[tuple[int, ...]], dtype: Any, gradients: bool) -> onnx.ModelProto:
    """The graph's last two values, or how the inputs' gradients follow from seeded ones of both."""
    tape = Tape()
    kind = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    inputs = [ir.Value(name=f"x{n}", type=kind, shape=ir.Shape(shape)) for n, shape in enumerate(shapes)]
    recorder = Recorder(tape, RULES, active=set(inputs))
    values = list(inputs)
    for which, first, second in picks:
        a, b = (values[-1 - place % len(values)] for place in (first, second))
        if not _fit(shape_of(a), shape_of(b)):
            b = a
        values.append(OPS[which % len(OPS)](Writer(recorder), a, b))
    ends = list(dict.fromkeys(value for value in values[-2:] if value not in inputs))
    if gradients:
        found: dict[ir.Value, ir.Value] = {}
        seeds = {end: tape.constant(cotangent(shape_of(end), dtype)) for end in ends}
        write_gradients(
            tape, recorder.leading_to(ends), RULES, seeds, dict.fromkeys(inputs, lambda v, g: found.update({v: g}))
        )
        ends = [tape.op("Identity", found.get(v, tape.constant(np.zeros(shape_of(v), dtype)))) for v in inputs]
    graph = ir.Graph(
        inputs,
        ends,
        nodes=tape.nodes,
        initializers=list(tape.constants.values()),
        opset_imports={"": OPSET},
        name="random",
    )
    return ir.to_proto(ir.Model(graph, ir_version=IR_VERSION))


def _fit(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes broadcast, to not too much."""
    try:
        return prod(np.broadcast_shapes(a, b)) <= 512 and prod(a) * prod(b) <= 4096
    except ValueError:
        return False


def _feeds(shapes: Sequence[tuple[int, ...]]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    return {f"x{n}": generator.uniform(-1, 1, shape) for n, shape in enumerate(shapes)}


def check_exactly(picks: Picks, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Along one direction of all inputs together, in float64; returns the gradients."""
    feeds = _feeds(shapes)
    exact = reference(_graph(picks, shapes, np.float64, True), feeds)
    evaluator = ReferenceEvaluator(_graph(picks, shapes, np.float64, False), new_ops=PRECISE)
    generator = np.random.default_rng(7)
    direction = {name: generator.standard_normal(value.shape) for name, value in feeds.items()}

    def loss(step: float) -> float:
        results: Any = evaluator.run(None, {name: feeds[name] + step * direction[name] for name in feeds})
        return float(sum(np.sum(result * cotangent(result.shape, np.float64)) for result in results))

    slope = (loss(STEP) - loss(-STEP)) / (2 * STEP)
    ours = float(sum(np.sum(grad * direction[name]) for grad, name in zip(exact, feeds, strict=True)))
    assert abs(ours - slope) <= 1e-6 * max(_size(exact), abs(slope)), (ours, slope)
    return exact


def _size(grads: Sequence[np.ndarray]) -> float:
    return max(1e-2, *(float(np.max(np.abs(grad), initial=0)) for grad in grads))


def check_graph(picks: Picks, shapes: Sequence[tuple[int, ...]]) -> None:
    """As above, and element by element in float32 on the runtime."""
    exact = check_exactly(picks, shapes)
    feeds = {name: value.astype(np.float32) for name, value in _feeds(shapes).items()}
    single = runtime(_graph(picks, shapes, np.float32, True), feeds)
    for grad, expected in zip(single, exact, strict=True):
        assert grad.shape == expected.shape
        assert np.max(np.abs(grad - expected), initial=0) <= 1e-3 * _size(exact)


PICKS = st.lists(st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(PICKS, st.lists(st.sampled_from(BROADCASTABLE), min_size=1, max_size=3))
def test_gradients_of_random_graphs(picks: Picks, shapes: Sequence[tuple[int, ...]]) -> None:
    check_graph(picks, shapes)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(PICKS, st.lists(st.sampled_from(WITH_NOTHING), min_size=1, max_size=3))
def test_gradients_of_random_graphs_with_empty_tensors(picks: Picks, shapes: Sequence[tuple[int, ...]]) -> None:
    """Not on the runtime, whose reductions of nothing have the shape of what they reduce."""
    check_exactly(picks, shapes)


@pytest.mark.parametrize("which", range(len(OPS)))
def test_gradients_of_each_op_read_by_two_others(which: int) -> None:
    check_graph([(which, 0, 1), (5, 0, 0), (13, 0, 1)], ((2, 3, 4), (3, 1)))
