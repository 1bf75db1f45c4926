"""Gradients of convolutions: weights and bias first, the image last."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Found, Grads, Rule, Rules, only
from remat_cli.autodiff.rules_conv_input import image_gradient
from remat_cli.autodiff.rules_conv_weight import weight_gradient
from remat_cli.autodiff.rules_conv_window import LEADING, Window, fit, window_of
from remat_cli.autodiff.tape import Tape, shape_of

IMAGE, WEIGHT, BIAS = 0, 1, 2


def _conv(tape: Tape, call: Call, grads: Grads) -> Found:
    """Both gradients of a bilinear op are convolutions again."""
    return _bilinear(tape, call, grads, (call.input(IMAGE), only(grads)), image_gradient)


def _conv_transpose(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient of a convolution's image, so image and result change places."""
    return _bilinear(tape, call, grads, (only(grads), call.input(IMAGE)), _convolved)


def _bilinear(
    tape: Tape, call: Call, grads: Grads, ends: tuple[ir.Value, ir.Value], image_form: Callable[..., ir.Value]
) -> Found:
    """Gradients where a convolution leads from the first of `ends` to the second; `image_form` writes the image's."""
    grad = only(grads)
    window = window_of(call, call.shape(WEIGHT)[LEADING:], *ends)
    group = call.integer("group", 1)
    found = {}
    if WEIGHT in call.wanted:
        found[WEIGHT] = weight_gradient(tape, window, *ends, group)
    if BIAS in call.wanted:
        found[BIAS] = _bias_gradient(tape, grad)
    if IMAGE in call.wanted:
        found[IMAGE] = image_form(tape, window, grad, call.input(WEIGHT), group)
    return found


def _convolved(tape: Tape, window: Window, image: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    """A convolution with any padding, negative too."""
    image, (lows, highs) = fit(tape, image, window.lows, window.highs)
    return tape.op(
        "Conv",
        image,
        weight,
        group=group,
        strides=window.strides,
        dilations=window.dilations,
        pads=[*lows, *highs],
    )


def _bias_gradient(tape: Tape, grad: ir.Value) -> ir.Value:
    return tape.op("ReduceSum", grad, tape.ints(0, *range(LEADING, len(shape_of(grad)))), keepdims=0)


RULES: Rules = {
    "Conv": Rule(_conv),
    "ConvTranspose": Rule(_conv_transpose),
}
