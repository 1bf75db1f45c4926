"""Plans that span devices, run: the same bits, the planned memory to the byte, one clear line where it cannot be."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

from remat_cli import load
from remat_cli.base.errors import ConfigError, MissingDependency, ModelError, RuntimeFailure
from remat_cli.base.progress import silent
from remat_cli.commands.run import RunOptions, run_plan
from remat_cli.compiling.program import make_program
from remat_cli.compiling.record import elsewhere
from remat_cli.core.files.plan_file import write_plan
from remat_cli.core.schedule.program import CopyAction
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.segments import segment_memory
from remat_cli.runtime.segments.segment_memory import see_memory
from remat_cli.runtime.segments.segment_run import time_runs
from remat_cli.runtime.sessions.providers import UsableDevice
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled
from remat_cli.settings.settings import load_settings
from tests.compiling.placed_plans import APART, ONE, SHARED, Placed, place, prepared_model

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
NAMES = ("chain", "unet", "densenet", "transformer")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Sample models, each optimised once."""
    found = {}

    def get(name):
        if name not in found:
            found[name] = prepared_model(SAMPLES / f"{name}.onnx", tmp_path_factory.mktemp(name))
        return found[name]

    return get


@pytest.fixture(scope="module")
def chain(prepared, tmp_path_factory) -> Placed:
    return place(prepared("chain"), tmp_path_factory.mktemp("placed"), APART)


def plain_outputs(made: Placed, threads: int):
    settings = SessionSettings(intra_op_threads=threads)
    return run_profiled(made.prepared.reference_path, made.prepared.feeds, settings).outputs


def same_bits(some, others) -> bool:
    return some.keys() == others.keys() and all(some[k].tobytes() == others[k].tobytes() for k in some)


def beyond_fixed(program):
    fixed = program.planned_fixed_bytes
    return tuple(
        tuple(held - part for held, part in zip(action.planned_bytes, fixed, strict=True)) for action in program.actions
    )


@pytest.mark.parametrize("devices", [SHARED, APART], ids=["one memory", "two memories"])
@pytest.mark.parametrize("name", NAMES)
def test_every_action_gives_the_same_bits_and_holds_what_was_planned(prepared, tmp_path, name, devices):
    made = place(prepared(name), tmp_path, devices)
    with load(made.path) as plan:
        outputs = plan.run(made.prepared.feeds)
        assert same_bits(outputs, plain_outputs(made, 1))
        assert same_bits(outputs, plan.run(made.prepared.feeds))
        seen = see_memory(plan.program, made.prepared.feeds)
        assert seen.action_bytes == beyond_fixed(plan.program)
        assert len({action.device for action in plan.program.sessions}) == 2
        assert any(isinstance(a, CopyAction) for a in plan.program.actions) == (devices is APART)


def test_the_samples_compute_ops_again(prepared, tmp_path):
    assert place(prepared("densenet"), tmp_path).judged.recomputed_ops > 0


def test_copies_beside_computes_change_nothing_but_time(prepared, tmp_path):
    made = place(prepared("unet"), tmp_path, APART, overlap=True)
    with load(made.path) as plan:
        assert plan.program.overlap
        assert same_bits(plan.run(made.prepared.feeds), plain_outputs(made, 1))
        assert see_memory(plan.program, made.prepared.feeds).action_bytes == beyond_fixed(plan.program)


def test_a_plan_that_must_be_cut_for_its_budget_keeps_its_bytes(prepared, tmp_path):
    roomy = place(prepared("unet"), tmp_path, (ONE,), recompute_every=0)
    assert roomy.plan.placement.segments == 1
    tight = place(prepared("unet"), tmp_path, (ONE, ONE_MORE), recompute_every=0, budget=roomy.judged.peak)
    with load(tight.path) as plan:
        assert same_bits(plan.run(tight.prepared.feeds), plain_outputs(tight, 1))
        assert max(held for (held,) in see_memory(plan.program, tight.prepared.feeds).action_bytes) <= roomy.judged.peak


ONE_MORE = replace(ONE, name="cpu:1thread-again")


@pytest.mark.parametrize(
    "run", [partial(see_memory, seconds=0.01), lambda *words: time_runs(*words, 1, {}, seconds=0.01)]
)
def test_runs_that_tell_nothing_are_ended(chain, run):
    with load(chain.path) as plan, pytest.raises(RuntimeFailure, match=r"no progress for 0\.01 s"):
        run(plan.program, chain.prepared.feeds)


