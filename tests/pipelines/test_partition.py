"""`remat partition` and `remat run` of what it writes: stages that compute what the model computes, to the last bit."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import remat_cli as api
from remat_cli.cli import main
from remat_cli.pipelines import planning as pipeline
from remat_cli.pipelines.plan.schedule_file import read_pipeline
from remat_cli.pipelines.run import ray_cluster

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_models"
ONE_THREAD = ("--intra-op-threads", "1")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def remat(capsys):
    """Run `remat ARGUMENTS -q`; exit code, stdout, stderr."""

    def call(*words):
        code = main([*map(str, words), "-q"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def normalised() -> onnx.ModelProto:
    """Convolutions with normalisations and residuals, the first weight read again by the last one."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes = []
    previous = "x"
    for at in range(4):
        weights[f"w{at}"] = rng.standard_normal((3, 3, 3, 3), np.float32) / 5
        for name, value in (("scale", 1.0), ("shift", 0.0), ("mean", 0.0), ("variance", 1.0)):
            weights[f"{name}{at}"] = np.full(3, value, np.float32)
        nodes.append(helper.make_node("Conv", [previous, f"w{at % 3}"], [f"c{at}"], pads=[1] * 4))
        norm = [f"c{at}", f"scale{at}", f"shift{at}", f"mean{at}", f"variance{at}"]
        nodes.append(helper.make_node("BatchNormalization", norm, [f"n{at}"]))
        nodes.append(helper.make_node("Relu", [f"n{at}"], [f"r{at}"]))
        nodes.append(helper.make_node("Add", [f"r{at}", previous], [f"y{at}"]))
        previous = f"y{at}"
    del weights["w3"]
    ports = [helper.make_tensor_value_info(name, 1, (2, 3, 32, 32)) for name in ("x", previous)]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "normalised", ports[:1], ports[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> Path:
    """A folder with training steps: Adam; and running statistics with a weight that two places read."""
    folder = tmp_path_factory.mktemp("steps")
    digits = ROOT / "examples" / "digits.onnx"
    api.train(digits, loss="cross-entropy", optimizer="adam", batch=4, output=folder / "digits.onnx")
    onnx.save(normalised(), folder / "forward.onnx")
    api.train(folder / "forward.onnx", loss="mse", optimizer="momentum", output=folder / "norm.onnx")
    return folder


def cut(steps, name, devices, memory="1GiB"):
    """The step in stages; partitioned once."""
    folder = steps / f"{name}.{devices}"
    if not folder.exists():
        how = {"micro_batches": 4, "method": "1f1b-star", "intra_op_threads": 1}
        api.partition(steps / f"{name}.onnx", devices=devices, memory=memory, output=folder, **how)
    return folder / "schedule.json"


@pytest.mark.parametrize("name", ["chain", "unet"])
def test_stages_of_a_forward_model_give_the_models_bits(remat, tmp_path, name):
    model = tmp_path / "model.onnx"
    shutil.copy(SAMPLES / f"{name}.onnx", model)
    code, out, err = remat("partition", model, "--devices", 3, "--memory", "128MiB", *ONE_THREAD)
    assert (code, err) == (0, "")
    assert "equal those of the model to the last bit" in out
    assert re.search(r"cut 1 after \S+: [0-9.]+ [KM]iB: \d+ tensor", out)
    schedule = tmp_path / "model.stages" / "schedule.json"
    plan = read_pipeline(schedule)
    assert len(plan.devices) == 3
    assert not plan.is_training
    shapes = {spec.name: spec.shape for spec in plan.inputs}
    rng = np.random.default_rng(7)
    feeds = {each: rng.standard_normal((2, *shape), np.float32) for each, shape in shapes.items()}
    np.savez(tmp_path / "x.npz", **feeds)
    words = ("--local", "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz", "--micro-batches", 2)
    assert remat("run", schedule, *words, *ONE_THREAD)[0] == 0
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    with np.load(tmp_path / "y.npz") as given:
        for row in range(2):
            wanted = session.run(names, {each: array[row] for each, array in feeds.items()})
            for each, array in zip(names, wanted, strict=True):
                assert given[each][row].tobytes() == array.tobytes()


def trained(remat, schedule, output, *words):
    """Losses of each micro-batch, and the state after some updates."""
    asked = ("run", schedule, "--local", "--learning-rate", "0.01", "--output", output, *ONE_THREAD, *words)
    code, out, err = remat(*asked, "--format", "json")
    assert (code, err) == (0, "")
    with np.load(output) as arrays:
        return json.loads(out), {name: arrays[name] for name in arrays.files}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("mode", ["--flush", "--no-flush"])
@pytest.mark.parametrize("name", ["digits", "norm"])
def test_a_step_in_stages_trains_as_in_one(remat, steps, tmp_path, name, mode):
    """Gradients, running statistics, updates and the optimizer's memory: all bits, in both modes."""
    words = ("--steps", 3, mode, "--micro-batches", 4)
    one, whole = trained(remat, cut(steps, name, 1), tmp_path / "one.npz", *words)
    several, parts = trained(remat, cut(steps, name, 3), tmp_path / "three.npz", *words)
    assert several["given"] == one["given"]
    assert len(one["given"]) == 12
    assert_same(parts, whole)


def test_one_micro_batch_is_the_step_itself(remat, steps, tmp_path):
    """The stages against the file that `remat train` wrote, in a session of its own."""
    schedule = cut(steps, "digits", 3)
    plan = read_pipeline(schedule)
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal(plan.inputs[0].shape, np.float32), "target": np.array([1, 2, 3, 4])}
    np.savez(tmp_path / "x.npz", **feeds)
    words = ("--input", tmp_path / "x.npz", "--micro-batches", 1)
    report, state = trained(remat, schedule, tmp_path / "y.npz", *words)
    session = ort.InferenceSession(steps / "digits.onnx", providers=["CPUExecutionProvider"])
    with np.load(steps / "digits.state.npz") as first:
        names = [output.name for output in session.get_outputs()]
        given = session.run(names, {**feeds, **first, "learning_rate": np.array(0.01, np.float32)})
    wanted = dict(zip(names, given, strict=True))
    assert report["losses"][0] == pytest.approx(float(wanted.pop("loss")), rel=1e-5)
    for name, array in wanted.items():
        np.testing.assert_allclose(state[name.removesuffix(".next")], array, rtol=1e-5, atol=1e-5)


