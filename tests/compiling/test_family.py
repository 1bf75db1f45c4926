"""One file for all sizes: same bits as the user's model at any of them, within what is promised, and it stays small."""

from __future__ import annotations

import itertools
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from examples.make_encoder import WIDTH, save_encoder
from remat_cli.cli import main
from remat_cli.compiling.search.family_dims import small_sizes
from remat_cli.core.values.sizes import SizeFamily, SizeRange

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "encoder.onnx"
DIMS = ("--dim", "batch=1..3", "--dim", "seq=1..600")
FIXED = ("--format", "json", "--quiet", "--force", "--verify", "fast", "--time-limit", "60s")


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("family")


@pytest.fixture(scope="module")
def encoder(folder) -> Path:
    return save_encoder(folder / "encoder.onnx")


@pytest.fixture(scope="module")
def compiled(encoder, folder) -> Path:
    """The encoder for any size, in a third of what it takes."""
    assert main(["compile", str(encoder), "--budget", "33%", *DIMS, *FIXED, "-o", str(folder / "any.onnx")]) == 0
    return folder / "any.onnx"


def all_ops(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Ops of a graph, and of those in them."""
    return [each for node in graph.node for each in (node, *(deep for a in node.attribute for deep in all_ops(a.g)))]


def dims_of(path: Path) -> list[list[object]]:
    graph = onnx.load(path).graph
    return [
        [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim]
        for port in (*graph.input, *graph.output)
    ]


def test_runs_at_small_sizes_tell_a_dimension_from_a_number():
    for high in range(2, 40):
        family = SizeFamily((SizeRange("batch", 1, high), SizeRange("seq", 1, 600)))
        seen = small_sizes(family)
        assert all(family.admits(sizes) for sizes in seen), high
        for name, other in (("batch", "seq"), ("seq", "batch")):
            alone = [{sizes[name] for sizes in seen if sizes[other] == at} for at in {sizes[other] for sizes in seen}]
            assert max(map(len, alone)) >= 2, high  # it changes while the other one does not


def test_bits_are_those_of_the_users_model_at_any_size(encoder, compiled):
    assert dims_of(compiled) == dims_of(encoder) == [["batch", "seq", WIDTH]] * 2
    chosen = np.random.default_rng(0)
    sizes = [(1, 1), (3, 600), *((int(chosen.integers(1, 4)), int(chosen.integers(1, 601))) for _ in range(25))]
    original, ours = (ort.InferenceSession(str(path)) for path in (encoder, compiled))
    for batch, seq in sizes:
        feeds = {"x": chosen.standard_normal((batch, seq, WIDTH)).astype(np.float32)}
        assert np.array_equal(original.run(None, feeds)[0], ours.run(None, feeds)[0]), (batch, seq)


def test_the_plan_says_for_which_sizes_and_what_they_showed(compiled):
    plan = json.loads(compiled.with_suffix(".plan.json").read_text())
    assert plan["request"]["family"]["ranges"] == [
        {"name": "batch", "low": 1, "high": 3},
        {"name": "seq", "low": 1, "high": 600},
    ]
    seen = plan["verification"]["family"]
    assert {"batch": 3, "seq": 600} in [run["sizes"] for run in seen["runs"]]
    assert {"batch": 1, "seq": 1} in [run["sizes"] for run in seen["runs"]]
    assert all(run["outputs_identical"] for run in seen["runs"])
    assert max(run["peak_bytes"] for run in seen["runs"]) <= seen["promised_bytes"] + 4096
    assert seen["promised_bytes"] < max(run["original_peak_bytes"] for run in seen["runs"]) / 2


def test_a_plan_is_verified_at_all_these_sizes_again(compiled, capsys):
    assert main(["verify", str(compiled.with_suffix(".plan.json")), "--verify", "fast"]) == 0
    assert "other sizes: 16 run in one session, outputs identical at 16 of them" in capsys.readouterr().out


def test_a_larger_most_takes_no_more_ops(encoder, folder, compiled):
    wider = folder / "wider.onnx"
    dims = ("--dim", "batch=1", "--dim", "seq=1..1200")
    assert main(["compile", str(encoder), "--budget", "33%", *dims, *FIXED, "-o", str(wider)]) == 0
    assert dims_of(wider) == [[1, "seq", WIDTH]] * 2
    ops = [len(onnx.load(path).graph.node[-1].attribute[0].g.node) for path in (compiled, wider)]
    assert ops[0] == pytest.approx(ops[1], abs=12)


def inspected(path: Path, capsys, *words: str) -> dict:
    capsys.readouterr()
    assert main(["inspect", str(path), *words, "--format", "json", "-q"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_plan_says_what_it_holds_at_any_size(compiled, capsys):
    """At the largest size what it promises; at others never less than a run held, and no more than at the largest."""
    path = compiled.with_suffix(".plan.json")
    plan = json.loads(path.read_text())
    promise = plan["promise"]
    assert promise["family"]["peak_bytes"] == promise["peak_bytes"]
    assert promise["family"]["peak_sizes"] == {"batch": 3, "seq": 600}
    whole = inspected(path, capsys, "--dim", "seq=600")
    assert whole["sizes"] == {"batch": 3, "seq": 600}
    assert whole["peak_bytes"] == promise["peak_bytes"]
    for run in plan["verification"]["family"]["runs"]:
        words = [word for name, size in run["sizes"].items() for word in ("--dim", f"{name}={size}")]
        report = inspected(path, capsys, *words)
        assert run["peak_bytes"] <= report["peak_bytes"] - report["fixed_bytes"] + 4096, run
        assert report["peak_bytes"] <= promise["peak_bytes"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("seq=601", "seq=601 is not among the sizes that the plan is for: batch=1..3, seq=1..600"),
        ("rows=3", "--dim rows=3: the plan is for all sizes of batch, seq only"),
    ],
)
def test_other_sizes_are_not_inspected(compiled, capsys, word, said):
    assert main(["inspect", str(compiled.with_suffix(".plan.json")), "--dim", word, "-q"]) == 2
    assert said in capsys.readouterr().err


def test_a_region_holds_all_and_none_just_one_tensor(compiled, capsys):
    """Regions that fit the tensors of one size are too small for another, and what is held then grows with each.

    In some orders of the ops, which measured times decide, none is made beforehand as none would be: so it is seen.
    """
    model, plan = onnx.load(compiled), compiled.with_suffix(".plan.json")
    promise = json.loads(plan.read_text())["promise"]
    ballasts = next(entry.value for entry in model.metadata_props if entry.key == "remat.steady")
    if ballasts:
        assert 2 * int(ballasts.split(",")[-1]) >= promise["peak_bytes"] - promise["fixed_bytes"]
        return
    assert main(["verify", str(plan), "--format", "json", "--quiet"]) == 0
    seen = json.loads(capsys.readouterr().out)["verification"]["family"]
    assert seen["resident_bytes"] <= seen["resident_at_largest_bytes"] + 2**18


def test_what_all_layers_read_is_made_again_tile_by_tile(folder):
    """A bias of positions, as T5 has it: whole it would be as large as the scores of a layer."""
    path, written = save_encoder(folder / "biased.onnx", is_biased=True), folder / "biased_any.onnx"
    assert (
        main(
            [
                "compile",
                str(path),
                "--budget",
                "45%",
                "--dim",
                "batch=1",
                "--dim",
                "seq=1..600",
                *FIXED,
                "-o",
                str(written),
            ]
        )
        == 0
    )
    bodies = [node.attribute[0].g for node in all_ops(onnx.load(written).graph) if node.op_type == "Loop"]
    made_again = [body.name for body in bodies if any("again/" in node.name for node in body.node)]
    assert [name.startswith("remat/loop/shared") for name in sorted(made_again)] == [False, False, True]  # once for all
    session, ours = (ort.InferenceSession(str(each)) for each in (path, written))
    for seq in (1, 2, 77, 301, 600):
        feeds = {"x": np.random.default_rng(seq).standard_normal((1, seq, WIDTH)).astype(np.float32)}
        assert np.array_equal(session.run(None, feeds)[0], ours.run(None, feeds)[0]), seq


def test_limits_are_kept(encoder, folder, capsys):
    limited = folder / "limited.onnx"
    words = [*DIMS, "--limit", "batch*seq<=600", "--budget", "50%", *FIXED, "-o", str(limited)]
    assert main(["compile", str(encoder), *words]) == 0
    runs = json.loads(capsys.readouterr().out)["verification"]["family"]["runs"]
    sizes = [(run["sizes"]["batch"], run["sizes"]["seq"]) for run in runs]
    assert all(batch * seq <= 600 for batch, seq in sizes)
    assert {(1, 600), (3, 200)} <= set(sizes)


def test_a_family_without_a_plan_is_not_called_impossible(encoder, folder, capsys):
    code = main(["compile", str(encoder), "--budget", "5%", *DIMS, *FIXED, "-o", str(folder / "none.onnx")])
    assert code == 4
    assert json.loads(capsys.readouterr().out)["solution"]["status"] == "not_found"
    assert not (folder / "none.onnx").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dim", "seq=9..1"), "dimension seq=9..1: the range ends before it begins: write seq=1..9"),
        (("--dim", "seq=-1..4"), "the size must be an integer"),
        (("--dim", "seq=8..64:0"), "steps must be of at least 1: write seq=8..64"),
        (("--dim", "seq=batch+1"), "--dim seq=batch + 1: there is no --dim batch; give its size or range too"),
        (("--dim", "batch=2", "--dim", "long=seq+1", "--dim", "seq=2"), "--dim long=seq + 1: no such dimension"),
        (("--dim", "seq=8..70:16"), "dimension seq=8..70:16: steps of 16 from 8 do not end at 70: write seq=8..56:16"),
        (("--limit", "batch*seq<=10"), "--limit batch*seq<=10: there is no --dim batch; give its range first"),
        ((*DIMS, "--limit", "batch*seq<=0"), "limit 'batch*seq<=0' is not a limit on a product or a sum of dimensions"),
        ((*DIMS, "--limit", "seq"), "write 'batch*seq<=16384'"),
        (("--dim", "batch=2..3", "--dim", "seq=4..9", "--limit", "batch*seq<=7"), "the least ones are above it"),
        (("--dim", "batch=1..3"), "the model has unbound dimensions: add --dim seq=N"),
    ],
)
def test_sizes_that_make_no_sense_are_one_line(encoder, folder, capsys, words, said):
    assert main(["compile", str(encoder), "--budget", "50%", *words, "-q", "-o", str(folder / "no.onnx")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [("train", "--loss", "mse"), ("max-batch", "--loss", "mse", "--budget", "1GiB")])
def test_training_steps_are_of_one_size(encoder, folder, capsys, command):
    assert main([command[0], str(encoder), *command[1:], *DIMS, "-q"]) == 2
    assert "of one size" in capsys.readouterr().err


def test_several_devices_are_for_one_size(encoder, folder, capsys):
    words = ["--device", "cpu", "--device", "cpu:1threads", *DIMS, "--budget", "50%", "-o", str(folder / "d.onnx")]
    assert main(["compile", str(encoder), *words, "-q"]) == 2
    assert "of one size" in capsys.readouterr().err


def save_convolutions(path: Path) -> Path:
    """Convolutions of pictures, one after the other, for any batch; the runtime gives them a blocked layout."""
    rng = np.random.default_rng(0)
    channels, nodes, weights = [3, 32, 32, 16, 8], [], []
    for at, (before, after) in enumerate(itertools.pairwise(channels)):
        array = (rng.standard_normal((after, before, 3, 3)) / np.sqrt(9 * before)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(array, f"w{at}"))
        read, made = "x" if at == 0 else f"r{at - 1}", "y" if at == len(channels) - 2 else f"r{at}"
        nodes.append(onnx.helper.make_node("Conv", [read, f"w{at}"], [f"c{at}"], pads=[1, 1, 1, 1]))
        nodes.append(onnx.helper.make_node("Relu", [f"c{at}"], [made]))
    port = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    ports = [port("x", shape=["batch", 3, 32, 32]), port("y", shape=["batch", 8, 32, 32])]
    graph = onnx.helper.make_graph(nodes, "pictures", ports[:1], ports[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.slow
def test_pictures_run_a_few_at_a_time(folder):
    path, written = save_convolutions(folder / "pictures.onnx"), folder / "pictures_any.onnx"
    assert main(["compile", str(path), "--budget", "60%", "--dim", "batch=1..16", *FIXED, "-o", str(written)]) == 0
    session, ours = (ort.InferenceSession(str(each)) for each in (path, written))
    for batch in (16, 1, 7, 3, 12):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 3, 32, 32)).astype(np.float32)}
        assert np.array_equal(session.run(None, feeds)[0], ours.run(None, feeds)[0]), batch


@pytest.mark.slow
def test_a_shorter_range_is_named_where_bits_are_not_proved(folder, capsys):
    """Wide heads are summed in another order by few rows than by many."""
    path = save_encoder(folder / "wide.onnx", 1, 512, 2)
    words = ["compile", str(path), "--budget", "50%", "--dim", "batch=1", *FIXED, "-o", str(folder / "no.onnx")]
    assert main([*words, "--dim", "seq=1..2048"]) == 4
    obstacle = json.loads(capsys.readouterr().out)["split_obstacle"]
    said = re.fullmatch(
        r"tiles of op \S+ may have other bits at batch=1, seq=(\d+); "
        r"some are proved to have the same for --dim seq=1\.\.(\d+)",
        obstacle,
    )
    assert said, obstacle
    assert 1 < int(said[2]) < int(said[1])


@pytest.mark.slow
def test_sentence_by_sentence_it_fits_where_there_are_enough_of_them(folder, capsys):
    """Tiles of positions may have other bits here; those that would not have fitted are not said to be in the way."""
    words = ["compile", str(EXAMPLE), "--budget", "60%", "--dim", "seq=1..64", *FIXED, "-o", str(folder / "few.onnx")]
    assert main([*words, "--dim", "batch=1..4"]) == 0
    capsys.readouterr()
    assert main([*words, "--dim", "batch=1", "--force"]) == 4
    obstacle = json.loads(capsys.readouterr().out)["split_obstacle"]
    assert re.match(r"in the tiles that were tried the model needs \S+ KiB at least, by estimate", obstacle), obstacle


@pytest.mark.slow  # of one size: end_to_end/test_verify_file.py
def test_a_portable_file_is_held_to_the_users_model_too(encoder, folder):
    """What it is compared with is the default session of the user's file, though promises hold in exact sessions."""
    written = folder / "portable.onnx"
    assert main(["compile", str(encoder), "--budget", "40%", *DIMS, *FIXED, "--portable", "-o", str(written)]) == 0
    seen = json.loads(written.with_suffix(".plan.json").read_text())["verification"]
    assert all(run["outputs_identical"] for run in seen["family"]["runs"])
    assert seen["family"]["promised_bytes"] < max(run["original_peak_bytes"] for run in seen["family"]["runs"]) / 2


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 30])
def test_the_least_budget_for_a_range_costs_no_more_than_is_allowed(encoder, folder, capsys, most):
    words = ("--budget", "min", "--max-overhead", f"{most}%")
    assert main(["compile", str(encoder), *words, *DIMS, *FIXED, "-o", str(folder / "least.onnx")]) == 0
    assert json.loads(capsys.readouterr().out)["solution"]["overhead_percent"] <= most
