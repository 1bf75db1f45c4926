"""One op, its gradients as the rules write them, and how they are checked: finite differences, the runtime, torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from remat_cli.autodiff.reverse import Recorder, write_gradients
from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import IR_VERSION, OPSET, Call, Rule, Tape
from tests.autodiff.exact_windows import WINDOW_OPS

DIRECTIONS = 4
STEP = 1e-5


@dataclass(frozen=True)
class Case:
    """An op on given inputs (None: left out). Floats in `inputs` are differentiated unless `fixed` names their place.

    `constants` are places whose values the rule may see (shapes, axes, bounds). `outputs` are how many results the op
    makes, `checked` the places of those that a gradient flows back from. `judge` replaces finite differences where an
    op has no double precision.
    """

    op_type: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fixed: Sequence[int] = ()
    outputs: int = 1
    checked: Sequence[int] = (0,)
    domain: str = ""
    judge: Callable[[Case], None] | None = None

    @property
    def arrays(self) -> dict[int, np.ndarray]:
        return {place: np.asarray(array) for place, array in enumerate(self.inputs) if array is not None}

    @property
    def trained(self) -> list[int]:
        return [p for p, a in self.arrays.items() if a.dtype.kind == "f" and p not in self.fixed]


def check(case: Case, rules: Mapping[str, Rule] = RULES) -> None:
    """Relative error below 1e-6 in float64 against finite differences, below 1e-3 in float32 on the runtime."""
    if case.judge is not None:
        case.judge(case)
        return
    exact = differentiate(case, np.float64, rules, reference)
    for place, grad in exact.items():
        _check_directions(case, place, grad, rules)
    single = differentiate(case, np.float32, rules, runtime)
    for place, grad in single.items():
        assert_close(grad, exact[place], 1e-3, f"{case.op_type} input {place}, float32 on the runtime")


def check_with_torch(case: Case, function: Callable[..., Any], rules: Mapping[str, Rule] = RULES) -> None:
    """Float32 gradients on the runtime against torch's for `function` of the differentiated inputs, in order."""
    import torch

    leaves = [torch.tensor(case.arrays[p].astype(np.float32), requires_grad=True) for p in case.trained]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    ends = [result for place, result in enumerate(results) if place in case.checked]
    torch.autograd.backward(ends, [torch.tensor(cotangent(tuple(end.shape), np.float32)) for end in ends])
    ours = differentiate(case, np.float32, rules, runtime)
    for place, leaf in zip(case.trained, leaves, strict=True):
        expected = leaf.grad.numpy() if leaf.grad is not None else np.zeros(leaf.shape)
        assert_close(ours[place], expected, 1e-3, f"{case.op_type} input {place}, torch")


def differentiate(
    case: Case, dtype: Any, rules: Mapping[str, Rule], run: Callable[[onnx.ModelProto, dict[str, Any]], list[Any]]
) -> dict[int, np.ndarray]:
    """Gradient of each differentiated input, for seeded gradients of the results."""
    model, feeds = build(case, dtype, rules, gradients=True)
    return dict(zip(case.trained, run(model, feeds), strict=True))


def build(case: Case, dtype: Any, rules: Mapping[str, Rule], gradients: bool) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of the op as a training step writes it: its gradients, or its results; and what to feed."""
    tape = Tape()
    feeds: dict[str, Any] = {}
    values: list[ir.Value | None] = []
    inputs: list[ir.Value] = []
    for place, array in enumerate(case.inputs):
        if array is None:
            values.append(None)
            continue
        cast = np.asarray(array).astype(dtype) if np.asarray(array).dtype.kind == "f" else np.asarray(array)
        if place in case.trained:
            value = ir.Value(
                name=f"x{place}", type=ir.TensorType(ir.DataType.from_numpy(cast.dtype)), shape=ir.Shape(cast.shape)
            )
            feeds[f"x{place}"] = cast
            inputs.append(value)
        else:
            value = tape.constant(cast)
        values.append(value)
    recorder = Recorder(tape, rules, active=set(inputs))
    attributes = {a.name: a for a in ir.convenience.convert_attributes(dict(case.attributes))}
    call = Call("op", case.op_type, tuple(values), attributes, domain=case.domain)
    results = recorder.run(call, [f"y{place}" for place in range(case.outputs)])
    ends = [results[place] for place in case.checked]
    found: dict[str, ir.Value] = {}
    if gradients:
        seeds = {end: tape.constant(cotangent(tuple(end.shape), dtype)) for end in ends}
        arrived = {value: lambda value, grad: found.__setitem__(value.name, grad) for value in inputs}
        write_gradients(tape, recorder.leading_to(ends), rules, seeds, arrived)
        ends = [tape.op("Identity", found[value.name]) for value in inputs]
    graph = ir.Graph(
        inputs,
        ends,
        nodes=tape.nodes,
        initializers=list(tape.constants.values()),
        opset_imports={"": OPSET} | ({case.domain: 1} if case.domain else {}),
        name="case",
    )
    return ir.to_proto(ir.Model(graph, ir_version=IR_VERSION)), feeds


class Erf(OpRun):
    """The evaluator's own rounds to float32."""

    op_domain = ""

    def _run(self, x):
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):
    """The evaluator's own is made of its own Erf."""

    op_domain = ""

    def _run(self, x, approximate=None):
        if approximate == "tanh":
            return (x * (np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)) + 1) / 2,)
        return (x * (np.vectorize(math.erf, otypes=[x.dtype])(x / np.sqrt(2)) + 1) / 2,)


PRECISE = [Erf, Gelu, *WINDOW_OPS]


def cotangent(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """The gradient that flows back from a result."""
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape).astype(dtype)


def reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Evaluate with onnx's own evaluator, which knows every op in float64."""
    return list(ReferenceEvaluator(model, new_ops=PRECISE).run(None, feeds))


def runtime(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Evaluate with ONNX Runtime, default options."""
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_close(ours: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    assert ours.shape == expected.shape, what
    error = np.max(np.abs(ours - expected), initial=0.0) / max(np.max(np.abs(expected), initial=0.0), 1e-3)
    assert error < tolerance, f"{what}: relative error {error:.2e}"


def _check_directions(case: Case, place: int, grad: np.ndarray, rules: Mapping[str, Rule]) -> None:
    """The gradient along seeded directions against central differences of the op itself."""
    model, feeds = build(case, np.float64, rules, gradients=False)
    evaluator = ReferenceEvaluator(model, new_ops=PRECISE)
    generator = np.random.default_rng(place)

    def loss(shift: np.ndarray) -> float:
        results = evaluator.run(None, {**feeds, f"x{place}": feeds[f"x{place}"] + shift})
        return float(sum(np.sum(result * cotangent(result.shape, np.float64)) for result in results))

    for _ in range(DIRECTIONS):
        direction = generator.standard_normal(grad.shape)
        slope = (loss(STEP * direction) - loss(-STEP * direction)) / (2 * STEP)
        ours = float(np.sum(grad * direction))
        scale = float(np.linalg.norm(grad) * np.linalg.norm(direction)) or 1.0
        assert abs(ours - slope) <= 1e-6 * max(scale, abs(slope), 1e-3), (
            f"{case.op_type} input {place}: {ours} along a direction, {slope} by finite differences"
        )
