"""Models that the machine cannot run whole at their largest sizes: planned from smaller ones, compared with a twin."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.processes import memory_limited, spare_memory_bytes
from remat_cli.base.progress import silent
from remat_cli.cli import main
from remat_cli.compiling import prepare as prepare_stage
from remat_cli.compiling.beyond import extrapolated_profile, prepare_at_any
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.runtime.sessions.error_text import is_of_the_machine, lacks_memory, one_line
from remat_cli.settings.settings import load_settings

LARGEST, RUNNABLE = 1200, 400  # the machine of these tests runs the whole model up to the second
DIMS = ("--dim", f"frames=1..{LARGEST}")
HEADS, WIDTH = 4, 64
QUIET = ("--format", "json", "--quiet", "--force")
NO_MEMORY = "Failed to allocate memory for requested buffer of size 1000000"


pytestmark = pytest.mark.usefixtures("cache")


def attention(path: Path, heads: int = HEADS, size: int = WIDTH) -> Path:
    """Attention of any length, batch 1."""
    generator = np.random.default_rng(0)
    weights = {name: generator.standard_normal((size, size)).astype(np.float32) / size**0.5 for name in "qkvo"}
    weights |= {"split": np.array([0, 0, heads, size // heads]), "join": np.array([0, 0, size])}
    node = partial(helper.make_node)
    nodes = []
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", name], [f"{name}1"]),
            node("Reshape", [f"{name}1", "split"], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [f"{name}3"], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q3", "k3"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v3"], ["mixed"]),
        node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "join"], ["joined"]),
        node("MatMul", ["joined", "o"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "frames", size]) for name in "xy"]
    initialisers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "attention", ports[:1], ports[1:], initialisers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def fail_above(patch: pytest.MonkeyPatch, most: int = RUNNABLE) -> None:
    """Let first looks at whole models fail as they do where memory lacks, for longer inputs than that."""
    real = prepare_stage.first_look

    def limited(path, reference, feeds, conditions):
        is_whole = all(node.op_type != "If" for node in reference.graph)  # which loops stand in
        if is_whole and conditions.dims["frames"] > most:
            raise RuntimeFailure("ONNX Runtime fails to run ", path.name, f": {NO_MEMORY}")
        return real(path, reference, feeds, conditions)

    patch.setattr(prepare_stage, "first_look", limited)


@pytest.fixture
def small_machine(monkeypatch):
    fail_above(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return attention(tmp_path_factory.mktemp("beyond") / "model.onnx")


@pytest.fixture(scope="module")
def report(model) -> dict:
    """What was compiled where the whole model runs up to a third of its largest size, as JSON of the plan."""
    output = model.with_name("any.onnx")
    with pytest.MonkeyPatch.context() as patch:
        fail_above(patch)
        assert main(["compile", str(model), "--budget", "33%", *DIMS, *QUIET, "-o", str(output)]) == 0
    return json.loads(output.with_suffix(".plan.json").read_text())


def test_the_largest_size_is_planned_and_has_the_users_bits(model, report):
    """Which this machine can tell, as only the first look is kept from it."""
    original, ours = (ort.InferenceSession(str(model.with_name(name))) for name in ("model.onnx", "any.onnx"))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, LARGEST, WIDTH)).astype(np.float32)}
    assert np.array_equal(original.run(None, feeds)[0], ours.run(None, feeds)[0])


def test_each_size_says_what_it_was_compared_with(report):
    seen = report["verification"]["family"]
    by = {run["sizes"]["frames"]: run for run in seen["runs"]}
    assert by[LARGEST]["compared_with"] == "twin"
    assert by[LARGEST]["outputs_identical"]
    assert by[LARGEST]["original_peak_bytes"] is None
    assert by[LARGEST]["peak_bytes"] <= seen["promised_bytes"] + 4096
    assert by[LARGEST // 4]["compared_with"] == "original"  # the largest size that was found to run
    assert by[LARGEST // 4]["original_peak_bytes"] > 4 * HEADS * (LARGEST // 4) ** 2
    # Between what runs and what does not the original was run to see.
    assert by[3 * LARGEST // 8]["compared_with"] == "original"
    assert {run["compared_with"] for size, run in by.items() if size >= LARGEST // 2} == {"twin"}


def test_the_profile_says_that_it_is_extrapolated(report):
    assert report["splitting"]["whole_profile"]["extrapolated_from"] == [
        {"frames": LARGEST // 4},
        {"frames": LARGEST // 8},
    ]
    assert "extrapolated_from" not in report["profile"]  # the loops were measured at the largest size
    assert report["verification"]["original_default_session_peak_bytes"] is None
    assert any("cannot run the model whole at frames=1200" in note for note in report["verification"]["notes"])


@pytest.mark.slow
def test_verified_again_it_is_compared_as_far_as_the_original_runs(model, report, capsys, small_machine):
    plan = str(model.with_name("any.plan.json"))
    assert main(["verify", plan, "-q"]) == 0
    text = capsys.readouterr().out
    assert "same bits where they were compared" in text.splitlines()[0]
    assert "compared with nothing      at " in text
    assert "frames=1200" in text.split("compared with nothing")[1].splitlines()[0]


def test_with_memory_for_it_the_same_plan_is_compared_with_the_original_at_all_sizes(model, report, capsys):
    assert main(["verify", str(model.with_name("any.plan.json")), *QUIET[:3]]) == 0
    runs = json.loads(capsys.readouterr().out)["verification"]["family"]["runs"]
    assert {run["compared_with"] for run in runs} == {"original"}
    assert all(run["outputs_identical"] for run in runs)


def prepared_at(model: Path, folder: Path):
    dims = {"frames": f"1..{LARGEST}"}
    settings = load_settings({"cache_dir": str(folder / "cache"), "dims": dims})
    folder.mkdir(exist_ok=True)
    return prepare_at_any(model, settings.conditions, folder, silent())


def test_what_is_extrapolated_has_the_tensors_and_the_peak_of_what_is_run(model, tmp_path):
    run = prepared_at(model, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        fail_above(patch)
        guessed = prepared_at(model, tmp_path / "guessed")
    assert run.runnable is None
    assert guessed.runnable is not None
    assert guessed.graph == run.graph
    assert guessed.reference_sha256 == run.reference_sha256
    profile = extrapolated_profile(guessed, guessed.runnable, guessed.conditions.device, silent())
    measured = prepare_stage.first_look(run.reference_path, run.reference, run.feeds, run.conditions)
    held = {cost.name: cost.workspace_bytes for cost in profile.ops}
    assert set(held) == {op.name for op in run.graph.ops}
    assert sum(profile.ops[at].time_ns for at in range(len(profile.ops))) > 0
    assert set(measured.types) >= set(held)
    problem = make_problem(guessed.graph, profile, 2**40)
    assert baseline(problem).peak > 4 * HEADS * LARGEST**2  # a matrix of scores, which no smaller size has


def test_costs_grow_with_what_an_op_touches(model, tmp_path, small_machine):
    """At four times the length never less, and those of products of rows by rows more than four times as much."""
    prepared = prepared_at(model, tmp_path)
    runnable = prepared.runnable
    assert runnable is not None
    near = extrapolated_profile(runnable.at, runnable, prepared.conditions.device, silent())
    far = extrapolated_profile(prepared, runnable, prepared.conditions.device, silent())
    for before, after in zip(near.ops, far.ops, strict=True):
        assert after.time_ns >= before.time_ns
        assert after.workspace_bytes >= before.workspace_bytes


def test_a_plan_of_whole_ops_that_this_machine_cannot_run_is_none(model, capsys, monkeypatch, small_machine):
    monkeypatch.setattr(prepare_stage, "MACHINE_SHARE", 2**20 / spare_memory_bytes())
    assert main(["compile", str(model), "--budget", "100%", "--split", "off", *DIMS, "-q", "--force"]) == 4
    assert "this machine can run no plan that holds more than" in capsys.readouterr().out


def test_one_size_that_cannot_be_run_says_what_to_do(model, capsys, monkeypatch):
    def refuse(path, *words):
        raise RuntimeFailure("ONNX Runtime fails to run ", path.name, f": {NO_MEMORY}")

    monkeypatch.setattr(prepare_stage, "first_look", refuse)
    assert main(["compile", str(model), "--budget", "50%", "--dim", "frames=1200", "-q"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert NO_MEMORY in line
    assert "cannot run it whole: give its free sizes as a range, such as --dim frames=1..1200" in line
    assert "--inputs" not in line


def test_what_is_free_here_is_no_more_than_a_process_may_have():
    with memory_limited(2**30):
        assert spare_memory_bytes() <= 2**30


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (NO_MEMORY, True),
        ("the process that runs ONNX Runtime was killed by signal 9 (out of memory?): no message", True),
        ("the process that runs ONNX Runtime ended with code 1: MemoryError", True),
        ("the process that runs ONNX Runtime was killed by signal 11 (out of memory?): no message", True),
        ("Attempting to broadcast an axis by a dimension other than 1", False),
    ],
)
def test_want_of_memory_is_told_from_other_failures(text, lacks):
    assert lacks_memory(RuntimeFailure(text)) is lacks
    assert is_of_the_machine(text) is lacks  # and never blamed on the model


def test_a_long_message_ends_with_its_reason():
    """Which op failed in bodies of others; the bodies' names would take its place."""
    around = "".join(
        f"Non-zero status code returned while running {kind} node. Name:'{'x' * 140}' Status Message: "
        for kind in ("If", "Loop")
    )
    inner = "Non-zero status code returned while running Softmax node. Name:'s' Status Message: "
    arena = "/onnxruntime/core/framework/bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t) "
    assert one_line(ValueError(around + inner + arena + NO_MEMORY)) == inner + NO_MEMORY


@pytest.mark.slow
def test_under_a_limit_on_memory_that_the_whole_model_does_not_keep(tmp_path, capsys):
    """It makes a matrix of 550 MiB, and no process may have more than 600."""
    model, output = attention(tmp_path / "attention.onnx"), tmp_path / "any.onnx"
    words = ["compile", str(model), "--dim", "frames=1..6000", "--budget", "20%", "--budget-scope", "live", *QUIET]
    assert main([*words, "--memory-limit", "600MiB", "-o", str(output)]) == 0
    seen = json.loads(capsys.readouterr().out)["verification"]
    by = {run["sizes"]["frames"]: run["compared_with"] for run in seen["family"]["runs"]}
    assert by[6000] == "twin"
    assert by[3000] == "original"
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 6000, 64)).astype(np.float32)}
    original, ours = (ort.InferenceSession(str(path)) for path in (model, output))
    assert np.array_equal(original.run(None, feeds)[0], ours.run(None, feeds)[0])
