"""The rules of the layout step, one by one, on small graphs; and that the runtime makes the same of them here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from remat_cli.compiling.processor import block_here
from remat_cli.onnx_io.read.layout_scene import layout_scene
from remat_cli.ort_rules.layout import LayoutOp, fates, laid_out, whole_layout
from tests.helpers import optimise
from tests.ort_rules.layout_cases import (
    BESIDE,
    CONVOLUTIONS,
    FLOOR,
    HALF,
    OUTSIDE,
    POOLS,
    SAME_SIZES,
    after,
    outside,
    resized,
    x,
)
from tests.ort_rules.nets import CONTRIB, Net, model_of, told

TABLES = {"convolutions": CONVOLUTIONS, "pools": POOLS, "beside": BESIDE, "outside": OUTSIDE}
TOLD = {f"{table}: {name}": case for table, cases in TABLES.items() for name, case in cases.items()}
NETS = {name: net for name, (net, _) in {**TOLD, **SAME_SIZES}.items()}


@pytest.mark.parametrize("case", TOLD)
def test_what_the_step_makes_of_a_graph_with_blocks_of_16(case):
    net, expected = TOLD[case]
    assert " ".join(told(laid_out(net.scene, 16).ops, net)) == expected


@pytest.mark.parametrize("case", SAME_SIZES)
def test_what_two_tensors_make_lies_in_blocks_where_their_sizes_are_known_to_be_the_same(case):
    net, is_taken = SAME_SIZES[case]
    laid = laid_out(net.scene, 16)
    (op,) = (op for op in laid.ops if "op_y" in op.covers)
    assert (op.makes[0] in laid.channels) == is_taken


def test_the_runtime_makes_the_same_of_all_of_them_here(tmp_path):
    block = block_here(tmp_path)
    nets = {f"net{number}": net for number, net in enumerate(NETS.values())}
    seen = layout_scene(optimise(model_of(nets), tmp_path), {})
    maker = {name: op for op in seen.ops for name in op.makes if name}
    for (place, net), case in zip(nets.items(), NETS, strict=True):
        ops: dict[str, LayoutOp] = {}
        waiting = [f"{place}/{name}" for name in net.outputs]
        while waiting:
            op = maker.get(waiting.pop())
            if op is not None and op.name not in ops:
                ops[op.name] = op
                waiting += op.reads
        assert kinds(ops.values()) == kinds(laid_out(net.scene, block).ops), case


def kinds(ops) -> Counter[tuple[str, str, bool, str]]:
    """What ops are, however they are named."""
    return Counter((op.domain, op.op_type, op.has_sum, op.attributes.get("activation", "")) for op in ops)


@pytest.mark.parametrize("block", [16, 8, 1])
def test_graphs_are_whole_after_the_step(block):
    for net in NETS.values():
        is_whole(net, block)


def is_whole(net: Net, block: int) -> None:
    """Every value is made once and every op computed once, under names and with weights of their own."""
    laid = laid_out(net.scene, block)
    made = [name for op in laid.ops for name in op.makes if name]
    known = {*made, *net.inputs, *net.weights, *net.numbers, ""}
    assert len(set(made)) == len(made)
    assert len({op.name for op in laid.ops}) == len(laid.ops)
    assert all(name in known for op in laid.ops for name in op.reads)
    assert net.outputs <= known
    assert sorted(name for op in laid.ops for name in op.covers) == sorted(op.name for op in net.ops)
    before = {op.name: op for op in net.ops}
    for op in laid.ops:
        first = before.get(op.name)
        if first is None:
            assert op.name in (f"{op.reads[0]}/reorder_input", f"{op.makes[0]}/reorder_output")
        elif first.is_conv:
            assert op.reads[1:2] == first.reads[1:2]
            assert first.attributes.items() <= op.attributes.items()
    for name, channels in laid.channels.items():
        shape = net.shapes[name.removesuffix("/in_blocks").removesuffix("/reordered")]
        assert channels == shape[1]
    assert not (block == 1 and laid.channels)


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (x(12).conv("a", "x", 12, 12), "x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)"),
        (x(7).conv("a", "x", 7, 12), "a#=*Conv(x) a=*ReorderOutput(a#)"),
        (x(24).op("y", "MaxPool", "x", **HALF), "x'=*ReorderInput(x) y#=*MaxPool(x') y=*ReorderOutput(y#)"),
        (x(12).op("y", "MaxPool", "x", **HALF), "y=MaxPool(x)"),
        (x(32).conv("a", "x", 8, 32, groups=4), "x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)"),
    ],
)
def test_blocks_of_8_take_what_fills_them(net, expected):
    assert " ".join(told(laid_out(net.scene, 8).ops, net)) == expected


def test_without_blocks_only_sums_move():
    net, _ = BESIDE["sum and activation"]
    assert told(laid_out(net.scene, 1).ops, net) == ["a=Conv(x)", "y=FusedConv+sum+Relu(a,a)[b+s+y]"]
    net, _ = POOLS["pool behind conv"]
    assert told(laid_out(net.scene, 1).ops, net) == ["a=Conv(x)", "y=MaxPool(a)"]


def test_ops_of_other_domains_are_others():
    for domain, op_type, taken in (("", "Conv", True), ("acme", "Conv", False), (CONTRIB, "Conv", False)):
        net = x().conv("a", "x", 16, 16, op_type=op_type, domain=domain)
        assert [op.is_blocked for op in laid_out(net.scene, 16).ops if op.name == "op_a"] == [taken]
    for domain, op_type in (("acme", "FusedConv"), ("acme", "MaxPool"), ("acme", "Gelu"), ("", "Gelu")):
        net = after().op("y", op_type, "a", "w_a", domain=domain)
        assert "y=" + op_type + "(a)" in told(laid_out(net.scene, 16).ops, net)
    net = outside().op("y", "Add", "a", "z", domain="acme")
    assert told(laid_out(net.scene, 1).ops, net) == ["a=Conv(x)", "y=Add(a,z)"]


def test_a_norm_lies_in_blocks_where_its_constants_are_one_for_each_channel():
    net, _ = BESIDE["norm behind a pool"]
    taken = "y#=*Conv(a#)"
    assert taken in told(laid_out(net.scene, 16).ops, net)
    for name in ("scale", "shift", "mean", "variance"):
        assert taken not in told(laid_out(replace(net.scene, weights={**net.weights, name: (1,)}), 16).ops, net)
    *before, last = net.ops
    for changed in (replace(last, attributes={}), replace(last, makes=("y", "mean_now", "variance_now"))):
        assert taken not in told(laid_out(replace(net.scene, ops=(*before, changed)), 16).ops, net)
    (op,) = (op for op in laid_out(net.scene, 16).ops if op.name == "op_y")
    assert op.reads[1:] == ("scale", "shift")


def test_old_resizes_lie_in_blocks_whatever_they_do_between_pixels():
    net = after().constant("scales", 1, 1, 2, 2).op("y", "Upsample", "a", "scales", mode="linear")
    assert "y#=*Upsample(a#)" in told(laid_out(net.scene, 16).ops, net)
    net = after().constant("scales", 1, 1).op("y", "Upsample", "a", "scales")
    assert "y=Upsample(a)" in told(laid_out(net.scene, 16).ops, net)
    net = after().op("y", "Upsample", "a", "fed")
    assert "y=Upsample(a,fed)" in told(laid_out(net.scene, 16).ops, net)
    by_size = after().constant("sizes", 1, 16, 16, 16).op("y", "Resize", "a", "", "", "sizes", mode="linear")
    assert "y=Resize(a,,)" in told(laid_out(by_size.scene, 16).ops, by_size)


def fates_of(net: Net, block: int, **whole: str) -> dict[str, set]:
    """What becomes of ops, by their short names; `whole` names what they are parts of, all are of themselves else."""
    names = {op.name: op.name.removeprefix("op_") for op in net.ops} | {f"op_{name}": of for name, of in whole.items()}
    found = fates(net.scene, block, names)
    return {name: set(each) for name, each in found.items()}


def test_the_fate_of_an_op_is_where_it_lies_and_what_it_is_computed_with():
    net, _ = BESIDE["sum and activation"]
    for block in (16, 8, 1):
        together = block > 1, ("b", "s")  # the activation behind has the same bits wherever it is computed
        assert fates_of(net, block) == {"a": {(block > 1, ("a",))}, "b": {together}, "s": {together}}


def test_ops_that_stand_for_no_whole_one_have_no_fate_but_may_share_one():
    net, _ = BESIDE["sum and activation"]
    assert fates(net.scene, 16, {"op_s": "s"}) == {"s": {(True, ("op_b", "s"))}}


def test_where_elements_are_copied_it_does_not_matter_where():
    for how in ({"mode": "nearest"}, {}):
        assert set(fates_of(resized(**how, **FLOOR), 16)) == {"a"}
    assert fates_of(resized(mode="linear"), 16)["y"] == {(True, ("y",))}
    assert fates_of(resized(mode="cubic"), 16)["y"] == {(False, ("y",))}
    for how, ops in (({}, {"a"}), ({"mode": "nearest"}, {"a"}), ({"mode": "linear"}, {"a", "y"})):
        net = after().constant("scales", 1, 1, 2, 2).op("y", "Upsample", "a", "scales", **how)
        assert set(fates_of(net, 16)) == ops


def test_whole_ops_have_the_fates_of_all_their_parts():
    net = x(18).conv("a", "x", 18, 18).conv("b", "a", 18, 18).conv("c", "x", 18, 18).op("y", "Add", "c", "a").keep("a")
    assert fates_of(net, 16, a="c") == {
        "b": {(False, ("b",))},
        "c": {(False, ("c",)), (False, ("c", "y"))},
        "y": {(False, ("c", "y"))},
    }


def test_what_lies_in_blocks_on_some_processors_and_on_all():
    net = x(24).op("p", "AveragePool", "x", shape=(1, 24, 4, 4), **HALF).conv("y", "x", 24, 24)
    layout = whole_layout(net.scene)
    assert (layout.in_blocks, layout.in_any) == ({"op_y"}, {"op_p", "op_y"})
    assert layout.fates[16]["op_p"] == {(False, ("op_p",))}
    assert layout.fates[8]["op_p"] == {(True, ("op_p",))}
    assert not layout.is_plain


def test_a_model_is_plain_where_no_session_makes_anything_else_of_it():
    assert whole_layout(x(18).conv("a", "x", 18, 18).scene).is_plain
    summed = whole_layout(outside().op("y", "Add", "a", "z").scene)
    assert (summed.in_any, summed.is_plain) == (set(), False)
    assert (summed.partners, summed.fused) == ({"op_a"}, {"op_a", "op_y"})