def test_several_micro_batches_are_the_mean_of_their_gradients(remat, steps, tmp_path):
    """Two micro-batches of the same rows move the weights as one does, but for rounding."""
    schedule = cut(steps, "digits", 3)
    rng = np.random.default_rng(3)
    shape = read_pipeline(schedule).inputs[0].shape
    np.savez(tmp_path / "x.npz", x=rng.standard_normal(shape, np.float32), target=np.array([1, 2, 3, 4]))
    _, one = trained(remat, schedule, tmp_path / "1.npz", "--input", tmp_path / "x.npz", "--micro-batches", 1)
    _, two = trained(remat, schedule, tmp_path / "2.npz", "--input", tmp_path / "x.npz", "--micro-batches", 2)
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=1e-5, atol=1e-6)


def test_late_updates_use_the_weights_of_two_blocks_before(remat, steps, tmp_path):
    """The first two updates both see the first weights, so that losses part from the third on."""
    schedule = cut(steps, "digits", 3)
    words = ("--steps", 3, "--micro-batches", 4)
    flushed, _ = trained(remat, schedule, tmp_path / "1.npz", *words, "--flush")
    late, state = trained(remat, schedule, tmp_path / "2.npz", *words, "--no-flush")
    frozen, _ = trained(remat, schedule, tmp_path / "3.npz", "--micro-batches", 12)
    assert late["given"][:8] == frozen["given"][:8]
    assert late["given"][8:] != frozen["given"][8:]
    assert flushed["given"][4:] != late["given"][4:]
    assert any(name.endswith("#older") for name in state)


@pytest.mark.parametrize("mode", ["--flush", "--no-flush"])
def test_a_run_goes_on_from_its_state(remat, steps, tmp_path, mode):
    schedule = cut(steps, "norm", 3)
    whole, state = trained(remat, schedule, tmp_path / "1.npz", "--steps", 3, mode)
    saved = ("--state", tmp_path / "state", mode)
    trained(remat, schedule, tmp_path / "2.npz", "--steps", 2, *saved)
    rest, resumed = trained(remat, schedule, tmp_path / "3.npz", "--steps", 1, *saved, "--resume")
    assert rest["given"] == whole["given"][8:]
    assert rest["updates_before"] == 2
    assert_same(resumed, state)


def test_states_of_other_stages_are_refused(remat, steps, tmp_path):
    trained(remat, cut(steps, "digits", 3), tmp_path / "1.npz", "--state", tmp_path / "state")
    again = ("run", cut(steps, "digits", 3), "--local", "--state", tmp_path / "state")
    assert remat(*again) == (
        2,
        "",
        f"error: state {tmp_path / 'state'} exists: add --resume to go on from it, or --force to begin anew\n",
    )
    code, _, err = remat("run", cut(steps, "digits", 1), "--local", "--state", tmp_path / "state", "--resume")
    assert code == 2
    assert "belongs to other stages" in err


