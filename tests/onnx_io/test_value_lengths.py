"""Lengths that depend on values are found where they begin and wherever they go; what follows from sizes is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, parser

from remat_cli.cli import main
from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.sizes.value_lengths import hide_lengths, value_lengths, value_ranks
from remat_cli.splitting.tiles.view import ModelView

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


def origins(text: str) -> dict[str, str]:
    """By tensor, the type of the op where its length begins to depend on values."""
    found = value_lengths(ir.from_proto(parser.parse_model(HEAD + text)), {})
    return {name: node.op_type for name, node in found.items()}


CHOSEN = """(float[n, 4] x, bool[n] m) => (float[k, 8] y)
    <float[4, 8] w = {{{zeros}}}, int64[1] axes = {{0}}> {{
    found = NonZero(m)
    places = Squeeze(found, axes)
    rows = Gather<axis = 0>(x, places)
    y = MatMul(rows, w)
}}""".format(zeros=", ".join(["0"] * 32))


def test_what_is_found_has_another_length_and_so_has_all_that_is_made_of_it():
    assert origins(CHOSEN) == dict.fromkeys(("found", "places", "rows", "y"), "NonZero")


def test_a_length_that_is_computed_of_values_is_one():
    """As a length regulator does: how many frames there are is the sum of the durations."""
    text = """(float[1, t] durations) => (float[f] frames)
        <int64 zero = {0}, int64 one = {1}> {
        total = ReduceSum<keepdims = 0>(durations)
        count = Cast<to = 7>(total)
        places = Range(zero, count, one)
        frames = Cast<to = 1>(places)
    }"""
    assert origins(text) == {"places": "Range", "frames": "Range"}


def test_lengths_that_follow_from_sizes_are_none():
    text = """(float[n, t, 8] x) => (float[n, h, w] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] rest = {-1}> {
        shape = Shape(x)
        length = Gather<axis = 0>(shape, one)
        places = Range(zero, length, one)
        batch = Slice(shape, first, second)
        first = Constant<value_ints = [0]>()
        second = Constant<value_ints = [1]>()
        wanted = Concat<axis = 0>(batch, rest, second)
        y = Reshape(x, wanted)
    }"""
    assert origins(text) == {}


def test_the_shape_of_what_has_such_a_length_is_a_value():
    text = """(float[n] x) => (float[k] y) <float[1] nought = {0}> {
        found = NonZero(x)
        count = Shape(found)
        y = ConstantOfShape(count)
    }"""
    assert origins(text) == {"found": "NonZero", "y": "ConstantOfShape"}


def test_constants_that_are_looked_through_are_known():
    text = "(float[n] x) => (int64[1, k] y) <float[3] w = {0, 1, 2}> { y = NonZero(w) }"
    assert origins(text) == {}


def test_axes_that_are_values_make_other_lengths():
    """Along which axis a reduction goes says which length is one afterwards."""
    text = """(float[2, 3] x, int64[1] axis, int64[1] new) => (float[a, b] y, float[c, d, e] z) {
        sum = ReduceSum<keepdims = 1>(x, axis)
        y = Neg(sum)
        z = Unsqueeze(x, new)
    }"""
    assert origins(text) == {"sum": "ReduceSum", "y": "ReduceSum", "z": "Unsqueeze"}


def test_defaults_are_values_that_a_caller_may_change():
    text = """(float[8, 4] x, int64[1] end) => (float[n, 4] y) <int64[1] end = {8}, int64[1] start = {0}> {
        rows = Slice(x, start, end)
        y = Exp(rows)
    }"""
    assert origins(text) == dict.fromkeys(("rows", "y"), "Slice")


@pytest.mark.parametrize(
    ("rows", "other", "is_found"),
    [("8", "8", False), ("8", "4", True), ("8", "n", True), ("m", "m", False), ("m", "n", True), ("m", "8", True)],
)
def test_of_bodies_that_make_one_shape_it_is_no_matter_which_runs(rows, other, is_found):
    text = f"""(float[{rows}, 4] x, bool which) => (float[a, b] z) {{
        y = If (which) <
            then_branch = one () => (float[{rows}, 4] p) {{ p = Exp(x) }},
            else_branch = two () => (float[{other}, 4] q) {{ q = Neg(x) }}
        >
        z = Sin(y)
    }}"""
    assert origins(text) == ({"y": "If", "z": "If"} if is_found else {})


def test_a_random_number_is_a_value():
    text = """(float[8, 4] x) => (float[n, 4] y) <int64[1] start = {0}> {
        drawn = RandomUniform<shape = [1], low = 1.0, high = 8.0, seed = 1.0>()
        end = Cast<to = 7>(drawn)
        y = Slice(x, start, end)
    }"""
    assert origins(text) == {"y": "Slice"}


LOOP = """(float[8, 4] x, int64[1] end, int64 limit) => (float[n, 4] y, float[t, 8, 4] rows)
    <int64 turns = {{6}}, bool yes = {{1}}, int64[1] start = {{0}}> {{
    y, rows = Loop (turns, yes, x) <body = inner (int64 i, bool goes, float[a, b] held)
        => (bool again, float[c, d] next, float[e, f] row) {{ {body} }}>
}}"""


def test_a_loop_that_ends_by_a_value_makes_more_or_fewer_rows():
    body = "again = Less(i, limit) next = Neg(held) row = Exp(x)"
    assert origins(LOOP.format(body=body)) == dict.fromkeys(("y", "rows"), "Loop")


def test_a_loop_that_cuts_by_a_value_makes_other_lengths():
    body = "again = Identity(goes) next = Slice(x, start, end) row = Exp(x)"
    assert origins(LOOP.format(body=body)) == dict.fromkeys(("y", "rows"), "Loop")


def test_a_loop_that_counts_its_turns_has_the_lengths_that_sizes_give_it():
    """How often it runs, and which turn it is, are no values; what it computes with is of no account."""
    body = "again = Identity(goes) next = Neg(held) row = Exp(held)"
    assert origins(LOOP.format(body=body)) == {}


def test_what_a_turn_hands_to_the_next_may_be_a_value():
    """The state is a number of the model until the first turn is over."""
    text = """(float[8, 4] x) => (float[1] y, float[t, n, 4] rows)
        <int64 turns = {6}, bool yes = {1}, int64[1] start = {0}, float[1] one = {1}> {
        y, rows = Loop (turns, yes, one) <body = inner (int64 i, bool goes, float[1] held)
            => (bool again, float[1] next, float[e, f] row) {
            again = Identity(goes)
            end = Cast<to = 7>(held)
            row = Slice(x, start, end)
            most = ReduceMax<keepdims = 0>(x)
            next = Add(held, most)
        }>
    }"""
    assert origins(text)["rows"] == "Loop"


def test_what_a_file_says_of_the_length_of_what_is_found_is_not_believed():
    """Exporters write down what a trace found."""
    text = """(float[n] x) => (float[1, 5] y) <float[1] nought = {0}, int64[1] rest = {-1}> {
        found = NonZero(x)
        y = Cast<to = 1>(found)
    }"""
    model = ir.from_proto(parser.parse_model(HEAD + text))
    for node in model.graph:
        node.outputs[0].shape = ir.Shape([1, 5])
    assert list(value_lengths(model, {})) == ["found", "y"]


def test_what_a_run_contradicts_is_not_believed():
    text = """(float[8, 4] x, int64[1] end) => (float[n, 4] y) <int64[1] start = {0}> {
        rows = Slice(x, start, end)
        more = Exp(rows)
        y = Neg(more)
    }"""
    model = ir.from_proto(parser.parse_model(HEAD + text))
    for node in list(model.graph)[:2]:
        node.outputs[0].shape = ir.Shape([8, 4])
    assert value_lengths(model, {"rows": (8, 4), "more": (8, 4)}) == {}
    assert list(value_lengths(model, {"rows": (3, 4), "more": (3, 4)})) == ["rows", "more", "y"]


def test_dimensions_that_come_and_go_by_values_are_found():
    text = """(float[8, 4] x, bool[8] m, int64[k] axes) => (float[a] y, float[b] z, float[c] flat)
        <int64[1] one = {1}, int64[1] rest = {-1}> {
        rows = Compress<axis = 0>(x, m)
        sum = ReduceSum<keepdims = 1>(rows, one)
        named = Squeeze(sum, one)
        some = Squeeze(sum)
        y = Exp(some)
        shape = Shape(rows)
        flat = Reshape(y, rest)
        found = NonZero(m)
        listed = Reshape(found, rest)
        z = Reshape(x, listed)
    }"""
    model = ir.from_proto(parser.parse_model(HEAD + text))
    assert value_ranks(model, value_lengths(model, {})) == {"some", "y", "z"}


@pytest.mark.parametrize(("other", "is_ranked"), [("8, 4", False), ("4, 4", False), ("32", True)])
def test_bodies_may_make_more_or_fewer_dimensions(other, is_ranked):
    text = f"""(float[8, 4] x, bool which) => (float[a, b] z) {{
        y = If (which) <
            then_branch = one () => (float[8, 4] p) {{ p = Exp(x) }},
            else_branch = two () => (float[{other}] q) {{ q = Neg(x) }}
        >
        z = Sin(y)
    }}"""
    model = ir.from_proto(parser.parse_model(HEAD + text))
    assert value_ranks(model, value_lengths(model, {})) == ({"y", "z"} if is_ranked else set())


LISTED = """(float[8, 4] x, int64[2] shape, int64 axis, float[4] w) => (float[a, b] y)
    <int64[2] shape = {{-1, 8}}, int64 axis = {{1}}, float[4] w = {{1, 2, 3, 4}}{more}> {{
    both = Concat<axis = 0>(shape)
    held = Mul(x, w)
    sums = CumSum(held, axis)
    y = Reshape(sums, both)
}}"""


def test_of_weights_that_are_all_inputs_those_that_say_lengths_have_names_of_ours():
    """As exporters list them that had to before IR version 4; numbers to compute with may still be given."""
    graph = ir.from_proto(parser.parse_model(HEAD + LISTED.format(more=""))).graph
    hide_lengths(graph)
    assert [value.name for value in graph.inputs] == ["x", "remat/length/shape", "axis", "w"]
    assert "remat/length/shape" in graph.initializers
    assert "shape" not in graph.initializers
    assert [fixed_value(value) is None for value in graph.inputs] == [True, False, True, True]


def test_tools_that_simplify_add_weights_that_are_no_inputs():
    graph = ir.from_proto(parser.parse_model(HEAD + LISTED.format(more=", float[4] v = {1, 2, 3, 4}"))).graph
    more = ir.Value(name="u", const_value=ir.tensor(np.ones(4, np.float32), name="u"))
    graph.inputs.append(more)
    graph.register_initializer(more)
    hide_lengths(graph)
    assert "remat/length/shape" in graph.initializers


def test_where_as_many_weights_are_constants_defaults_are_for_callers():
    graph = ir.from_proto(parser.parse_model(HEAD + LISTED.format(more=", float own = {1}"))).graph
    hide_lengths(graph)
    assert [value.name for value in graph.inputs] == ["x", "shape", "axis", "w"]


@pytest.mark.usefixtures("cache")
def test_who_gives_another_length_to_such_a_file_is_refused_at_the_door(tmp_path, capsys):
    """No plan knows of it, so that tiles could be wrong."""
    model, output = tmp_path / "listed.onnx", tmp_path / "out.onnx"
    onnx.save(parser.parse_model(HEAD + LISTED.format(more="")), model)
    assert main(["compile", str(model), "--budget", "100%", "--verify", "fast", "-q", "-o", str(output)]) == 0
    original, ours = (ort.InferenceSession(str(path)) for path in (model, output))
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    for feeds in ({"x": x}, {"x": x, "w": np.zeros(4, np.float32)}, {"x": x, "axis": np.array(0)}):
        assert np.array_equal(original.run(None, feeds)[0], ours.run(None, feeds)[0])
    with pytest.raises(Exception, match="shape"):
        ours.run(None, {"x": x, "shape": np.array([4, 8])})


def chooser(path: Path, rows: int = 20_000) -> Path:
    """Rows that a mask chooses, each widened and narrowed again."""
    generator = np.random.default_rng(0)
    weights = {
        "wide": generator.standard_normal((16, 256)).astype(np.float32),
        "narrow": generator.standard_normal((256, 16)).astype(np.float32),
        "axis": np.array([0]),
    }
    nodes = [
        helper.make_node("NonZero", ["m"], ["found"]),
        helper.make_node("Squeeze", ["found", "axis"], ["places"]),
        helper.make_node("Gather", ["x", "places"], ["rows"], axis=0),
        helper.make_node("MatMul", ["rows", "wide"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "narrow"], ["chosen"]),
        helper.make_node("MatMul", ["x", "wide"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "narrow"], ["all"]),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 16]),
        helper.make_tensor_value_info("m", TensorProto.BOOL, [rows]),
        helper.make_tensor_value_info("chosen", TensorProto.FLOAT, ["k", 16]),
        helper.make_tensor_value_info("all", TensorProto.FLOAT, [rows, 16]),
    ]
    initialisers = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "chooser", ports[:2], ports[2:], initialisers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.usefixtures("cache")
def test_what_has_such_a_length_is_left_whole_and_the_rest_is_cut(tmp_path, capsys):
    """A tile at fixed places would be refused, or be wrong, where a mask chooses more rows or fewer."""
    model, output = chooser(tmp_path / "chooser.onnx"), tmp_path / "out.onnx"
    words = ["--budget", "75%", "--budget-scope", "live", "--verify", "fast", "-q", "-o", str(output)]
    assert main(["compile", str(model), *words]) == 0
    text = capsys.readouterr().out
    assert "by op 'NonZero'; what reads or makes such a tensor is left whole" in text
    original, ours = (ort.InferenceSession(str(path)) for path in (model, output))
    chosen = np.random.default_rng(1)
    x = chosen.standard_normal((20_000, 16)).astype(np.float32)
    for share in (0.0, 0.001, 0.5, 1.0):
        feeds = {"x": x, "m": chosen.random(20_000) < share}
        pairs = zip(original.run(None, feeds), ours.run(None, feeds), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs), share


@pytest.mark.usefixtures("cache")
def test_a_file_that_is_right_at_one_length_alone_is_no_success(tmp_path, capsys, monkeypatch):
    """Tiles at fixed places hold all rows of what a mask chose in one run, and miss the last of a longer choice."""
    monkeypatch.setattr(ModelView, "of_value_lengths", frozenset())
    model, output = chooser(tmp_path / "chooser.onnx", rows=20_001), tmp_path / "out.onnx"
    words = ["--budget", "75%", "--budget-scope", "live", "--verify", "fast", "-q", "-o", str(output)]
    assert main(["compile", str(model), *words]) == 5
    text = capsys.readouterr().out
    assert "fed with nothing but ones, where lengths that depend on values are others, its outputs differ" in text
    assert not output.exists()


@pytest.mark.usefixtures("cache")
def test_ranges_of_such_a_model_are_refused_by_the_length_and_its_op(tmp_path, capsys):
    model = chooser(tmp_path / "chooser.onnx")
    opened = onnx.load(model)
    for port in (*opened.graph.input, opened.graph.output[1]):
        port.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(opened, model)
    assert main(["compile", str(model), "--budget", "20%", "--dim", "n=1..20000", "--budget-scope", "live", "-q"]) == 2
    assert "the length of tensor 'found' depends on values, since op 'NonZero' (NonZero)" in capsys.readouterr().err
