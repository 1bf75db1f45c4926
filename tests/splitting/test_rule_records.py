"""What a rule's record claims beside how its ops are cut: for every trait the test that proves it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.measure.profilers import ProfileRequest, measure
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.splitting.loops.loop_regions import is_op_on_parts
from remat_cli.splitting.loops.windows.along import LEAST_UNITS
from remat_cli.splitting.loops.windows.forms import ROWS, Demand, NotAlike, window_tiles
from remat_cli.splitting.rules.record import ElementKind, LayoutKind, Scope, SliceRule, Why, WindowKind
from remat_cli.splitting.rules.table import NO_RULE, RECORDS, RULES, rule_of
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced
from tests.runtime import models
from tests.splitting.op_cases import case_of, ints, real
from tests.splitting.sliced_op import (
    NCHWC,
    Array,
    OneOp,
    block_size,
    check_close,
    check_slices,
    compare,
    run,
    slabs_along,
    view_of,
)

LENGTHS = (2, 3, 8, 33)
FILLINGS = (0, 1)  # that ops which move elements may put beside them
OPS = [(domain, op_type) for record in RECORDS for domain, names in record.ops.items() for op_type in names.split()]


def ops_that(claim: Callable[[SliceRule], bool]) -> list[tuple[str, str]]:
    """Ops whose record claims something."""
    return [key for key in OPS if claim(RULES[key])]


# What is claimed is run for each op below, or proved by tests of its own.
PROOFS = {
    "ops": ("test_rule_records.test_every_op_stands_in_one_record",),
    "cut": ("test_rules.test_every_rule_keeps_its_word",),
    "why": (
        "test_rule_records.test_why_bits_stay",
        "test_rule_records.test_only_rules_that_ask_take_some_slabs_along_an_axis_and_not_others",
        "test_rules.test_every_rule_keeps_its_word",
    ),
    "in_turn": ("test_handed.test_steps_in_turn_have_the_bits_of_all_at_once",),
    "hands_on": (
        "test_handed.test_steps_in_turn_have_the_bits_of_all_at_once",
        "test_handed.test_states_that_are_given_are_what_the_first_tile_begins_with",
    ),
    "scope": ("test_rule_records.test_an_answer_holds_as_far_as_is_claimed",),
    "is_cheap": ("test_rule_records.test_cheap_ops_read_as_much_as_they_make",),
    "windows": (
        "test_rules_window.test_convolutions_of_any_shape",
        "test_rules_window.test_blocked_convolutions_of_any_shape",
        "test_rules_window.test_pooling_of_any_shape",
        "test_rules_window.test_blocked_pooling_of_any_shape",
        "test_learn_dims.test_windows_are_exact_at_every_size",
        "test_rule_records.test_answers_do_not_depend_on_how_wide_a_picture_is",
    ),
    "product": (
        "test_loop_bits.test_rows_that_are_the_same_by_their_ends_are_the_same",
        "test_rules_matrix.test_matmul_of_a_batch",
    ),
    "elements": (
        "test_rule_records.test_numbers_are_made_one_by_one",
        "test_rules_pointwise.test_functions_in_packets_are_cut_into_whole_packets",
        "test_position_tables.test_a_table_has_the_bits_of_the_ops_at_any_size",
    ),
    "layout": ("test_rule_records.test_ops_that_change_the_layout_move_channels_into_blocks_or_back",),
    "open_length": (
        "test_open_shapes.test_results_stay_at_any_size",
        "test_open_shapes.test_rules_cut_where_a_length_is_open",
    ),
    "regroups": ("test_loop_bits.test_regrouping_is_the_same_for_all_sizes_where_the_same_lies_before_the_axis",),
    "by_channel": ("test_rule_records.test_whole_blocks_of_channels_are_computed_by_themselves",),
    "reads_all_channels": ("test_rule_records.test_a_channel_of_a_convolution_reads_all_channels",),
    "takes_one_for_copies": (
        "test_rule_records.test_one_number_is_as_good_as_copies_of_it",
        "test_expands.test_bits_stay",
    ),
    "moves_numbers": ("test_rule_records.test_results_are_numbers_of_what_is_read",),
    "counts_windows": ("test_learn_dims.test_windows_of_quantised_convolutions_are_counted_by_their_attributes",),
    "rows_together": (
        "test_rules_int4.test_products_of_language_models_are_cut_by_packets",
        "test_loop_bits.test_tiles_of_rows_that_are_computed_together_begin_with_them",
    ),
    "reads_no_constants": ("test_rule_records.test_rules_that_read_no_constants_say_the_same_of_other_weights",),
    "whole_in_loops": ("test_rule_records.test_loops_cut_what_tiles_of_one_size_cut_or_the_record_says_why_not",),
    "items_apart": ("test_rule_records.test_what_is_said_of_small_items_holds_for_all_and_for_larger_ones",),
    "takes_for_one_item": ("test_rule_records.test_what_is_taken_for_one_item_is_for_any_number",),
    "counts_places": (
        "test_rule_records.test_places_are_counted_from_where_a_part_begins",
        "test_windows_turned.test_each_tensor_is_cut_along_its_own_axis",
    ),
    "adds": (
        "test_rules_sums.test_sums_of_tiles_have_the_bits_of_the_whole",
        "test_rules_sums.test_other_sums_are_cut_where_bits_may_differ_and_are_close",
    ),
    "is_resize": ("test_recast.test_a_resize_taken_apart_has_the_same_bits",),
}


def test_every_trait_of_a_record_has_a_proof() -> None:
    assert {field.name for field in fields(SliceRule)} == set(PROOFS)
    for name in (proof for proofs in PROOFS.values() for proof in proofs):
        module, function = name.split(".")
        assert callable(getattr(importlib.import_module(f"tests.splitting.{module}"), function)), name


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.takes_for_one_item), ids=":".join)
def test_what_is_taken_for_one_item_is_for_any_number(key: tuple[str, str], tmp_path: Path) -> None:
    taken = set()
    for items in (1, 2, 5):
        spec = InputSpec("x", "uint8", (items, 16, 48, 48))
        path = models.save_model(
            tmp_path / f"{items}.onnx",
            [helper.make_node(key[1], ["x", "w"], ["y"], name="op", domain=key[0])],
            [models.value("x", TensorProto.UINT8, spec.shape)],
            models.untyped("y"),
            [models.weight("w", np.ones((8, 16, 3, 3), np.uint8))],
        )
        request = ProfileRequest(intra_op_threads=1)
        taken.add(measure(path, make_feeds([spec], 0), ["op"], request).ops[0].workspace_bytes)
    assert taken == {16 * 9 * 46 * 46}


def test_every_op_stands_in_one_record() -> None:
    assert len(OPS) == len(set(OPS)) == len(RULES)
    assert rule_of("my.own", "Conv") is NO_RULE
    assert [field.name for field in fields(SliceRule) if field.default != getattr(NO_RULE, field.name)][:3] == [
        "cut",
        "ops",
        "why",
    ]


def test_why_bits_stay() -> None:
    """Moved elements are seen among those read; what is never exact is close; others are run slab by slab."""
    for key in ops_that(lambda rule: rule.why is Why.MOVED):
        op = case_of(*key)
        read = {value.item() for each in op.inputs if each is not None for value in each.flat}
        for made in run(op):
            assert made is None or {value.item() for value in made.flat} <= read | set(FILLINGS), key
    for key in ops_that(lambda rule: rule.why is Why.NEVER):
        op = case_of(*key)
        assert all(check_slices(op, axis).all_refused for axis in range(2)), key
        assert not check_close(op, 0), key


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.why not in (Why.ASKED, Why.NEVER)), ids=":".join)
def test_only_rules_that_ask_take_some_slabs_along_an_axis_and_not_others(key: tuple[str, str]) -> None:
    op = case_of(*key)
    view = view_of(op, run(op))
    for axis, length in enumerate(view.output_shape):
        taken = {rule_of(*key).cut(view, slab) is not None for slab in slabs_along(axis, length)}
        assert len(taken) < 2, axis


def answers(op: OneOp, axis: int) -> Iterator[tuple[Slab, bool]]:
    """What is said of slabs along an axis, once it and what is read along it are of other lengths."""
    view = view_of(op, run(op))
    whole = view.output_shape[axis]
    some = [(slab, rule_of(*view.key).cut(view, slab)) for slab in (Slab(axis, 0, whole), Slab(axis, 0, whole // 2))]
    needs = next((found.needs for slab, found in some if found and are_alike(found.needs, slab)), None)
    if needs is None:
        return  # no loop takes an op whose parts are others than those of its result
    for length in LENGTHS:
        longer = resized(view, needs, axis, length)
        for start in range(length):
            for stop in range(start + 1, length + 1):
                slab = Slab(axis, start, stop)
                yield slab, is_op_on_parts(longer, rule_of(*view.key).cut(longer, slab), slab)


def are_alike(needs: tuple[Slab | None, ...], slab: Slab) -> bool:
    return all(need is None or need[1:] == slab[1:] for need in needs)


def resized(view: OpView, needs: tuple[Slab | None, ...], axis: int, length: int) -> OpView:
    """The op with another length of an axis of its results, and of what it reads along it."""
    inputs = tuple(
        shape if shape is None or need is None else (*shape[: need.axis], length, *shape[need.axis + 1 :])
        for shape, need in zip(view.inputs, needs, strict=True)
    )
    outputs = tuple(None if shape is None else (*shape[:axis], length, *shape[axis + 1 :]) for shape in view.outputs)
    return replace(view, inputs=inputs, outputs=outputs)


IN_LOOPS = {  # what is read in part has another length in each tile, which a shape leaves open
    ("", "Reshape"): OneOp("Reshape", (real(4, 6, 5), ints(0, 30)), {}, (1,)),
    ("", "Expand"): OneOp("Expand", (real(4, 1, 5), ints(1, 6, 1)), {}, (1,)),
}


def runs_in_rows(view: OpView) -> bool:
    """Whether tiles of rows, each a few rows around its own, are the same ops whatever their size."""
    names = [str(at) for at in range(len(view.inputs))]
    shapes = {**dict(zip(names, view.inputs, strict=True)), "made": view.output_shape}
    lengths = {name: shape[ROWS] for name, shape in shapes.items() if shape is not None and len(shape) > ROWS}
    units = min((length for length in lengths.values() if length >= LEAST_UNITS), default=0)
    if lengths.get("made", 0) < units or not units:
        return False
    demand = Demand(
        dict.fromkeys(shapes, ROWS), (0,), [names], [("made",)], lambda op, slab: rule_of(*view.key).cut(view, slab)
    )
    tiles = window_tiles(demand, {"made": round(lengths["made"] / units)}, units, lengths)
    return not isinstance(tiles, NotAlike)


def test_loops_cut_what_tiles_of_one_size_cut_or_the_record_says_why_not() -> None:
    kept_whole = set()
    for key in OPS:
        op = IN_LOOPS.get(key) or case_of(*key)
        view = view_of(op, run(op))
        lengths = enumerate(view.output_shape)
        slabs = [slab for at, length in lengths for slab in slabs_along(at, length) if slab.extent < length]
        cut = [(slab, sliced) for slab in slabs if (sliced := rule_of(*key).cut(view, slab)) is not None]
        is_in_loops = any(is_op_on_parts(view, sliced, slab) for slab, sliced in cut) or runs_in_rows(view)
        if cut and not is_in_loops:
            kept_whole.add(key)
    assert kept_whole == set(ops_that(lambda rule: bool(rule.whole_in_loops)))


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.scope is not Scope.ONE_TILE), ids=":".join)
def test_an_answer_holds_as_far_as_is_claimed(key: tuple[str, str]) -> None:
    op, scope = case_of(*key), RULES[key].scope
    made = next(each for each in run(op) if each is not None)
    for axis in range(made.ndim):
        said: dict[object, set[bool]] = {}
        for slab, answer in answers(op, axis):
            length = {Scope.EVERY_SIZE: 0, Scope.SEVERAL_ROWS: slab.extent > 1}.get(scope, slab.extent)
            said.setdefault(length, set()).add(answer)
        assert all(len(each) == 1 for each in said.values()), (key, axis, said)


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.counts_places), ids=":".join)
def test_places_are_counted_from_where_a_part_begins(key: tuple[str, str]) -> None:
    op = case_of(*key)
    (made,) = run(op)
    assert made is not None
    assert made.tolist() == list(range(len(made)))
    later = replace(op, inputs=(np.array(3), *op.inputs[1:]))
    view, slab = view_of(later, run(later)), Slab(0, 2, 5)
    assert not is_op_on_parts(view, rule_of(*key).cut(view, slab), slab)


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.is_cheap), ids=":".join)
def test_cheap_ops_read_as_much_as_they_make(key: tuple[str, str]) -> None:
    """No sums over what is read: as many elements as are made are read of each input, or all of them once."""
    rule, op = RULES[key], case_of(*key)
    assert rule.product is None
    assert not rule.has_windows
    assert not rule.reads_all_channels
    made = sum(each.size for each in run(op) if each is not None)
    assert all(each is None or at in op.weights or each.size <= 16 * made for at, each in enumerate(op.inputs))


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.items_apart), ids=":".join)
def test_what_is_said_of_small_items_holds_for_all_and_for_larger_ones(key: tuple[str, str]) -> None:
    op, before = case_of(*key), False
    assert op.inputs[0] is not None
    for size in (8, 16, 31, 64):
        picture = np.resize(op.inputs[0], (4, op.inputs[0].shape[1], size, size))
        view = view_of(larger := replace(op, inputs=(picture, *op.inputs[1:])), run(larger))
        slabs = [Slab(0, a, b) for a in range(4) for b in range(a + 1, 5)]
        said = {is_op_on_parts(view, rule_of(*key).cut(view, slab), slab) for slab in slabs}
        assert len(said) == 1
        assert before <= said.copy().pop()
        before = said.pop()
    assert before


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.windows is WindowKind.ROWS), ids=":".join)
def test_answers_do_not_depend_on_how_wide_a_picture_is(key: tuple[str, str]) -> None:
    op = case_of(*key)
    assert op.inputs[0] is not None
    found = []
    for width in (8, 31, 64):
        picture = np.resize(op.inputs[0], (*op.inputs[0].shape[:3], width))
        view = view_of(wider := replace(op, inputs=(picture, *op.inputs[1:])), run(wider))
        slabs = [Slab(2, a, b) for a in range(view.output_shape[2]) for b in range(a + 1, view.output_shape[2] + 1)]
        found.append([parts_of(rule_of(*key).cut(view, slab)) for slab in slabs])
    assert found[0] == found[1] == found[2]
    assert any(found[0])


def parts_of(sliced: Sliced | None) -> object:
    return None if sliced is None else (sliced.needs, sliced.makes, sliced.attributes)


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.elements is ElementKind.ALONE), ids=":".join)
def test_numbers_are_made_one_by_one(key: tuple[str, str]) -> None:
    """Numbers in another order give results in that order; those that are broadcast have one element."""
    op = case_of(*key)
    order = np.random.default_rng(0).permutation(op.inputs[0].size)  # type: ignore[union-attr]

    def moved(value: Array | None) -> Array | None:
        is_large = value is not None and value.size == order.size
        return value.reshape(-1)[order].reshape(value.shape) if value is not None and is_large else value

    inputs = tuple(each if at in op.weights else moved(each) for at, each in enumerate(op.inputs))
    if any(each is not None and each.size not in (1, order.size) for each in op.inputs):
        inputs = tuple(None if each is None else np.full(each.shape, each.flat[0], each.dtype) for each in op.inputs)
        (made,) = run(replace(op, inputs=inputs))
        assert made is not None
        assert len({each.tobytes() for each in made.flat}) == 1
        return
    (before,), (after,) = run(op), run(replace(op, inputs=inputs))
    assert before is not None
    assert after is not None
    wanted = moved(before)
    assert wanted is not None
    assert wanted.tobytes() == after.tobytes()


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.layout is not None), ids=":".join)
def test_ops_that_change_the_layout_move_channels_into_blocks_or_back(key: tuple[str, str]) -> None:
    block = block_size()
    plain = np.arange(2 * block * 3 * 4, dtype=np.float32).reshape(1, 2 * block, 3, 4)
    blocks = np.ascontiguousarray(plain.reshape(1, 2, block, 3, 4).transpose(0, 1, 3, 4, 2)).reshape(plain.shape)
    is_plain = RULES[key].layout is LayoutKind.PLAIN
    (made,) = run(replace(case_of(*key), inputs=(blocks if is_plain else plain,), attributes=layout_of(key[1], block)))
    assert made is not None
    assert made.tobytes() == (plain if is_plain else blocks).tobytes()


def layout_of(op_type: str, block: int) -> dict[str, int]:
    return {"channels_last": 0} | ({"channels": 2 * block} if op_type == "ReorderOutput" else {})


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.by_channel), ids=":".join)
def test_whole_blocks_of_channels_are_computed_by_themselves(key: tuple[str, str]) -> None:
    block, op = block_size(), case_of(*key)
    picture = np.random.default_rng(0).random((2, 3 * block, 9, 7), np.float32)
    attributes = {**op.attributes, **({"channels": 3 * block} if "channels" in op.attributes else {})}
    op = replace(op, inputs=(picture, *op.inputs[1:]), attributes=attributes)
    for first, last in ((0, 1), (1, 2), (1, 3)):
        slab = Slab(1, first * block, last * block)
        changed = {"channels": slab.extent} if "channels" in attributes else {}
        compare(op, run(op), [(slab, Sliced((slab, *[None] * (len(op.inputs) - 1)), slab, changed))])


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.reads_all_channels), ids=":".join)
def test_a_channel_of_a_convolution_reads_all_channels(key: tuple[str, str]) -> None:
    op = case_of(*key)
    assert op.inputs[0] is not None
    for channel in range(op.inputs[0].shape[1]):
        changed = op.inputs[0].copy()
        channels_of(op, changed)[:, channel] += 1
        (before,), (after,) = run(op), run(replace(op, inputs=(changed, *op.inputs[1:])))
        assert before is not None
        assert after is not None
        assert (channels_of(op, before) != channels_of(op, after)).any(axis=(0, 2, 3)).all()


def channels_of(op: OneOp, picture: Array) -> Array:
    """A picture of one block of channels, or in plain layout, with channels as its second axis."""
    n, c, h, w = picture.shape
    return picture.reshape(n, h, w, c).transpose(0, 3, 1, 2) if op.domain == NCHWC else picture


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.takes_one_for_copies), ids=":".join)
def test_one_number_is_as_good_as_copies_of_it(key: tuple[str, str]) -> None:
    op = case_of(*key)
    for at, value in enumerate(op.inputs):
        assert value is not None
        one = value.reshape(-1)[:1]
        shape = next(each for each in run(op) if each is not None).shape
        alone, copied = (
            run(replace(op, inputs=(*op.inputs[:at], given, *op.inputs[at + 1 :])))[0]
            for given in (one, np.broadcast_to(one, shape))
        )
        assert alone is not None
        assert copied is not None
        if alone.shape == copied.shape:
            assert alone.tobytes() == copied.tobytes(), at


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.moves_numbers), ids=":".join)
def test_results_are_numbers_of_what_is_read(key: tuple[str, str]) -> None:
    op = case_of(*key)
    (made,) = run(op)
    assert made is not None
    assert op.inputs[0] is not None
    assert set(made.flat) <= set(op.inputs[0].flat)


@pytest.mark.parametrize("key", ops_that(lambda rule: rule.reads_no_constants), ids=":".join)
def test_rules_that_read_no_constants_say_the_same_of_other_weights(
    key: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = case_of(*key)
    view = view_of(op, run(op))
    asked: list[int] = []
    monkeypatch.setattr(OpView, "constant", lambda self, position: asked.append(position))
    slabs = [slab for axis, extent in enumerate(view.output_shape) for slab in slabs_along(axis, extent)]
    assert any(rule_of(*key).cut(view, slab) for slab in slabs)
    assert not asked
