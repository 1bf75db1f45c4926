"""Gradients of ops that draw random numbers, each with a seed of its own so that it may be repeated."""

import numpy as np

from remat_cli.autodiff.pieces import reshape
from remat_cli.autodiff.tape import FIRST, Array, Call, Found, Grads, Rule, Rules, Tape, WrittenForm, element_type, only
from remat_cli.base.errors import ModelError

DEFAULT_RATIO = 0.5
NOTHING: frozenset[int] = frozenset()


def training_dropout(tape: Tape, call: Call) -> WrittenForm:
    """Dropout that drops, with a seed, and with the mask that its gradient needs."""
    ratio = call.input(1) if call.has(1) else tape.scalar(DEFAULT_RATIO, call.input(0))
    if _ratio(call) == 0:
        return WrittenForm(tape.ops("Dropout", (call.input(0), ratio), 2))
    inputs = (call.input(0), ratio, tape.constant(np.array(True)))
    result, mask = tape.ops("Dropout", inputs, 2, {"seed": call.integer("seed", call.seed)})
    return WrittenForm((result, mask), saved=(mask,))


def dropout(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient of what was kept, scaled as the kept elements were; all of it where nothing is dropped."""
    grad = only(grads)
    if not call.saved:
        return {0: grad}
    kept = tape.op("Mul", tape.op("Cast", call.saved[0], to=element_type(grad)), grad)
    ratio = _ratio(call)
    if ratio is None:
        given = tape.op("Cast", reshape(tape, call.input(1), ()), to=element_type(grad))
        scale = tape.op("Reciprocal", tape.op("Sub", tape.scalar(1, grad), given))
    else:
        scale = tape.scalar(1 / (1 - ratio), grad)
    return {0: tape.op("Mul", kept, scale)}


def _ratio(call: Call) -> float | None:
    """Share of elements that is dropped; None where it is computed."""
    given: Array | None = call.constant(1)
    if given is None:
        return None if call.has(1) else DEFAULT_RATIO
    ratio = float(given.reshape(()))
    if not 0 <= ratio < 1:
        raise ModelError(f"op '{call.name}' (Dropout): its ratio is {ratio}, and must be at least 0 and below 1")
    return ratio


def seeded(tape: Tape, call: Call) -> WrittenForm:
    """The op with a seed: what is drawn may then be drawn again."""
    attributes = {"seed": float(call.seed), **call.attributes}
    return WrittenForm(tape.ops(call.op_type, call.inputs, 1, attributes))


RULES: Rules = {
    "Dropout": Rule(dropout, form=training_dropout, needs=FIRST),
    **{
        name: Rule(lambda tape, call, grads: {}, seeded, NOTHING)  # what is drawn does not follow small changes
        for name in ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
    },
}