def test_timed_runs_repeat_bit_by_bit(chain):
    with load(chain.path) as plan:
        timed = time_runs(plan.program, chain.prepared.feeds, 2, {})
        assert timed.is_repeatable
        assert len(timed.runs) == 2
        assert same_bits(timed.arrays, plan.run(chain.prepared.feeds))
        for run in timed.runs:
            ends = [0, *(action.end_ns for action in run.actions)]
            assert all(action.start_ns >= end for action, end in zip(run.actions, ends, strict=False))
            assert run.total_ns >= ends[-1]


def test_out_of_memory_names_device_op_bytes_and_cap(chain):
    cap = 6 * 2**20
    with load(chain.path) as plan, pytest.raises(RuntimeFailure) as failure:
        time_runs(plan.program, chain.prepared.feeds, 1, {"cpu": cap})
    line = str(failure.value)
    assert line.startswith("out of memory on device 'cpu:1threads' (action 1 of 7) in op 'relu_3_nchwc'"), line
    assert "4,194,304 bytes more" in line
    assert f"cap of {cap:,} bytes of memory 'cpu'" in line


def test_a_large_enough_cap_does_not_change_results(chain):
    with load(chain.path) as plan:
        timed = time_runs(plan.program, chain.prepared.feeds, 1, {"cpu": 2**26, "node1": 2**26})
        assert same_bits(timed.arrays, plain_outputs(chain, 1))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda f: {}, "input 'x' is not fed; the model takes 'x'"),
        (lambda f: {**f, "z": f["x"]}, "'z' is fed but is no input; the model takes 'x'"),
        (lambda f: {"x": f["x"][:, :1]}, "input 'x' has shape"),
        (lambda f: {"x": f["x"].astype(np.float64)}, "input 'x' is of type double, the model takes float"),
    ],
)
def test_wrong_feeds_are_one_line(chain, change, line):
    with load(chain.path) as plan, pytest.raises(ModelError, match=line):
        plan.run(change(dict(chain.prepared.feeds)))


def test_a_closed_plan_says_so(chain):
    plan = load(chain.path)
    plan.close()
    assert not Path(plan.program.folder).exists()
    with pytest.raises(RuntimeFailure, match="closed: load it again"):
        plan.run(chain.prepared.feeds)


def on_another_device(made: Placed, folder: Path, device: str) -> Path:
    """The same plan with its second device's place taken by another."""
    spec = replace(named_spec(device), memory="node1")
    placement = replace(made.plan.placement, devices=(made.plan.placement.devices[0], spec))
    output = replace(made.plan.output, path=str(made.path.with_name(made.plan.output.path)))
    write_plan(folder / "other.plan.json", replace(made.plan, placement=placement, output=output))
    return folder / "other.plan.json"


def test_a_provider_that_is_missing_is_an_error_not_another_device(chain, tmp_path):
    with pytest.raises(MissingDependency, match=r"the plan needs device 'cuda:0', which is not here: .*compile again"):
        load(on_another_device(chain, tmp_path, "cuda:0"))


def test_a_device_that_was_lost_is_an_error(chain, monkeypatch):
    def lost(device: UsableDevice) -> None:
        if device.threads == 2:
            raise MissingDependency("it went away")

    monkeypatch.setattr("remat_cli.runtime.segments._segment_sessions.require_device", lost)
    with pytest.raises(MissingDependency, match="needs device 'cpu:2threads', which is not here: it went away"):
        load(chain.path)


def test_a_changed_model_is_refused(prepared, tmp_path):
    made = place(prepared("chain"), tmp_path)
    (tmp_path / "m.onnx").write_bytes((tmp_path / "m.onnx").read_bytes() + b"\0")
    with pytest.raises(ModelError, match=r"m.onnx is not the model that the plan was written with: compile again"):
        load(made.path)


def test_a_missing_model_is_refused(prepared, tmp_path):
    made = place(prepared("chain"), tmp_path)
    (tmp_path / "m.onnx").unlink()
    with pytest.raises(ModelError, match=r"the plan's model m.onnx is not beside"):
        load(made.path)


def test_a_damaged_plan_is_refused(chain, tmp_path):
    plan = json.loads(chain.path.read_text())
    plan["schedule"]["steps"] = plan["schedule"]["steps"][:-1]
    plan["output"]["path"] = str(chain.path.with_name("m.onnx"))
    (tmp_path / "bad.json").write_text(json.dumps(plan))
    with pytest.raises(ModelError, match=r"schedule is not legal.*compile again"):
        load(tmp_path / "bad.json")


