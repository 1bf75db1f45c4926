"""Attention with grouped queries, one group after another: the bits of the whole op, and scores of one group."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.splitting.recast.grouped import groups_apart
from tests.helpers import to_bytes
from tests.splitting.looped_model import LoopedModel
from tests.splitting.random_models import Sample
from tests.splitting.sliced_op import OneOp
from tests.splitting.split_case import Case, check_same, make_case, run_in
from tests.splitting.test_bands import search, split_of
from tests.splitting.test_looped_models import Build
from tests.splitting.test_recast import NOTHING, as_it_is, kinds_of
from tests.splitting.test_rules_int4 import grouped, model_of


def with_workspace(case: Case, count: int):
    """The model as it is, each op taking so many bytes for itself."""
    return replace(as_it_is(case), costs=tuple(OpCost(op.name, 1, count) for op in case.view.graph.ops))


@pytest.mark.parametrize("seed", range(8))
def test_groups_one_after_another_have_the_bits_of_all_at_once(seed):
    items, length, past = ((1, 9, 0), (2, 33, 0), (1, 4, 17), (3, 1, 40))[seed % 4]
    case = make_case(model_of(grouped(items, length, past, np.random.default_rng(seed))))
    apart = groups_apart(with_workspace(case, 1 << 20), 1 << 20, NOTHING)
    assert kinds_of(apart).count("GroupQueryAttention") == 2
    taken = {cost.workspace_bytes for cost in apart.costs if cost.name.startswith("op/group_")}
    assert taken == {1 << 19}
    for threads in (1, 2, 4):
        whole, parts = (
            run_in(to_bytes(model), case.feeds, threads, is_exact)
            for model in (case.view.model, apart.view.model)
            for is_exact in (threads == 2,)
        )
        assert [one.tobytes() for one in whole] == [other.tobytes() for other in parts], threads


def many_heads(items: int, length: int, past: int, extras: str, dice: np.random.Generator) -> OneOp:
    """Attention of six heads of sixteen; `extras`: a bias (b), a mask (m), what is added to scores (s), causal (c)."""

    def drawn(*shape: int) -> np.ndarray:
        return dice.standard_normal(shape).astype(np.float32)

    total, width = past + length, 6 * 16
    inputs = (
        *(drawn(items, length, width) for _ in range(3)),
        drawn(3 * width) if "b" in extras else None,
        (dice.random((items, total)) < 0.8).astype(np.int32) if "m" in extras else None,
        drawn(1, int(dice.choice([1, 6])), length, total) if "s" in extras else None,
        *((drawn(items, 6, past, 16), drawn(items, 6, past, 16)) if past else ()),
    )
    attributes = {"num_heads": 6, "unidirectional": int("c" in extras)}
    outputs = (True,) * (3 if past else 1)
    return OneOp("MultiHeadAttention", inputs, attributes, (3,), "com.microsoft", 1, outputs)


@pytest.mark.parametrize("extras", ["", "b", "s", "cs", "bms", "bc"])
@pytest.mark.parametrize(("items", "length", "past"), [(1, 33, 0), (2, 9, 5), (1, 1, 40), (3, 65, 17)])
def test_heads_with_a_past_or_causal_go_one_after_another(items, length, past, extras):
    dice = np.random.default_rng(length)
    op = many_heads(items, length, past, extras, dice)
    case = make_case(op_model(op))
    apart = groups_apart(with_workspace(case, 1 << 20), 1 << 20, NOTHING)
    is_taken = past > 0 or "c" in extras
    assert kinds_of(apart).count("MultiHeadAttention") == (6 if is_taken else 1)
    for threads in (1, 2, 4, 8):
        whole, parts = (
            run_in(to_bytes(model), case.feeds, threads, is_exact=threads == 2)
            for model in (case.view.model, apart.view.model)
        )
        assert [one.tobytes() for one in whole] == [other.tobytes() for other in parts], threads


def op_model(op: OneOp) -> Sample:
    """The op on what others make of the model's inputs; a bias is constant."""
    given = {f"x{place}": value for place, value in enumerate(op.inputs) if value is not None}
    floats = [name for name, value in given.items() if value.dtype == np.float32 and name != "x3"]
    names = [f"x{place}" if value is not None else "" for place, value in enumerate(op.inputs)]
    nodes = [helper.make_node("Neg", [name], [f"{name}_read"], name=f"neg_{name}") for name in floats]
    reads = [f"{name}_read" if name in floats else name for name in names]
    made = ("y", "present_key", "present_value")[: len(op.outputs)]
    nodes.append(helper.make_node(op.op_type, reads, made, name="op", domain=op.domain, **op.attributes))
    (items, length, width), past = given["x0"].shape, given["x6"].shape[2] if "x6" in given else 0
    shapes = ((items, length, width), *((items, 6, past + length, 16),) * 2)
    fed = {name: value for name, value in given.items() if name != "x3"}
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    graph = helper.make_graph(
        nodes,
        "heads",
        [helper.make_tensor_value_info(name, kinds[value.dtype], value.shape) for name, value in fed.items()],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(made, shapes, strict=False)
        ],
        [numpy_helper.from_array(given["x3"], "x3")] if "x3" in given else [],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return Sample(helper.make_model(graph, opset_imports=imports, ir_version=8), fed)


