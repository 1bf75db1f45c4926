"""Gradients of ops that cut, join, repeat and rearrange, against finite differences and torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.tape import Call, Grads, Tape
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import Case, build, check, check_with_torch, cotangent, differentiate, runtime

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def cut(
    shape: Sequence[int], starts: Any, ends: Any, axes: Sequence[int] | None = None, steps: Sequence[int] | None = None
) -> Case:
    rest = [None if given is None else ints(*given) for given in (axes, steps)]
    while rest and rest[-1] is None:
        rest.pop()
    return Case("Slice", [real(*shape), ints(*starts), ints(*ends), *rest])


FAR = 2**62
MOVES = [
    Case("Reshape", [real(2, 6), ints(3, -1)]),
    Case("Reshape", [real(2, 6), ints(0, 2, 3)]),
    Case("Flatten", [real(2, 3, 4)], {"axis": 2}),
    Case("Squeeze", [real(2, 1, 4, 1)]),
    Case("Squeeze", [real(2, 1, 4, 1), ints(-1)]),
    Case("Unsqueeze", [real(2, 4), ints(0, -1)]),
    Case("Transpose", [real(2, 3, 4)]),
    Case("Transpose", [real(2, 3, 4, 5)], {"perm": [0, 3, 1, 2]}),
    Case("Transpose", [real()]),
    Case("Expand", [real(3, 1), ints(2, 3, 4)]),
    Case("Expand", [real(3, 4), ints(1, 1)]),
    Case("Expand", [real(), ints(2, 2)]),
    Case("Tile", [real(2, 3), ints(3, 1)]),
    Case("Tile", [real(2, 1, 3), ints(2, 4, 3)]),
    Case("Tile", [real(2, 3), ints(1, 1)]),
    Case("SpaceToDepth", [real(2, 3, 4, 6)], {"blocksize": 2}),
    Case("DepthToSpace", [real(2, 12, 2, 3)], {"blocksize": 2}),
    Case("DepthToSpace", [real(2, 18, 2, 3)], {"blocksize": 3, "mode": "CRD"}),
    Case("Trilu", [real(2, 4, 5)]),
    Case("Trilu", [real(4, 4), np.array(-1, np.int64)], {"upper": 0}),
    Case("ReverseSequence", [real(4, 3, 2), ints(1, 4, 2)]),
    Case("ReverseSequence", [real(3, 4, 2), ints(1, 4, 2)], {"batch_axis": 0, "time_axis": 1}),
]
JOINS = [
    Case("Concat", [real(2, 3), real(2, 1), real(2, 4)], {"axis": 1}),
    Case("Concat", [real(2, 3), real(2, 1), real(2, 4)], {"axis": -1}, fixed=(1,)),
    Case("Concat", [real(2, 3), real(5, 3)], {"axis": 0}, fixed=(0,)),
    Case("Concat", [real(2, 3)], {"axis": 0}),
    Case("Split", [real(2, 7, 3)], {"axis": 1, "num_outputs": 3}, outputs=3, checked=(0, 1, 2)),
    Case("Split", [real(2, 7, 3)], {"axis": 1, "num_outputs": 3}, outputs=3, checked=(2,)),
    Case("Split", [real(9, 3), ints(2, 3, 1, 3)], outputs=4, checked=(1, 3)),
    Case("Split", [real(9, 3), ints(2, 3, 1, 3)], outputs=4, checked=(0, 1)),
    Case("Split", [real(3, 6), ints(2, 4)], {"axis": -1}, outputs=2, checked=(0, 1)),
]
CUTS = [
    cut((5, 6), [1, 2], [4, 5]),
    cut((5, 6), [-3], [FAR], [1]),
    cut((5, 6), [1], [-1], [-1], [2]),
    cut((5, 7, 4), [0, 1], [5, 7], [0, 1], [2, 3]),
    cut((5, 7), [-1], [-FAR], [1], [-1]),
    cut((5, 7), [5], [-FAR], [1], [-2]),
    cut((5, 7), [4, 6], [0, 1], [0, 1], [-3, -2]),
    cut((6, 7), [3], [4], [0], [5]),
    cut((6, 7), [0], [6], [0], [2]),
    cut((6, 7), [0], [100], [0], [1]),
    cut((6, 7), [3], [3], [1]),
]
PADS = [
    Case("Pad", [real(3, 4), ints(1, 0, 2, 3)]),
    Case("Pad", [real(3, 4), ints(1, 2), None, ints(-1)]),
    Case("Pad", [real(3, 4), ints(0, 1, 2, 0), np.array(0.5)]),
    Case("Pad", [real(4, 5), ints(2, 3, 1, 2)], {"mode": "reflect"}),
    Case("Pad", [real(1, 2, 4, 5), ints(0, 0, 1, 0, 0, 0, 2, 0)], {"mode": "reflect"}),
    Case("Pad", [real(4, 5), ints(0, 3, 2, 1)], {"mode": "edge"}),
    Case("Pad", [real(4, 5), ints(3, 1, 2, 0)], {"mode": "wrap"}),
    Case("Pad", [real(4, 5), ints(4, 5, 0, 0)], {"mode": "wrap"}),
]
CASES = [*MOVES, *JOINS, *CUTS, *PADS]


def name_of(case: Case) -> str:
    return f"{case.op_type}-{'x'.join(map(str, np.shape(case.inputs[0])))}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    ("pads", "mode"), [([-1, 2, 1, -2], "constant"), ([-1, -1, -1, 0], "constant"), ([-1, 2, 1, -1], "reflect")]
)
def test_negative_pads_cut_off(pads: list[int], mode: str) -> None:
    """Padding is linear: its gradient is the transpose of what the runtime does to unit vectors."""
    case = Case("Pad", [real(4, 5), ints(*pads)], {"mode": mode})
    grad = differentiate(case, np.float32, RULES, runtime)[0]
    model, feeds = build(case, np.float32, RULES, gradients=False)
    seeds = np.eye(20, dtype=np.float32).reshape(20, 4, 5)
    moved = np.stack([runtime(model, {"x0": seed})[0] for seed in seeds])
    expected = (moved * cotangent(moved.shape[1:], np.float32)).sum((1, 2)).reshape(4, 5)
    np.testing.assert_allclose(grad, expected, rtol=1e-5, atol=1e-6)
    assert feeds["x0"].shape == grad.shape


@pytest.mark.parametrize(
    ("case", "function"),
    [
        (Case("Slice", [real(2, 9), ints(1), ints(8), ints(1), ints(3)]), lambda x: x[:, 1:8:3]),
        (Case("Concat", [real(2, 3), real(2, 4)], {"axis": 1}), lambda *parts: _torch().cat(parts, 1)),
        (
            Case("Split", [real(2, 7)], {"axis": 1, "num_outputs": 2}, outputs=2, checked=(1,)),
            lambda x: tuple(_torch().split(x, 4, 1)),
        ),
        (
            Case("Pad", [real(1, 2, 5, 6), ints(0, 0, 1, 2, 0, 0, 3, 4)], {"mode": "reflect"}),
            lambda x: _torch().nn.functional.pad(x, (2, 4, 1, 3), "reflect"),
        ),
        (Case("Tile", [real(2, 3), ints(2, 3)]), lambda x: x.repeat(2, 3)),
        (
            Case("DepthToSpace", [real(2, 12, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
            lambda x: _torch().nn.functional.pixel_shuffle(x, 2),
        ),
    ],
    ids=lambda part: part.op_type if isinstance(part, Case) else "",
)
def test_gradients_are_those_of_torch(case: Case, function: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    check_with_torch(case, function)


@pytest.mark.parametrize(
    "case", [cut((4,), [0], [2]), Case("Pad", [real(4), ints(1, 1)]), Case("Split", [real(4), ints(1, 3)], outputs=2)]
)
def test_computed_bounds_are_refused(case: Case) -> None:
    rule = RULES[case.op_type]

    def hidden(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
        inputs = (call.input(0), *(tape.op("Identity", call.input(place)) for place in range(1, len(call.inputs))))
        return rule.gradient(tape, replace(call, inputs=inputs), grads)

    with pytest.raises(ModelError, match=rf"op 'op' \({case.op_type}\): its (bounds|pads|sizes) are computed"):
        build(case, np.float32, {case.op_type: replace(rule, gradient=hidden)}, gradients=True)


@pytest.mark.parametrize(
    ("case", "written"),
    [
        (cut((5, 6), [1], [4]), ["Pad"]),
        (cut((5, 6), [1], [4], [0], [2]), ["Reshape", "Pad", "Reshape", "Slice", "Pad"]),
        (Case("Concat", [real(2, 3), real(2, 4)], {"axis": 1}), ["Split"]),
        (Case("Concat", [real(2, 3), real(2, 4)], {"axis": 1}, fixed=(0,)), ["Slice"]),
        (Case("Split", [real(6)], {"num_outputs": 3}, outputs=3, checked=(1,)), ["Pad"]),
        (Case("Pad", [real(3, 4), ints(1, 0, 2, 3)]), ["Slice"]),
        (Case("Pad", [real(9), ints(2, 1)], {"mode": "reflect"}), ["MatMul"]),
    ],
    ids=lambda part: name_of(part) if isinstance(part, Case) else "",
)
def test_cheap_forms_are_written(case: Case, written: list[str]) -> None:
    model, _ = build(case, np.float32, RULES, gradients=True)
    assert [node.op_type for node in model.graph.node if "/grad/" in node.name] == written


def _torch() -> Any:
    import torch

    return torch


@pytest.mark.parametrize(("start", "end"), [(-9, -9), (-9, -4), (9, -9), (9, -2), (-1, -9)])
def test_bounds_beyond_the_array_are_clamped_as_the_runtime_does(start: int, end: int) -> None:
    """Backwards, where numpy's clamping differs; each element's gradient says whether it was read."""
    case = cut((3,), [start], [end], [0], [-1])
    read = runtime(*build(case, np.float32, RULES, gradients=False))[0]
    grad = differentiate(case, np.float32, RULES, runtime)[0]
    values = np.asarray(case.inputs[0], np.float32)
    np.testing.assert_array_equal(grad != 0, np.isin(values, read))