def test_each_weight_is_in_one_stage(steps):
    plan = read_pipeline(cut(steps, "norm", 3))
    homes = [name for stage in plan.stages for name in stage.states]
    assert len(homes) == len(set(homes))
    assert all(stage.update is not None for stage in plan.stages)
    for stage in plan.stages:
        arrives = set(stage.arrives) | set(stage.fed) | set(stage.states)
        assert set(stage.forward.reads) <= arrives


def test_a_trace_shows_each_turn(remat, steps, tmp_path):
    words = ("run", cut(steps, "digits", 3), "--local", "--trace", tmp_path / "t.json", *ONE_THREAD)
    assert remat(*words)[0] == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 3 * (4 * 2 + 1)


def test_the_picture_is_drawn(remat, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("--devices", 2, "--memory", "64MiB", "--svg", tmp_path / "p.svg", "-o", tmp_path / "stages")
    assert remat("partition", SAMPLES / "chain.onnx", *words)[0] == 0
    assert b"</svg>" in (tmp_path / "p.svg").read_bytes()


@pytest.mark.parametrize("method", ["auto", "madpipe", "pipeline-ilp", "pipedream", "joint"])
def test_every_method_plans_within_the_memory(remat, steps, tmp_path, method):
    words = ("--devices", 2, "--memory", "4MiB", "--method", method, "-o", tmp_path / "out", "--time-limit", "5s")
    code, out, _ = remat("partition", steps / "digits.onnx", *words, "--format", "json")
    report = json.loads(out)
    assert code == 0
    plan = report["plan"]
    assert max(device["peak_bytes"] for device in plan["devices"]) <= 4 * 2**20
    assert plan["bounds"]["period_ns"] <= plan["period_ns"] <= plan["sequential_ns"] * 1.01


@pytest.fixture
def steady_machine(monkeypatch):
    """A machine whose ops take as long as their results are large, whenever they are looked at."""
    measure = pipeline.profile_model

    def measured(prepared, conditions, progress):
        platform = measure(prepared, conditions, progress)
        made = [sum(prepared.graph.tensors[tensor].size_bytes for tensor in op.outputs) for op in prepared.graph.ops]
        costs = zip(platform.profile.ops, made, strict=True)
        ops = tuple(msgspec.structs.replace(cost, time_ns=5_000 + size_bytes // 4) for cost, size_bytes in costs)
        return replace(platform, profiles=(msgspec.structs.replace(platform.profile, ops=ops),))

    monkeypatch.setattr(pipeline, "profile_model", measured)


@pytest.mark.usefixtures("steady_machine")
def test_recomputing_in_stages_buys_time_where_memory_is_tight(remat, steps, tmp_path):
    """In 400 KiB stages that keep everything must wait for each other; those that run parts again need not."""
    words = ("--devices", 3, "--memory", "400KiB", "--micro-batches", 4, *ONE_THREAD, "--format", "json")
    plans = {}
    for method in ("1f1b-star", "joint"):
        asked = ("partition", steps / "norm.onnx", *words, "--method", method, "-o", tmp_path / method)
        code, out, _ = remat(*asked)
        assert code == 0
        plans[method] = json.loads(out)["plan"]
    assert sum(stage["again"] for stage in plans["1f1b-star"]["stages"]) == 0
    assert sum(stage["again"] for stage in plans["joint"]["stages"]) > 0
    assert plans["joint"]["period_ns"] < plans["1f1b-star"]["period_ns"]
    assert max(device["peak_bytes"] for device in plans["joint"]["devices"]) <= 400 * 2**10
    updates = ("--steps", 3, "--micro-batches", 4)
    one, whole = trained(remat, cut(steps, "norm", 1), tmp_path / "one.npz", *updates)
    again, parts = trained(remat, tmp_path / "joint" / "schedule.json", tmp_path / "again.npz", *updates)
    assert again["given"] == one["given"]
    assert_same(parts, whole)


def test_what_fits_nowhere_is_proved_with_the_layer(remat, steps, tmp_path):
    words = ("--devices", 4, "--memory", "64KiB", "-o", tmp_path / "out", *ONE_THREAD)
    code, out, err = remat("partition", steps / "norm.onnx", *words)
    assert (code, err) == (3, "")
    assert "impossible: some device needs at least" in out
    assert re.search(r"what needs most by itself: \S+, [0-9.]+ KiB", out)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_no_chain_says_what_crosses_each_cut(remat, tmp_path):
    """The arms of a U-Net reach over the cuts between them."""
    words = ("--devices", 3, "--memory", "128MiB", "--method", "1f1b-star", "-o", tmp_path / "out", *ONE_THREAD)
    code, out, _ = remat("partition", SAMPLES / "unet.onnx", *words, "--format", "json")
    assert code == 0
    stages = json.loads(out)["plan"]["stages"]
    assert max(len(stage["leaves"]) for stage in stages) > 1
    for stage, record in zip(stages, read_pipeline(tmp_path / "out" / "schedule.json").stages, strict=True):
        assert tuple(stage["leaves"]) == record.leaves
        sizes = onnx.load(tmp_path / "out" / record.forward.file).graph.output
        shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in sizes]
        made = {value.name: 4 * int(np.prod(shape)) for value, shape in zip(sizes, shapes, strict=True)}
        assert sum(made[name] for name in record.leaves if name in made) <= stage["cut_bytes"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--devices", "0", "--memory", "1GiB"), "devices 0 must be 1 to 1024"),
        (("--devices", "cpu,cuda:0", "--memory", "1GiB"), "devices of a pipeline are alike"),
        (("--devices", "2", "--memory", "0"), "memory '0' is no device's"),
        (("--devices", "2", "--memory", "1e99GiB"), "is not a size"),
        (("--devices", "2", "--memory", "999999999TiB"), "is no device's"),
        (("--devices", "2", "--memory", "1GiB,2GiB"), "devices of a pipeline are alike"),
        (("--devices", "2", "--memory", "1GiB", "--link", "0"), "link '0' is no link's rate"),
        (("--devices", "2", "--memory", "1GiB", "--link", "fast"), "link 'fast' is not a rate"),
        (("--devices", "2", "--memory", "1GiB", "--link", "1e99GB/s"), "is no link's rate"),
        (("--devices", "2", "--memory", "1GiB", "--micro-batches", "0"), "micro-batches 0 must be"),
        (("--devices", "2", "--memory", "1GiB", "--output", "nowhere/stages"), "directory nowhere does not exist"),
    ],
)
def test_absurd_values_are_one_line(remat, tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    code, out, err = remat("partition", SAMPLES / "chain.onnx", *words)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1


def test_a_folder_of_others_is_left_alone(remat, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    words = ("partition", SAMPLES / "chain.onnx", "--devices", 2, "--memory", "64MiB", "-o", tmp_path / "mine")
    assert "add --force" in remat(*words)[2]
    assert "it is left alone" in remat(*words, "--force")[2]
    assert (tmp_path / "mine" / "letter.txt").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--local", "--repeat", 3), "--repeat makes no sense here"),
        (("--local", "--address", "here:1"), "--local runs in this process"),
        (("--local", "--resource", "gpu"), "is not NAME=N"),
        (("--local", "--steps", 0), "--steps 0"),
        (("--local", "--no-flush", "--micro-batches", 1), "too few with --no-flush"),
        (("--local", "--learning-rate", -1), "must be above 0"),
        (("--local", "--resume"), "no state to go on from"),
    ],
)
def test_options_that_make_no_sense_are_one_line(remat, steps, words, line):
    code, out, err = remat("run", cut(steps, "digits", 3), *words)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1


def test_a_cluster_without_ray_is_one_line(remat, steps, monkeypatch):
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    code, out, err = remat("run", cut(steps, "digits", 3))
    assert (code, out) == (1, "")
    assert err == 'error: Ray is not installed: pip install "remat_cli[cluster]", or add --local\n'


@pytest.mark.parametrize("damage", ["period", "cut off", "file gone", "file elsewhere", "newer"])
def test_a_damaged_schedule_is_one_line(remat, steps, tmp_path, damage):
    folder = tmp_path / "stages"
    shutil.copytree(cut(steps, "digits", 3).parent, folder)
    schedule = folder / "schedule.json"
    content = json.loads(schedule.read_text())
    if damage == "period":
        content["period_ns"] /= 2
    elif damage == "newer":
        content["version"] = 99
    elif damage == "file elsewhere":
        content["stages"][0]["first"] = "../secret.npz"
    elif damage == "file gone":
        (folder / "stage_2.forward.onnx").unlink()
    schedule.write_text(json.dumps(content)[: 500 if damage == "cut off" else None])
    code, out, err = remat("run", schedule, "--local")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