def test_a_plan_whose_devices_were_edited_is_refused(chain, tmp_path):
    plan = json.loads(chain.path.read_text())
    plan["placement"]["devices"] = plan["placement"]["devices"][:1]
    plan["output"]["path"] = str(chain.path.with_name("m.onnx"))
    (tmp_path / "bad.json").write_text(json.dumps(plan))
    with pytest.raises(ModelError, match="not one profile for each device"):
        load(tmp_path / "bad.json")


@pytest.mark.parametrize("name", ["m.onnx", "x.npz"])
def test_results_never_take_the_place_of_what_is_read(chain, name):
    target = chain.path.with_name(name)
    np.savez(chain.path.with_name("x.npz"), x=np.zeros(1))
    before = target.read_bytes()
    config = load_settings({"output": target, "inputs": chain.path.with_name("x.npz"), "force": True})
    with pytest.raises(ConfigError, match="would overwrite"):
        run_plan(chain.path, RunOptions(), config, silent())
    trace = RunOptions(trace=chain.path.with_name("both"))
    with pytest.raises(ConfigError, match="would overwrite"):
        run_plan(chain.path, trace, load_settings({"output": chain.path.with_name("both")}), silent())
    assert target.read_bytes() == before


def test_an_estimate_is_from_nowhere_else(chain):
    profiles = tuple(
        replace(profile, provenance=replace(profile.provenance, cpu="a data sheet", measured=False))
        for profile in chain.plan.placement.profiles
    )
    assert elsewhere(replace(chain.plan, placement=replace(chain.plan.placement, profiles=profiles))) == ()


def test_a_runtime_without_counters_hides_what_is_held(chain, monkeypatch, tmp_path):
    program = make_program(chain.plan, chain.path, tmp_path)
    job = segment_memory.ProgramJob(program, segment_memory.pack_all(chain.prepared.feeds))
    assert not any(segment_memory.see_memory_here(job, lambda done, total: None).is_hidden)
    known = segment_memory.read_runs

    def without(path):
        (run, *_) = known(path)
        return [replace(run, events=tuple(replace(event, requested_bytes=0, growth_bytes=0) for event in run.events))]

    monkeypatch.setattr(segment_memory, "read_runs", without)
    assert all(segment_memory.see_memory_here(job, lambda done, total: None).is_hidden)


def test_a_plan_from_elsewhere_is_told(chain):
    assert elsewhere(chain.plan) == ()
    profiles = tuple(
        replace(profile, provenance=replace(profile.provenance, cpu="Z80", runtime_version="0.1"))
        for profile in chain.plan.placement.profiles
    )
    (line,) = elsewhere(replace(chain.plan, placement=replace(chain.plan.placement, profiles=profiles)))
    assert "Z80 there" in line
    assert "runtime version" in line
    assert line.count("CPU") == 1


def test_weights_are_in_no_segment(prepared, tmp_path):
    made = place(prepared("resnet"), tmp_path)
    (tmp_path / "work").mkdir()
    program = make_program(made.plan, made.path, tmp_path / "work")
    stored = sum(weight.size_bytes for weight in program.weights.values())
    assert stored > 0.9 * made.prepared.graph.weight_bytes
    models = sum((tmp_path / "work" / action.segment.file).stat().st_size for action in program.sessions)
    assert models < 0.2 * stored


def anonymous_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux to tell memory apart")
def test_a_weight_that_many_sessions_read_is_there_once(tmp_path):
    size = 2**24
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,{size // 4}] x) => (float[1,1] y) <float[1,{size // 4}] w> {{
        a = Mul(x, w)
        b = ReduceSum(a)
        c = Mul(b, w)
        d = ReduceSum(c)
        e = Mul(d, w)
        f = ReduceSum(e)
        g = Mul(f, w)
        y = ReduceSum(g)
    }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, size // 4), np.float32), "w"))
    onnx.save(model, tmp_path / "model.onnx")
    made = place(prepared_model(tmp_path / "model.onnx", tmp_path), tmp_path, block=1, recompute_every=0)
    before = anonymous_bytes()
    with load(made.path) as plan:
        assert sum("w" in action.segment.weights for action in plan.program.sessions) == 4
        assert anonymous_bytes() - before < 1.5 * size  # four copies otherwise; malloc may hold what reading it took
