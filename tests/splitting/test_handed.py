"""Recurrent ops run some steps at a time and hand their states on, with the bits of the whole, whatever their way."""

from __future__ import annotations

import pytest

from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.splitting.loops.handed import find_handed
from tests.splitting.looped_model import LoopedModel
from tests.splitting.test_looped_models import Build

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
WORDS = ("b", "n", 8)
FAMILY = SizeFamily((SizeRange("b", 1, 3), SizeRange("n", 2, 40)))
SIZES = [{"b": b, "n": n} for b, n in ((3, 40), (1, 2), (1, 5), (3, 40), (2, 17), (1, 40), (3, 7))]
LAYERS = {
    "one": ("forward",),
    "against time": ("reverse",),
    "two along time": ("forward", "forward"),
    "two against time": ("reverse", "reverse"),
    "one along, one against": ("forward", "reverse"),
}


def layer(build: Build, read: str, op_type: str, inner: int, direction: str, *states: str, hidden: int = 16) -> str:
    """A recurrent layer, its one direction taken out."""
    gates = GATES[op_type] * hidden
    weights = [build.normal(1, gates, inner), build.normal(1, gates, hidden), build.normal(1, 2 * gates)]
    given = ["", *states] if states else []
    made = build.op(op_type, read, *weights, *given, hidden_size=hidden, direction=direction)
    return build.op("Squeeze", made, build.weight([1]))


def layers(build: Build, op_type: str, directions: tuple[str, ...]) -> str:
    """Words [batch, length, 8] as exporters write it: transposed, layers, and back."""
    made, inner = build.op("Transpose", "x", perm=[1, 0, 2]), 8
    for direction in directions:
        made, inner = layer(build, made, op_type, inner, direction), 16
    made = build.op("Tanh", build.op("MatMul", made, build.normal(16, 4)))
    return build.op("Transpose", made, perm=[1, 0, 2])


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("directions", LAYERS)
def test_steps_in_turn_have_the_bits_of_all_at_once(op_type, directions):
    build = Build()
    model = LoopedModel(build.model(WORDS, layers(build, op_type, LAYERS[directions])), FAMILY, in_turn=True)
    assert len(model.regions) == len(set(LAYERS[directions]))
    assert {op_type, "Squeeze", "MatMul", "Tanh"} <= model.cut
    model.check(SIZES, rows=4)


@pytest.mark.parametrize("op_type", ["GRU", "LSTM"])
def test_states_that_are_given_are_what_the_first_tile_begins_with(op_type):
    build = Build()
    time_first = build.op("Transpose", "x", perm=[1, 0, 2])
    first = build.op("Slice", time_first, build.weight([0]), build.weight([1]), build.weight([0]))
    state = build.op("Concat", first, first, axis=2)
    given = [state] * (2 if op_type == "LSTM" else 1)
    made = layer(build, time_first, op_type, 8, "forward", *given)
    model = LoopedModel(build.model(WORDS, made), FAMILY, in_turn=True)
    assert op_type in model.cut
    model.check(SIZES, rows=4)


@pytest.mark.parametrize("opset", [11, 17])
def test_before_there_were_lists_tiles_are_joined_one_by_one(opset):
    build = Build()
    made = build.op("Transpose", "x", perm=[1, 0, 2])
    weights = build.normal(1, 64, 8), build.normal(1, 64, 16)
    made = build.op("LSTM", made, *weights, hidden_size=16, direction="reverse")
    model = LoopedModel(build.model(WORDS, made, opset), FAMILY, in_turn=True)
    model.check(SIZES, rows=4)


def test_a_deep_product_that_is_not_packed_is_refused_in_short_tiles():
    """Its sums are cut up by the number of its rows, with more rows than columns and with fewer."""
    build = Build()
    wide = build.op("MatMul", build.op("Transpose", "x", perm=[1, 0, 2]), build.normal(8, 300))
    family = SizeFamily((SizeRange("n", 2, 400, 2),))
    made = layer(build, wide, "RNN", 300, "forward", hidden=64)
    model = LoopedModel(build.model((1, "n", 8), made), family, in_turn=True)
    assert list(model.refusals(rows=8)) == ["RNN_t2"]
    model.check([{"n": 400}, {"n": 2}, {"n": 210}], rows=200)


@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("op_type", GATES)
def test_what_goes_both_ways_through_time_is_one_op_each_way(op_type, has_states):
    build = Build()
    gates = GATES[op_type] * 16
    weights = build.normal(2, gates, 8), build.normal(2, gates, 16), build.normal(2, 2 * gates)
    read = build.op("Transpose", "x", perm=[1, 0, 2])
    state = ("", build.op("Expand", build.normal(2, 1, 16), build.op("Concat", *shape_of_states(build, read), axis=0)))
    given = (*state, *state[1:] * (op_type == "LSTM")) if has_states else ()
    made = build.op(op_type, read, *weights, *given, hidden_size=16, direction="bidirectional")
    made = build.op("Reshape", build.op("Transpose", made, perm=[0, 2, 1, 3]), build.weight([0, 0, 32]))
    made = build.op("Transpose", build.op("MatMul", made, build.normal(32, 4)), perm=[1, 0, 2])
    model = LoopedModel(build.model(WORDS, made), FAMILY, in_turn=True)
    assert [region.is_backwards for region in model.regions] in ([False, True], [True, False])
    assert {op_type, "Concat", "Reshape", "MatMul"} <= model.cut
    model.check(SIZES, rows=4)


def shape_of_states(build: Build, read: str) -> tuple[str, str, str]:
    """Two ways, the batch, sixteen."""
    batch = build.op("Slice", build.op("Shape", read), build.weight([1]), build.weight([2]))
    return build.weight([2]), batch, build.weight([16])


def test_last_states_that_are_read_keep_an_op_whole():
    build = Build()
    time_first = build.op("Transpose", "x", perm=[1, 0, 2])
    build.op("GRU", time_first, build.normal(1, 48, 8), build.normal(1, 48, 16), hidden_size=16)
    build.nodes[-1].output.append("last")
    made = build.op("Add", build.nodes[-1].output[0], "last")
    model = LoopedModel(build.model(WORDS, made), FAMILY)
    assert find_handed(model.sized, 0) == []
    assert "GRU" not in model.cut
