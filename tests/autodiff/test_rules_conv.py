"""Gradients of convolutions against finite differences and torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.autodiff.rules import RULES
from remat_cli.autodiff.rules_conv import (
    MOST_AXES,
    gathered_image,
    transposed_image,
    weight_by_channels_as_batch,
    weight_by_sample,
    weight_over_batch,
)
from remat_cli.autodiff.rules_conv_window import window_of
from remat_cli.autodiff.tape import Call, Grads, Rule, Tape
from tests.autodiff.rule_case import Case, assert_close, build, check, check_with_torch, differentiate, runtime
from tests.seeds import few

RNG = np.random.default_rng(0)


def conv(image: tuple[int, ...], weight: tuple[int, ...], bias: bool = True, **attributes: Any) -> Case:
    arrays = [RNG.standard_normal(image), RNG.standard_normal(weight)]
    return Case("Conv", [*arrays, RNG.standard_normal(weight[0])] if bias else arrays, attributes)


def transposed(image: tuple[int, ...], weight: tuple[int, ...], bias: bool = True, **attributes: Any) -> Case:
    arrays = [RNG.standard_normal(image), RNG.standard_normal(weight)]
    results = weight[1] * attributes.get("group", 1)
    return Case("ConvTranspose", [*arrays, RNG.standard_normal(results)] if bias else arrays, attributes)


CONVOLUTIONS = {
    "3x3": conv((2, 3, 7, 6), (4, 3, 3, 3), pads=[1, 1, 1, 1]),
    "large images": conv((2, 2, 11, 13), (3, 2, 3, 3), pads=[1, 1, 1, 1]),
    "one image": conv((1, 3, 6, 6), (4, 3, 3, 3)),
    "no bias": conv((2, 3, 5, 5), (2, 3, 2, 2), bias=False),
    "pads of each side": conv((2, 2, 8, 7), (3, 2, 3, 4), pads=[0, 2, 1, 3]),
    "pads wider than the kernel": conv((2, 2, 4, 4), (2, 2, 2, 2), pads=[3, 2, 2, 4]),
    "1x1": conv((2, 3, 4, 5), (5, 3, 1, 1)),
    "1x1 many channels": conv((2, 6, 2, 2), (7, 6, 1, 1)),
    "1x1 stride": conv((2, 3, 8, 7), (4, 3, 1, 1), strides=[2, 3]),
    "1x1 stride, rest unread": conv((1, 1, 9, 10), (2, 1, 1, 1), strides=[4, 4]),
    "1x1 pads": conv((2, 3, 4, 5), (2, 3, 1, 1), pads=[1, 0, 1, 2]),
    "stride 2, even": conv((1, 3, 8, 8), (4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    "stride 2, batch": conv((5, 3, 8, 8), (4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    "stride 2, rest unread": conv((1, 2, 8, 10), (3, 2, 3, 3), strides=[2, 2]),
    "stride 2, odd pads": conv((1, 2, 9, 8), (3, 2, 4, 5), strides=[2, 2], pads=[1, 2, 0, 1]),
    "stride 3, kernel 2": conv((1, 2, 10, 9), (3, 2, 2, 2), strides=[3, 3], pads=[1, 0, 0, 1]),
    "stride 2 on one axis": conv((1, 2, 7, 8), (3, 2, 3, 5), strides=[1, 2], pads=[1, 2, 1, 2]),
    "7x7 stride 2": conv((1, 2, 12, 12), (3, 2, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3]),
    "7x7 stride 3": conv((1, 2, 13, 12), (3, 2, 7, 7), strides=[3, 3], pads=[3, 2, 1, 3]),
    "dilation": conv((2, 2, 9, 9), (3, 2, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3]),
    "dilation and stride": conv((2, 2, 11, 9), (3, 2, 3, 2), dilations=[2, 3], strides=[2, 2], pads=[1, 0, 2, 1]),
    "dilation or stride": conv((1, 2, 9, 9), (3, 2, 3, 5), dilations=[2, 1], strides=[1, 2], pads=[2, 2, 2, 2]),
    "groups": conv((2, 6, 6, 6), (4, 3, 3, 3), group=2, pads=[1, 1, 1, 1]),
    "groups, small images": conv((3, 6, 3, 3), (8, 3, 3, 3), group=2, pads=[1, 1, 1, 1]),
    "groups, 1x1 stride": conv((2, 6, 5, 5), (9, 2, 1, 1), group=3, strides=[2, 2]),
    "groups, stride, one image": conv((1, 4, 8, 8), (6, 2, 3, 3), group=2, strides=[2, 2], pads=[1, 1, 1, 1]),
    "depthwise": conv((2, 4, 8, 8), (4, 1, 3, 3), group=4, pads=[1, 1, 1, 1]),
    "depthwise, small images": conv((4, 5, 2, 2), (5, 1, 3, 3), group=5, pads=[1, 1, 1, 1]),
    "depthwise, stride": conv((1, 4, 8, 8), (8, 1, 3, 3), group=4, strides=[2, 2], pads=[1, 1, 1, 1]),
    "7x1 stride 3": conv((1, 2, 13, 7), (3, 2, 7, 1), strides=[3, 3], pads=[3, 0, 3, 0]),
    "1-D": conv((2, 3, 12), (4, 3, 5), pads=[2, 2]),
    "1-D small": conv((3, 4, 4), (5, 4, 3), strides=[2], pads=[1, 1]),
    "1-D stride": conv((1, 3, 13), (4, 3, 4), strides=[3], pads=[1, 2]),
    "3-D": conv((2, 2, 5, 4, 6), (3, 2, 3, 3, 3), pads=[1, 1, 1, 1, 1, 1]),
    "3-D stride, groups": conv((1, 4, 6, 6, 5), (4, 2, 3, 2, 3), group=2, strides=[2, 2, 2], pads=[1, 0, 1, 1, 0, 1]),
    "3-D depthwise": conv((1, 2, 5, 5, 5), (2, 1, 2, 2, 2), group=2),
    "3-D 1x1": conv((2, 3, 4, 4, 4), (2, 3, 1, 1, 1), strides=[2, 1, 2]),
    "same upper": conv((1, 2, 7, 8), (3, 2, 3, 4), auto_pad="SAME_UPPER", strides=[2, 3]),
    "same lower": conv((1, 2, 7, 8), (3, 2, 4, 4), auto_pad="SAME_LOWER", strides=[2, 1]),
    "valid": conv((1, 2, 7, 8), (3, 2, 3, 3), auto_pad="VALID", strides=[2, 1]),
}
TRANSPOSED = {
    "3x3": transposed((2, 3, 4, 5), (3, 2, 3, 3), pads=[1, 1, 1, 1]),
    "2x2 stride 2": transposed((2, 3, 4, 5), (3, 2, 2, 2), strides=[2, 2]),
    "4x4 stride 2": transposed((1, 3, 4, 5), (3, 2, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1], bias=False),
    "output padding": transposed((1, 3, 4, 5), (3, 2, 3, 3), strides=[2, 3], pads=[1, 0, 1, 0], output_padding=[1, 2]),
    "kernel below stride": transposed((1, 2, 4, 3), (2, 2, 2, 1), strides=[3, 2], output_padding=[1, 1]),
    "dilation": transposed((2, 2, 4, 4), (2, 3, 3, 2), dilations=[2, 2], strides=[1, 2], pads=[1, 0, 2, 1]),
    "groups": transposed((2, 4, 4, 4), (4, 3, 3, 3), group=2, strides=[2, 2], pads=[1, 1, 1, 1]),
    "depthwise": transposed((2, 4, 4, 4), (4, 1, 4, 4), group=4, strides=[2, 2], pads=[1, 1, 1, 1]),
    "pads of each side": transposed((2, 2, 5, 4), (2, 3, 3, 4), strides=[2, 2], pads=[0, 1, 2, 1]),
    "1-D": transposed((2, 3, 6), (3, 2, 4), strides=[2], pads=[1, 1]),
    "3-D": transposed((1, 2, 3, 3, 2), (2, 2, 2, 3, 2), strides=[2, 1, 2]),
    "output shape": transposed((1, 2, 4, 5), (2, 3, 3, 3), strides=[2, 2], output_shape=[8, 9]),
    "output shape, upper": transposed(
        (1, 2, 4, 5), (2, 3, 3, 3), strides=[2, 2], output_shape=[8, 10], auto_pad="SAME_UPPER"
    ),
    "same lower": transposed((1, 2, 4, 5), (2, 3, 3, 4), strides=[2, 3], auto_pad="SAME_LOWER"),
}


CASES = [*CONVOLUTIONS.values(), *TRANSPOSED.values()]


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_conv(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", TRANSPOSED.values(), ids=TRANSPOSED.keys())
def test_conv_transpose(case: Case) -> None:
    check(case)


def rule_of(image: Any, weight: Any) -> Mapping[str, Rule]:
    """A convolution's rule that writes given forms."""

    def gradient(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
        window = window_of(call, call.shape(1)[2:], call.input(0), grads[0])
        group = call.integer("group", 1)
        return {
            1: weight(tape, window, call.input(0), grads[0], group),
            0: image(tape, window, grads[0], call.input(1), group),
        }

    return {"Conv": Rule(gradient)}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_forms_agree(name: str) -> None:
    case = replace(CONVOLUTIONS[name], fixed=[2])
    chosen = differentiate(case, np.float32, RULES, runtime)
    strides, dilations = (case.attributes.get(what, [1]) for what in ("strides", "dilations"))
    image_forms = [transposed_image] if max(strides) > 1 and max(dilations) > 1 else [transposed_image, gathered_image]
    planes = case.arrays[1].shape[1] > 1
    weight_forms = [weight_by_channels_as_batch]
    if case.arrays[0].ndim - 2 + planes <= MOST_AXES:
        weight_forms += [weight_by_sample, weight_over_batch]
    for image, weight in zip_longest(image_forms, weight_forms, fillvalue=None):
        rules = rule_of(image or image_forms[0], weight or weight_forms[0])
        found = differentiate(case, np.float32, rules, runtime)
        for place, grad in found.items():
            assert_close(grad, chosen[place], 1e-4, f"input {place}, {image and image.__name__}, {weight}")


@pytest.mark.parametrize("seed", few(range(25), 4))
def test_random_conv_against_torch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    rank, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    kernel, strides, dilations, lows, highs = _attributes(rng, rank)
    spans = (kernel - 1) * dilations + 1
    sizes = np.maximum(rng.integers(4, 9, rank), spans - lows - highs)
    ours, theirs = (int(count) for count in rng.integers(1, 4, 2))
    arrays = [
        rng.standard_normal((int(rng.integers(1, 4)), group * ours, *sizes)),
        rng.standard_normal((group * theirs, ours, *kernel)),
        rng.standard_normal(group * theirs),
    ]
    given = {"strides": strides.tolist(), "dilations": dilations.tolist(), "group": group}
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
    sides = [int(side) for axis in reversed(range(rank)) for side in (lows[axis], highs[axis])]

    def convolve(x: Any, w: Any, b: Any) -> Any:
        return function(torch.nn.functional.pad(x, sides), w, b, given["strides"], 0, given["dilations"], group)

    check_with_torch(Case("Conv", arrays, {**given, "pads": [*lows.tolist(), *highs.tolist()]}), convolve)


@pytest.mark.parametrize("seed", few(range(15), 3))
def test_random_conv_transpose_against_torch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    rank, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    kernel, strides, dilations, pads, _ = _attributes(rng, rank)
    pads = np.minimum(pads, (kernel - 1) * dilations // 2)
    more = np.minimum(rng.integers(0, 3, rank), strides - 1)
    ours, theirs = (int(count) for count in rng.integers(1, 4, 2))
    arrays = [
        rng.standard_normal((int(rng.integers(1, 4)), group * ours, *rng.integers(2, 6, rank))),
        rng.standard_normal((group * ours, theirs, *kernel)),
        rng.standard_normal(group * theirs),
    ]
    given = {"strides": strides.tolist(), "dilations": dilations.tolist(), "group": group}
    functional = torch.nn.functional
    function = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]

    def convolve(x: Any, w: Any, b: Any) -> Any:
        return function(x, w, b, given["strides"], pads.tolist(), more.tolist(), group, given["dilations"])

    both = [*pads.tolist(), *pads.tolist()]
    check_with_torch(Case("ConvTranspose", arrays, {**given, "pads": both, "output_padding": more.tolist()}), convolve)


def _attributes(rng: np.random.Generator, rank: int) -> list[np.ndarray]:
    """Kernel, strides, dilations and padding on both sides."""
    return [rng.integers(low, high, rank) for low, high in ((1, 4), (1, 4), (1, 3), (0, 3), (0, 3))]


def backward_ops(image: tuple[int, ...], weight: tuple[int, ...], **attributes: Any) -> list[str]:
    """Kinds of ops of the gradients of a convolution."""
    model, _ = build(conv(image, weight, bias=False, **attributes), np.float32, RULES, gradients=True)
    return [node.op_type for node in model.graph.node[1:]]


def test_a_workspace_larger_than_the_copies_it_spares_is_avoided() -> None:
    large = backward_ops((8, 4, 16, 16), (4, 4, 3, 3), pads=[1, 1, 1, 1])
    assert "ConvTranspose" not in large
    one_image = backward_ops((1, 4, 16, 16), (8, 4, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    assert "ConvTranspose" not in one_image


def test_strided_1x1_reads_what_it_uses() -> None:
    model, _ = build(conv((4, 8, 16, 16), (8, 8, 1, 1), bias=False, strides=[2, 2]), np.float32, RULES, gradients=True)
    shapes = [[dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in model.graph.value_info]
    assert shapes.count([4, 8, 8, 8]) >= 1
    assert all(int(np.prod(shape)) <= 4 * 8 * 8 * 8 for shape in shapes if shape != [4, 8, 16, 16])


def test_a_small_workspace_is_preferred_to_copies_of_weights_or_images() -> None:
    small = backward_ops((2, 32, 2, 2), (32, 32, 3, 3), pads=[1, 1, 1, 1])
    assert "ConvTranspose" in small
    batch = backward_ops((8, 4, 16, 16), (8, 4, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    assert "ConvTranspose" in batch


def test_gradients_of_a_layer_copy_no_image() -> None:
    ops = backward_ops((8, 4, 16, 16), (4, 4, 3, 3), pads=[1, 1, 1, 1])
    # The one transposition and the one slice turn the weights.
    assert sorted(set(ops)) == ["Conv", "Identity", "ReduceSum", "Reshape", "Slice", "Transpose"]
    assert ops.count("Transpose") == ops.count("Slice") == 1
