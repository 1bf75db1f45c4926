"""Gradients of activation functions, softmax and its logarithm among them."""

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from remat_cli.autodiff.pieces import Slope, one_minus, shifted, smallest, step, sum_to, times
from remat_cli.autodiff.tape import Call, Found, Gradient, Grads, Rule, Rules, Tape, TrainingForm, WrittenForm

SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875
QUICK_GELU_ALPHA = 1.7020000219345093

SlopeAt = Callable[[Tape, ir.Value, Call], ir.Value]


def leaky_relu(tape: Tape, call: Call) -> ir.Value:
    """1 or alpha; told from the result where that keeps the sign of the input."""
    alpha = call.real("alpha", 0.01)
    passed = step(tape, call.output() if alpha >= 0 else call.input(0))
    if 0 <= alpha <= 1:
        return tape.op("Clip", passed, tape.scalar(alpha, passed))
    return shifted(tape, passed, 1 - alpha, alpha)


def prelu(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient where the input is positive, times the slope elsewhere; the slope gets grad * min(input, 0)."""
    value, slope, found = call.input(0), call.input(1), {}
    if 1 in call.wanted:
        negative = tape.op("Clip", value, None, tape.scalar(0, value))
        found[1] = sum_to(tape, tape.op("Mul", grads[0], negative), call.shape(1))
    if 0 in call.wanted:
        extra = tape.op("Mul", step(tape, value), one_minus(tape, slope))
        found[0] = tape.op("Mul", grads[0], tape.op("Add", extra, slope))
    return found


def erf(tape: Tape, call: Call) -> ir.Value:
    """Slope 2 / sqrt(pi) * exp(-x²), the factor in the exponent: one pass less."""
    square = tape.op("Mul", call.input(0), call.input(0))
    return tape.op("Exp", tape.op("Sub", tape.scalar(math.log(2 / math.sqrt(math.pi)), square), square))


def _exponential(tape: Tape, result: ir.Value, rate: float, offset: float, above: float) -> ir.Value:
    """`above` where the result is positive, elsewhere rate * result + offset: exponential units know their slope."""
    below = tape.op("Clip", result, None, tape.scalar(0, result))
    slope = shifted(tape, below, rate, offset)
    if above == offset:
        return slope
    return tape.op("Add", slope, shifted(tape, step(tape, result), above - offset, 0))


def selu(tape: Tape, call: Call) -> ir.Value:
    """Slope gamma where the result is positive, result + gamma * alpha elsewhere."""
    gamma = call.real("gamma", SELU_GAMMA)
    return _exponential(tape, call.output(), 1, gamma * call.real("alpha", SELU_ALPHA), gamma)


def softplus(tape: Tape, call: Call) -> ir.Value:
    """Slope sigmoid(x), by the input: 1 - exp(-y) would lose all digits where y is small."""
    return tape.op("Sigmoid", call.input(0))


def softsign(tape: Tape, call: Call) -> ir.Value:
    """Slope (1 - |y|)²."""
    rest = one_minus(tape, tape.op("Abs", call.output()))
    return tape.op("Mul", rest, rest)


def _between_0_and_1(tape: Tape, value: ir.Value) -> ir.Value:
    """1 strictly between 0 and 1, and 0 at both."""
    return step(tape, tape.op("Mul", value, one_minus(tape, value)))


def hard_swish(tape: Tape, call: Call) -> ir.Value:
    """Slope h(x) + x h'(x) with the hard sigmoid h."""
    value = call.input(0)
    gate = tape.op("HardSigmoid", value, alpha=1 / 6, beta=0.5)
    moved = tape.op("Mul", _between_0_and_1(tape, gate), value)
    return tape.op("Add", shifted(tape, moved, 1 / 6, 0), gate)


def mish(tape: Tape, call: Call) -> ir.Value:
    """Slope t + x (1 - t²) sigmoid(x) with t = tanh(softplus(x)) = n / (n + 2), n = w (w + 2), w = exp(x).

    Softplus alone takes longer on the CPU provider than all of this. Where w² would overflow, t is 1 long before.
    """
    value = call.input(0)
    largest = tape.scalar(-math.log(smallest(value)) / 2, value)
    growth = tape.op("Exp", tape.op("Clip", value, None, largest))
    ratio = tape.op("Mul", growth, shifted(tape, growth, 1, 2))
    gate = tape.op("Div", ratio, shifted(tape, ratio, 1, 2))
    bend = tape.op("Mul", one_minus(tape, tape.op("Mul", gate, gate)), tape.op("Sigmoid", value))
    return tape.op("Add", tape.op("Mul", bend, value), gate)


def shrink(tape: Tape, call: Call) -> ir.Value:
    """Slope 1 where something came through, else 0."""
    return step(tape, tape.op("Abs", call.output()))


def thresholded_relu(tape: Tape, call: Call) -> ir.Value:
    """Slope 1 where something came through: where the result is positive, if alpha is not negative."""
    return step(tape, call.output()) if call.real("alpha", 1) >= 0 else shrink(tape, call)


def gelu_slope(tape: Tape, value: ir.Value, call: Call) -> ir.Value:
    """Slope of x (1 + erf(s)) / 2 with s = x / sqrt(2): (1 + erf(s)) / 2 + x exp(-s²) / sqrt(2 pi)."""
    scaled = shifted(tape, value, math.sqrt(0.5), 0)
    square = tape.op("Mul", scaled, scaled)
    bell = tape.op("Exp", tape.op("Sub", tape.scalar(math.log(math.sqrt(2 / math.pi)), value), square))
    bend = tape.op("Mul", bell, value)
    return shifted(tape, tape.op("Add", tape.op("Erf", scaled), bend), 0.5, 0.5)


def gelu_tanh_slope(tape: Tape, value: ir.Value, call: Call) -> ir.Value:
    """Slope of x sigmoid(u) with u = 2 k (x + a x³), whose slope times x is 3 u - 4 k x."""
    rate = 2 * math.sqrt(2 / math.pi)
    inner = tape.op("Mul", shifted(tape, tape.op("Mul", value, value), 0.044715 * rate, rate), value)
    moved = tape.op("Sub", shifted(tape, inner, 3, 0), shifted(tape, value, 2 * rate, 0))
    return _gated_slope(tape, tape.op("Sigmoid", inner), moved)


def quick_gelu_slope(tape: Tape, value: ir.Value, call: Call) -> ir.Value:
    """Slope of x sigmoid(alpha x)."""
    scaled = shifted(tape, value, call.real("alpha", QUICK_GELU_ALPHA), 0)
    return _gated_slope(tape, tape.op("Sigmoid", scaled), scaled)


def _gated_slope(tape: Tape, gate: ir.Value, moved: ir.Value) -> ir.Value:
    """Slope of x sigmoid(u(x)): gate * (1 + (1 - gate) * moved), with gate = sigmoid(u), moved = x u'(x)."""
    bend = tape.op("Mul", one_minus(tape, gate), moved)
    return tape.op("Mul", shifted(tape, bend, 1, 1), gate)


def gelu(tape: Tape, call: Call) -> ir.Value:
    """The slope of the form that the op has, with erf or with tanh."""
    slope = gelu_tanh_slope if call.text("approximate", "none") == "tanh" else gelu_slope
    return slope(tape, call.input(0), call)


def _of_sum(slope: SlopeAt) -> Gradient:
    """Gradients of an activation of input plus bias, which the training form has saved."""

    def gradient(tape: Tape, call: Call, grads: Grads) -> Found:
        grad = tape.op("Mul", grads[0], slope(tape, call.saved[0], call))
        return {position: sum_to(tape, grad, call.shape(position)) for position in call.wanted}

    return gradient


def _gelu_form(approximate: str) -> TrainingForm:
    """Contrib Gelu with or without a bias, in standard ops."""

    def form(tape: Tape, call: Call) -> WrittenForm:
        inner = tape.op("Add", call.input(0), call.input(1)) if call.has(1) else call.input(0)
        return WrittenForm((tape.op("Gelu", inner, approximate=approximate),), (inner,))

    return form


def quick_gelu_form(tape: Tape, call: Call) -> WrittenForm:
    """Contrib QuickGelu in standard ops: x sigmoid(alpha x)."""
    value = call.input(0)
    gate = tape.op("Sigmoid", shifted(tape, value, call.real("alpha", QUICK_GELU_ALPHA), 0))
    return WrittenForm((tape.op("Mul", value, gate),), (value,))


SLOPES: Mapping[str, Slope] = {
    "Celu": lambda tape, call: _exponential(tape, call.output(), 1 / call.real("alpha", 1), 1, 1),
    "Elu": lambda tape, call: _exponential(tape, call.output(), 1, call.real("alpha", 1), 1),
    "Erf": erf,
    "Gelu": gelu,
    "HardSigmoid": lambda tape, call: shifted(tape, _between_0_and_1(tape, call.output()), call.real("alpha", 0.2), 0),
    "HardSwish": hard_swish,
    "LeakyRelu": leaky_relu,
    "Mish": mish,
    "Relu": lambda tape, call: step(tape, call.output()),
    "Selu": selu,
    "Shrink": shrink,
    "Sigmoid": lambda tape, call: tape.op("Mul", call.output(), one_minus(tape, call.output())),
    "Softplus": softplus,
    "Softsign": softsign,
    "Tanh": lambda tape, call: one_minus(tape, tape.op("Mul", call.output(), call.output())),
    "ThresholdedRelu": thresholded_relu,
}


def softmax(tape: Tape, call: Call, grads: Grads) -> Found:
    """Result * (grad - sum(grad * result))."""
    y = call.output()
    total = tape.op("ReduceSum", tape.op("Mul", grads[0], y), tape.ints(call.integer("axis", -1)))
    return {0: tape.op("Mul", y, tape.op("Sub", grads[0], total))}


def log_softmax(tape: Tape, call: Call, grads: Grads) -> Found:
    """Grad - exp(result) * sum(grad)."""
    total = tape.op("ReduceSum", grads[0], tape.ints(call.integer("axis", -1)))
    return {0: tape.op("Sub", grads[0], tape.op("Mul", tape.op("Exp", call.output()), total))}


RULES: Rules = {
    **{op_type: Rule(times(slope)) for op_type, slope in SLOPES.items()},
    "PRelu": Rule(prelu),
    "com.microsoft:BiasGelu": Rule(_of_sum(gelu_slope), _gelu_form("none")),
    "com.microsoft:FastGelu": Rule(_of_sum(gelu_tanh_slope), _gelu_form("tanh")),
    "com.microsoft:Gelu": Rule(_of_sum(gelu_slope), _gelu_form("none")),
    "com.microsoft:QuickGelu": Rule(_of_sum(quick_gelu_slope), quick_gelu_form),
    "Softmax": Rule(softmax),
    "LogSoftmax": Rule(log_softmax),
}
