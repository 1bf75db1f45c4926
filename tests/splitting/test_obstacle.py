"""Where splitting cannot help, the tensor that is the reason is named; a proof is claimed only where there is one."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.told_names import ToldNames
from remat_cli.splitting.bands.band_search import BandSearch
from remat_cli.splitting.tiles.obstacle import explain, is_cuttable, parts_with_same_bits
from remat_cli.splitting.tiles.search import SplitLimits
from tests.splitting.random_models import Sample, Sketch
from tests.splitting.split_case import make_case

MAP = (1, 16, 16, 16)
MAP_BYTES = 4 * 16 * 16 * 16


def case_of(build):
    sketch = Sketch(np.random.default_rng(0))
    return make_case(sketch.sample([build(sketch, sketch.input("x", MAP))]))


def conv(sketch, x):
    return sketch.add("Conv", [x, sketch.weight(16, 16, 3, 3)], MAP, pads=[1, 1, 1, 1])


def test_a_large_output_must_exist_whole():
    case = case_of(lambda sketch, x: conv(sketch, conv(sketch, x)))
    found = explain(case.timeline, None, None, MAP_BYTES - 1)
    assert found is not None
    assert found.is_final
    assert "model output" in found.text
    assert "16.00 KiB" in found.text


def test_a_large_output_exists_beside_what_it_is_made_from():
    case = case_of(lambda sketch, x: conv(sketch, conv(sketch, x)))
    found = explain(case.timeline, None, None, 2 * MAP_BYTES - 1)
    assert found is not None
    assert found.is_final
    assert "model output" in found.text
    assert "32.00 KiB at once" in found.text
    assert not found.is_of_ops
    assert explain(case.timeline, None, None, 2 * MAP_BYTES) is None
    from_input = case_of(
        lambda sketch, x: sketch.add("Exp", [x], MAP)
    )  # the caller's tensor is not counted, nor need the op be cut
    assert explain(from_input.timeline, None, None, MAP_BYTES) is None


def test_an_op_that_cannot_be_cut_is_named():
    case = case_of(
        lambda sketch, x: sketch.add("ReduceMean", [conv(sketch, x)], (1, 1, 1, 1), axes=[0, 1, 2, 3], keepdims=1)
    )
    mean = next(i for i, op in enumerate(case.view.graph.ops) if op.op_type == "ReduceMean")
    assert not is_cuttable(case.view, mean)
    found = explain(case.timeline, None, mean, MAP_BYTES - 1)
    assert found is not None
    assert found.is_final
    assert "ReduceMean" in found.text
    assert explain(case.timeline, None, mean, 2 * MAP_BYTES) is None


@pytest.mark.parametrize(
    ("op_type", "told"),
    [
        ("NonZero", "is made whole by op 'op' (NonZero): its length"),
        ("Compress", "is read whole by op 'op' (Compress)"),
    ],
)
def test_an_op_whose_results_are_as_long_as_values_say_makes_or_reads_a_tensor_whole(op_type, told):
    nodes = [
        helper.make_node("Tanh", ["x"], ["bent"], "tanh"),
        helper.make_node("ReduceMean", ["bent"], ["mean"], "mean", axes=[0, 2, 3], keepdims=0),
        helper.make_node("Greater", ["mean", "limit"], ["chosen"], "greater"),
        helper.make_node("NonZero", ["bent"], ["some"], "op")
        if op_type == "NonZero"
        else helper.make_node("Compress", ["bent", "chosen"], ["some"], "op", axis=1),
        helper.make_node("ReduceMax", ["some"], ["y"], "max", keepdims=0),
        helper.make_node("Cast", ["chosen"], ["z"], "cast", to=TensorProto.FLOAT),
    ]
    kind = TensorProto.INT64 if op_type == "NonZero" else TensorProto.FLOAT
    ports = [helper.make_tensor_value_info("y", kind, []), helper.make_tensor_value_info("z", TensorProto.FLOAT, [16])]
    x, limit = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, MAP),
        numpy_helper.from_array(np.float32(0), "limit"),
    )
    graph = helper.make_graph(nodes, "g", [x], ports, [limit])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    case = make_case(Sample(model, {"x": np.random.default_rng(0).standard_normal(MAP).astype(np.float32)}))
    found = explain(
        case.timeline, None, next(at for at, op in enumerate(case.view.graph.ops) if op.name == "op"), MAP_BYTES
    )
    assert found is not None
    assert told in found.text
    assert not found.is_final


def test_a_step_in_no_region_is_a_reason_but_no_proof():
    case = case_of(lambda sketch, x: sketch.add("GlobalAveragePool", [conv(sketch, conv(sketch, x))], (1, 16, 1, 1)))
    found = explain(case.timeline, 0, None, MAP_BYTES)
    assert found is not None
    assert not found.is_final
    assert "in no region" in found.text


def test_of_a_step_that_takes_much_inside_no_tensor_is_named():
    """As a branch with ops of its own does, whose results may be small."""
    case = case_of(lambda sketch, x: conv(sketch, conv(sketch, x)))
    timeline = replace(case.timeline, memory_bytes=(10 * MAP_BYTES, *case.timeline.memory_bytes[1:]))
    found = explain(timeline, 0, None, 8 * MAP_BYTES)
    assert found is not None
    assert "takes 144.00 KiB of workspace besides its tensors" in found.text


def test_outputs_are_told_one_by_one_or_all_together():
    """Each of two fits by itself, and both do not."""
    sketch = Sketch(np.random.default_rng(0))
    x = sketch.input("x", list(MAP))
    made = [sketch.add(kind, [x], list(MAP)) for kind in ("Neg", "Abs")]
    case = make_case(sketch.sample(made))
    both, one = (explain(case.timeline, None, None, free) for free in (2 * MAP_BYTES - 1, MAP_BYTES - 1))
    assert both is not None
    assert both.is_final
    assert both.text.startswith("the model's 2 outputs are ")
    assert one is not None
    assert one.is_final
    assert "is a model output and must exist whole" in one.text


def smallest(case):
    costs = [OpCost(op.name, 1_000_000) for op in case.view.graph.ops]
    looking = BandSearch(case.view, case.timeline.order, costs, SplitLimits(axis=SplitAxis()))
    assert looking.propose(1, time.monotonic() + 60) is None
    assert looking.smallest is not None
    return looking.smallest


def test_what_an_op_reads_whole_is_named_even_where_all_else_goes_in_bands():
    def build(sketch, x):
        value = conv(sketch, conv(sketch, conv(sketch, x)))
        return sketch.add("ReduceMean", [value], (1, 1, 1, 1), axes=[0, 1, 2, 3], keepdims=1)

    case = case_of(build)
    found = explain(case.timeline, None, None, MAP_BYTES // 2, smallest(case))
    assert found is not None
    assert not found.is_final
    assert "must exist whole" in found.text
    assert "ReduceMean" in found.text


def test_bands_that_are_there_at_once_are_a_reason_but_no_proof():
    case = case_of(lambda sketch, x: sketch.add("GlobalAveragePool", [conv(sketch, conv(sketch, x))], (1, 16, 1, 1)))
    banded = smallest(case)
    found = explain(case.timeline, 0, None, banded.cost.peak_bytes - 1, banded)
    assert found is not None
    assert not found.is_final
    assert "in no region" not in found.text
    fits = explain(case.timeline, 0, None, banded.cost.peak_bytes, banded)
    assert fits is not None
    assert "in no region" in fits.text


def test_a_norm_that_can_be_taken_apart_is_no_proof():
    ones = np.ones(16, np.float32)

    def build(sketch, x):
        value = sketch.add(
            "InstanceNormalization", [conv(sketch, x), sketch.constant(ones), sketch.constant(ones)], MAP
        )
        return sketch.add("GlobalAveragePool", [conv(sketch, value)], (1, 16, 1, 1))

    case = case_of(build)
    norm = next(i for i, op in enumerate(case.view.graph.ops) if op.op_type == "InstanceNormalization")
    assert is_cuttable(case.view, norm)
    assert explain(case.timeline, None, norm, MAP_BYTES) is None


def test_ops_and_tensors_are_told_as_the_user_knows_them():
    case = case_of(
        lambda sketch, x: sketch.add("ReduceMean", [conv(sketch, x)], (1, 1, 1, 1), axes=[0, 1, 2, 3], keepdims=1)
    )
    mean = next(op for op in case.view.graph.ops if op.op_type == "ReduceMean")
    number = case.view.graph.ops.index(mean)
    names = ToldNames({mean.name: "head.pool"}, {case.view.graph.tensors[mean.inputs[0]].name: "features"})
    found = explain(case.timeline, None, number, MAP_BYTES - 1, names=names)
    assert found is not None
    assert "'features' (16.00 KiB)" in found.text
    assert "op 'head.pool' (ReduceMean)" in found.text


def test_an_op_that_is_cut_into_few_parts_for_its_bits_says_what_would_be_had():
    """A convolution of many terms and few positions adds them up in another order in fewer positions."""
    patches = (1, 16, 2304)
    sketch = Sketch(np.random.default_rng(0))
    held = sketch.add("Erf", [sketch.input("x", patches)], patches)
    weight = sketch.weight(16, 16, 64, scale=0.1)
    made = sketch.add("Conv", [held, weight], (1, 16, 36), strides=[64], kernel_shape=[64])
    case = make_case(sketch.sample([sketch.add("ReduceMax", [made], (1, 1, 1))]))
    op = next(at for at, each in enumerate(case.view.graph.ops) if each.op_type == "Conv")
    few = parts_with_same_bits(case.view, op)
    assert few is not None
    assert few < 4
    found = explain(case.timeline, op, None, 4 * 16 * 2304)
    assert found is not None
    assert "so that its bits stay the same: --allow-reassociation cuts it into more" in found.text
    loose = replace(case.view, may_reassociate=True)
    assert parts_with_same_bits(loose, op) is None
    plain = next(at for at, each in enumerate(case.view.graph.ops) if each.op_type == "Erf")
    assert parts_with_same_bits(case.view, plain) is None