def test_attention_that_takes_little_or_is_forbidden_stays_whole():
    case = make_case(model_of(grouped(1, 9, 0, np.random.default_rng(0))))
    cast = with_workspace(case, 100)
    assert groups_apart(cast, 101, NOTHING) == cast
    assert groups_apart(cast, 100, frozenset({"op"})) == cast


def test_bands_take_one_group_after_another():
    case = make_case(model_of(grouped(1, 32, 8, np.random.default_rng(1))))
    looking = search(case)
    whole_bytes = {"op": 1 << 16}
    looking.costs = [OpCost(op.name, 1, whole_bytes.get(op.name, 0)) for op in case.view.graph.ops]
    found = looking.propose(80_000, time.monotonic() + 60)
    assert found is not None
    assert kinds_of(found.cast).count("GroupQueryAttention") == 2
    assert found.cost.peak_bytes <= 80_000
    check_same(case, split_of(case, found), found.banding)


def conversation(width: int = 64, shared: int = 32) -> LoopedModel:
    """Attention of four heads in two groups and products around it, for queries and a past of any lengths."""
    build = Build()
    lengths = [build.op("Shape", name, start=axis, end=axis + 1) for name, axis in (("x", 1), ("past_key", 2))]
    total = build.op("Cast", build.op("Add", *lengths), to=TensorProto.INT32)
    last = build.op("Sub", total, build.weight([1], np.int32))
    made = [build.op("MatMul", "x", build.normal(width, columns)) for columns in (width, shared, shared)]
    angles = [build.normal(64, 8) for _ in range(2)]
    names = ["found", "present_key", "present_value"]
    reads = [*made, "past_key", "past_value", last, build.op("Squeeze", total), *angles]
    heads = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    build.nodes.append(helper.make_node("GroupQueryAttention", reads, names, "op", domain="com.microsoft", **heads))
    model = build.model(
        [1, "seq", width], build.op("Add", "x", build.op("MatMul", "found", build.normal(width, width)))
    )
    for name in ("past_key", "past_value"):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, "past", 16]))
        model.graph.output.append(
            helper.make_tensor_value_info(name.replace("past", "present"), TensorProto.FLOAT, None)
        )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return LoopedModel(model, SizeFamily((SizeRange("seq", 1, 32), SizeRange("past", 0, 32))), 4 * 32 * shared)


def test_groups_of_a_conversation_have_the_bits_of_all_at_once_at_all_sizes():
    found = conversation()
    view = found.sized.view
    assert [op.op_type for op in view.graph.ops].count("GroupQueryAttention") == 2
    assert {str(dim) for name in ("present_key", "found") for dim in found.sized.dims[name]} >= {"past + seq", "seq"}
    sizes = [{"seq": seq, "past": past} for seq, past in ((32, 0), (1, 32), (1, 1), (7, 0), (1, 0), (32, 32), (5, 9))]
    found.check(sizes, 16)
