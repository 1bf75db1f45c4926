"""Gradients of pooling against finite differences and torch."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from remat_cli.autodiff.rules import RULES
from remat_cli.base.errors import ModelError
from tests.autodiff.rule_case import (
    Case,
    assert_close,
    build,
    check,
    check_with_torch,
    cotangent,
    differentiate,
    reference,
    runtime,
)

RNG = np.random.default_rng(0)


def pool(op_type: str, image: tuple[int, ...], *kernel: int, **attributes: Any) -> Case:
    """A pooling of an image whose elements differ by more than the step of the differences."""
    values = RNG.permutation(int(np.prod(image))).reshape(image) / 10 - 3.03
    return Case(op_type, [values], {"kernel_shape": list(kernel), **attributes} if kernel else attributes)


WINDOWS = {
    "2x2 stride 2": ((2, 3, 6, 8), (2, 2), {"strides": [2, 2]}),
    "2x2 stride 2, rest unread": ((2, 3, 7, 9), (2, 2), {"strides": [2, 2]}),
    "2x3 stride 3": ((2, 3, 9, 8), (2, 3), {"strides": [3, 3]}),
    "3x3 stride 2": ((2, 3, 9, 8), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "3x3 stride 1": ((2, 3, 5, 6), (3, 3), {"pads": [1, 1, 1, 1]}),
    "2x4 stride 1": ((2, 3, 5, 6), (2, 4), {"pads": [0, 1, 1, 2]}),
    "3x3 stride 2, ceil": ((2, 2, 8, 7), (3, 3), {"strides": [2, 2], "ceil_mode": 1}),
    "3x3 stride 2, ceil, pads": ((2, 2, 8, 7), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    "2x2 stride 2, ceil": ((2, 2, 5, 7), (2, 2), {"strides": [2, 2], "ceil_mode": 1}),
    "2x2 stride 2, pads": ((2, 2, 6, 7), (2, 2), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "pads of each side": ((2, 2, 6, 7), (3, 3), {"strides": [1, 2], "pads": [0, 2, 1, 0]}),
    "dilation": ((2, 2, 8, 9), (2, 3), {"dilations": [3, 2], "pads": [1, 1, 0, 1]}),
    "dilation and stride": ((2, 2, 8, 9), (2, 3), {"dilations": [3, 2], "strides": [2, 2]}),
    "same upper": ((2, 2, 7, 8), (3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "same lower": ((2, 2, 7, 8), (3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    "1-D": ((2, 3, 9), (3,), {"strides": [2], "pads": [1, 0]}),
    "3-D": ((1, 2, 5, 4, 6), (2, 3, 2), {"strides": [2, 1, 2], "pads": [0, 1, 1, 0, 1, 1]}),
    "3-D stride 2": ((1, 2, 4, 4, 5), (2, 2, 2), {"strides": [2, 2, 2]}),
}
CASES = {
    **{f"max {name}": pool("MaxPool", image, *kernel, **given) for name, (image, kernel, given) in WINDOWS.items()},
    **{
        f"mean {name}": pool("AveragePool", image, *kernel, **given) for name, (image, kernel, given) in WINDOWS.items()
    },
    **{
        f"mean {name} with pads": pool("AveragePool", image, *kernel, count_include_pad=1, **given)
        for name, (image, kernel, given) in WINDOWS.items()
        if "pads" in given or "auto_pad" in given or "ceil_mode" in given
    },
    "norm": pool("LpPool", (2, 3, 7, 6), 3, 2, strides=[2, 2], pads=[1, 0, 1, 0]),
    "norm 1": pool("LpPool", (2, 3, 6, 6), 2, 2, strides=[2, 2], p=1),
    "norm 3": pool("LpPool", (2, 3, 6, 6), 3, 3, p=3),
    "global mean": pool("GlobalAveragePool", (2, 3, 4, 5)),
    "global mean 1-D": pool("GlobalAveragePool", (2, 3, 7)),
    "global mean 3-D": pool("GlobalAveragePool", (2, 3, 2, 3, 4)),
    "global max": pool("GlobalMaxPool", (2, 3, 4, 5)),
    "global max 1-D": pool("GlobalMaxPool", (2, 3, 7)),
    "global max 3-D": pool("GlobalMaxPool", (2, 3, 2, 3, 4)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradients(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_results_are_the_models(case: Case) -> None:
    plain = runtime(*build(case, np.float32, {}, gradients=False))[0]
    assert np.array_equal(runtime(*build(case, np.float32, RULES, gradients=False))[0], plain)
    # What finite differences are taken of is what the runtime computes.
    assert_close(reference(*build(case, np.float32, RULES, gradients=False))[0], plain, 1e-6, "result")


def test_only_the_first_of_equal_maxima_gets_the_gradient() -> None:
    for kernel, stride in ((2, 2), (3, 1)):
        case = Case("MaxPool", [np.ones((1, 1, 4, 4))], {"kernel_shape": [kernel] * 2, "strides": [stride] * 2})
        (grad,) = differentiate(case, np.float32, RULES, runtime).values()
        flowing = cotangent((1, 1, 2, 2), np.float32)
        assert np.array_equal(grad[0, 0, :4:stride, :4:stride][:2, :2], flowing[0, 0])
        assert np.count_nonzero(grad) == 4


def test_maxima_without_a_gradient_are_left_as_they_are() -> None:
    case = replace(CASES["max 3x3 stride 2"], fixed=[0])
    model, _ = build(case, np.float32, RULES, gradients=False)
    assert [list(node.output) for node in model.graph.node] == [["y0"]]


def test_indices_that_count_by_columns_are_refused() -> None:
    with pytest.raises(ModelError, match="storage_order"):
        build(pool("MaxPool", (1, 1, 4, 4), 2, 2, storage_order=1), np.float32, RULES, gradients=True)


def test_gradient_of_maxima_holds_no_constant_of_its_size() -> None:
    model, feeds = build(CASES["max 2x2 stride 2"], np.float32, RULES, gradients=True)
    flowing = next(tensor for tensor in model.graph.initializer if list(tensor.dims) == [2, 3, 3, 4])
    model.graph.input.append(onnx.helper.make_tensor_value_info(flowing.name, flowing.data_type, flowing.dims))
    model.graph.initializer.remove(flowing)
    options = ort.SessionOptions()
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        optimised = onnx.load(options.optimized_model_filepath)
    assert max(int(np.prod(tensor.dims)) for tensor in optimised.graph.initializer) < feeds["x0"].size


def torch_has(name: str) -> bool:
    """Torch pads both sides alike, by half a window at most."""
    _, kernel, given = WINDOWS[name]
    pads = given.get("pads", [0] * 2 * len(kernel))
    half = all(2 * pad <= taps for pad, taps in zip(pads, kernel, strict=False))
    return "auto_pad" not in given and half and pads[: len(kernel)] == pads[len(kernel) :]


@pytest.mark.parametrize("name", list(filter(torch_has, WINDOWS)))
def test_maxima_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    image, kernel, given = WINDOWS[name]
    functional, one = torch.nn.functional, [1] * len(kernel)
    most = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(kernel) - 1]
    pads = given.get("pads", [0] * len(kernel))[: len(kernel)]
    numbers = given.get("strides", one), pads, given.get("dilations", one), bool(given.get("ceil_mode"))
    check_with_torch(pool("MaxPool", image, *kernel, **given), lambda x: most(x, kernel, *numbers))


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("name", [name for name in filter(torch_has, WINDOWS) if "dilations" not in WINDOWS[name][2]])
def test_means_against_torch(name: str, counted: int) -> None:
    torch = pytest.importorskip("torch")
    image, kernel, given = WINDOWS[name]
    functional = torch.nn.functional
    mean = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[len(kernel) - 1]
    pads = given.get("pads", [0] * len(kernel))[: len(kernel)]
    numbers = given.get("strides", [1] * len(kernel)), pads, bool(given.get("ceil_mode")), bool(counted)
    case = pool("AveragePool", image, *kernel, **given, count_include_pad=counted)
    check_with_torch(case, lambda x: mean(x, kernel, *numbers))
