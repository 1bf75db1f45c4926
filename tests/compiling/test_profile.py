"""Profiles of several devices: what is measured where, what is kept, and what is estimated."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from remat_cli.base.errors import MissingDependency
from remat_cli.base.progress import Advance, Event, listening, silent
from remat_cli.compiling import profile as under_test
from remat_cli.compiling.placed import copy_costs, profile_apart
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.core.values.profile import DeviceSpec, LinkCost, LinkSpec, OpCost
from remat_cli.runtime.measure.findings import OpFinding
from remat_cli.runtime.measure.profilers import Measured, WholeTime
from remat_cli.runtime.sessions.providers import is_present, parse_device
from remat_cli.sessions import profile as sessions_profile
from remat_cli.settings.settings import load_settings

CHAIN = Path(__file__).resolve().parents[2] / "sample_models" / "chain.onnx"
APART = DeviceSpec("other", "coreml", memory="other", power_watts=7.0)
"""A device of another provider, whose sessions `apart` opens on the CPU: ops are measured by themselves."""


class Bar:
    """Remembers how far it was."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.progress = listening(self.events.append)

    @property
    def seen(self) -> list[tuple[int, int]]:
        return [(event.done, event.total) for event in self.events if isinstance(event, Advance)]


@pytest.fixture
def apart(monkeypatch):
    """Sessions of any device are opened on the CPU."""
    honest = under_test.device_settings

    def on_cpu(spec, settings):
        return honest(msgspec.structs.replace(spec, provider="cpu", threads=1), settings)

    for place in (under_test, profile_apart, copy_costs):
        monkeypatch.setattr(place, "device_settings", on_cpu)
    monkeypatch.setattr(sessions_profile, "require_device", lambda device: None)
    monkeypatch.setattr(sessions_profile, "must_estimate", lambda spec, may_estimate: False)


@pytest.fixture
def config(tmp_path):
    devices = ("cpu:1threads", "cpu:2threads")
    return load_settings({"cache_dir": str(tmp_path / "cache"), "devices": devices}).conditions


def profile(model, conditions, specs, progress):
    """Profiles and links of a model on these devices."""
    found = profile_model(model, msgspec.structs.replace(conditions, devices=tuple(specs)), progress)
    return found.profiles, found.links


@pytest.fixture
def model(tmp_path, config):
    return prepare(CHAIN, config, tmp_path, silent())


@pytest.fixture
def quiet_minute(monkeypatch):
    """A run of a known model takes as long as its costs say, however busy this machine is."""
    monkeypatch.setattr(under_test, "is_wrong", lambda prepared, expected_ns, seen: False)


@pytest.mark.usefixtures("quiet_minute")
def test_cpus_are_measured_inside_the_model_with_their_own_threads(model, config):
    bar = Bar()
    profiles, links = profile(model, config, config.devices, bar.progress)
    names = [op.name for op in model.graph.ops]
    assert [one.device for one in profiles] == ["cpu:1threads", "cpu:2threads"]
    assert [one.provenance.intra_op_threads for one in profiles] == [1, 2]
    assert all([cost.name for cost in one.ops] == names for one in profiles)
    assert all(one.memory == "cpu" and one.call_ns > 0 and not one.is_opaque for one in profiles)
    assert all(one.run_ns is not None for one in profiles)
    assert links == ()
    assert bar.seen == sorted(bar.seen)
    assert bar.seen[-1] == (2 * len(names), 2 * len(names))
    quiet = Bar()
    assert profile(model, config, config.devices, quiet.progress)[0] == profiles
    assert quiet.seen == []


@pytest.mark.usefixtures("quiet_minute")
def test_other_providers_are_measured_op_by_op(model, config, apart):
    profiles, links = profile(model, config, (config.devices[0], APART), silent())
    other = profiles[1]
    assert [cost.name for cost in other.ops] == [op.name for op in model.graph.ops]
    assert (other.is_opaque, other.call_ns, other.memory, other.power_watts) == (True, 0, "other", 7.0)
    assert all(cost.workspace_bytes == 0 for cost in other.ops)
    assert other.unsupported == ()
    assert other.run_ns is not None
    assert other.weight_bytes == model.graph.weight_bytes
    assert other.model_sha256 == profiles[0].model_sha256
    assert {(link.source, link.target) for link in links} == {("cpu", "other"), ("other", "cpu")}
    assert all(link.measured for link in links)
    assert profile(model, config, (config.devices[0], APART), silent()) == (profiles, links)


def poison(cache_dir: Path, change: str, *, forgets: bool) -> None:
    """Change cached times; with `forgets` they seem to be other models' costs."""
    with sqlite3.connect(cache_dir / "profiles.sqlite3") as database:
        database.execute(f"UPDATE costs SET time_ns = max(1, {change})")
        if forgets:
            database.execute("DELETE FROM models")
    database.close()


@pytest.fixture
def steady_machine(monkeypatch):
    """A machine whose ops take 1 ms, 2 ms and so on whenever they are looked at, and whole runs as long as these."""

    def measured(model, feeds, names, request, advance, beside):
        advance(0, 1)
        advance(1, 1)
        ops = tuple(OpCost(name, 10**6 * number) for number, name in enumerate(names, 1))
        whole.append(sum(cost.time_ns for cost in ops))
        return Measured(ops, whole[-1], 0)

    whole: list[int] = []
    monkeypatch.setattr(under_test, "measure", measured)
    monkeypatch.setattr(under_test, "time_whole", lambda *words: WholeTime(whole[-1], 0.0))
    monkeypatch.setattr(under_test, "are_others_in_the_way", lambda before: False)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        "time_ns * 10",
        "time_ns / 10",
        "CASE WHEN time_ns >= (SELECT avg(time_ns) FROM costs) THEN time_ns * 10 ELSE time_ns END",
    ],
)
@pytest.mark.usefixtures("steady_machine")
def test_costs_that_a_run_contradicts_are_measured_again(tmp_path, monkeypatch, change, forgets):
    conditions = load_settings({"cache_dir": str(tmp_path / "cache")}).conditions
    sample = CHAIN.with_name("resnet.onnx")
    profile_model(prepare(sample, conditions, tmp_path, silent()), conditions, silent())
    poison(tmp_path / "cache", change, forgets=forgets)
    poisoned = stored_ns(tmp_path / "cache")
    bar = Bar()
    measured = profile_model(prepare(sample, conditions, tmp_path, silent()), conditions, bar.progress)
    again = sum_ns(measured)
    assert bar.seen
    assert not {cost.time_ns for cost in measured.profile.ops} <= poisoned
    monkeypatch.setattr(under_test, "is_wrong", lambda prepared, expected_ns, seen: False)
    kept = sum_ns(profile_model(prepare(sample, conditions, tmp_path, silent()), conditions, silent()))
    assert kept == again


def stored_ns(cache) -> set[int]:
    """Costs that the cache holds."""
    database = sqlite3.connect(cache / "profiles.sqlite3")
    found = {int(time) for (time,) in database.execute("SELECT time_ns FROM costs")}
    database.close()
    return found


def sum_ns(platform) -> int:
    return sum(cost.time_ns for cost in platform.profile.ops)


@pytest.mark.parametrize(
    ("seen_ns", "noise_percent", "is_wrong"),
    [
        (100e6, 0.0, False),
        (85e6, 0.0, False),
        (70e6, 0.0, True),
        (70e6, 30.0, False),
        (150e6, 0.0, False),
        (250e6, 0.0, True),
    ],
)
def test_noise_explains_a_difference_up_to_a_limit(model, seen_ns, noise_percent, is_wrong):
    seen = WholeTime(int(seen_ns), noise_percent)
    assert under_test.is_wrong(model, 100_000_000, seen) is is_wrong


def test_an_interrupted_run_goes_on_where_it_was(model, config, apart, monkeypatch):
    asked = []

    def two_and_then_stop(jobs, request, call, keep, advance):
        asked.append([job.name for job in jobs])
        for number, job in enumerate(jobs):
            if len(asked) == 1 and number == 2:
                raise KeyboardInterrupt
            reason = "no kernel" if number == 1 else ""
            keep(OpFinding(job.name, None if reason else 5, reason=reason))

    monkeypatch.setattr(profile_apart, "measure_ops", two_and_then_stop)
    with pytest.raises(KeyboardInterrupt):
        profile(model, config, (APART,), silent())
    (found,), _ = profile(model, config, (APART,), silent())
    assert len(asked[0]) == len(set(model.signatures)) + 1
    assert asked[1] == asked[0][2:]
    refused = {op.name for op in found.unsupported}
    assert refused
    assert {cost.name for cost in found.ops} | refused == {op.name for op in model.graph.ops}
    assert not refused & {cost.name for cost in found.ops}
    assert profile(model, config, (APART,), silent())[0] == (found,)
    assert len(asked) == 2


def test_a_device_that_is_not_here_is_estimated_only_when_asked(model, config):
    absent = DeviceSpec(
        "accelerator",
        "cuda",
        memory="cuda:0",
        flops_per_second=1e12,
        memory_bytes_per_second=1e11,
        launch_ns=5000,
        links=(LinkSpec("cpu", 1e10, 9000, back_bytes_per_second=5e9),),
    )
    if is_present(parse_device("cuda:0")):
        pytest.skip("a CUDA device is here")
    specs = (config.devices[0], absent)
    bar = Bar()
    with pytest.raises(MissingDependency):
        profile(model, config, specs, bar.progress)
    assert bar.seen == []  # nothing is measured in vain
    profiles, links = profile(model, msgspec.structs.replace(config, estimate=True), specs, silent())
    assert [one.provenance.measured for one in profiles] == [True, False]
    assert profiles[1].model_sha256 == model.reference_sha256
    assert all(cost.time_ns >= 5000 for cost in profiles[1].ops)
    assert set(links) == {
        LinkCost("cuda:0", "cpu", 9000, 1e10, measured=False),
        LinkCost("cpu", "cuda:0", 9000, 5e9, measured=False),
    }


@pytest.mark.parametrize(
    ("devices", "portable", "level"),
    [
        (("cpu",), False, "all"),
        (("cpu",), True, "extended"),
        (("cpu:1threads", "cpu:2threads"), False, "all"),
        (("cpu", "openvino"), False, "basic"),
        (("cuda:0",), True, "basic"),
    ],
)
def test_only_the_cpu_gets_ops_of_its_own(devices, portable, level):
    assert load_settings({"devices": devices, "portable": portable}).conditions.optimization == level


def test_at_the_basic_level_ops_are_standard(tmp_path):
    config = load_settings({"cache_dir": str(tmp_path), "devices": ("cpu", "openvino")}).conditions
    sample = CHAIN.with_name("unet.onnx")
    model = prepare(sample, config, tmp_path, silent())
    assert {op.domain for op in model.graph.ops} == {""}
    usual = prepare(sample, load_settings({"cache_dir": str(tmp_path)}).conditions, tmp_path, silent())
    assert {op.domain for op in usual.graph.ops} != {""}


def test_openvino_is_profiled(tmp_path):
    if not is_present(parse_device("openvino")):
        pytest.skip("no device that OpenVINO takes is here")
    config = load_settings({"cache_dir": str(tmp_path / "cache"), "devices": ("cpu:1threads", "openvino")}).conditions
    model = prepare(CHAIN, config, tmp_path, silent())
    (first, second), links = profile(model, config, config.devices, silent())
    assert (first.is_opaque, second.is_opaque) == (False, True)
    assert second.ops
    assert {op.name for op in (*second.ops, *second.unsupported)} == {op.name for op in model.graph.ops}
    assert links == ()


@pytest.mark.parametrize(
    ("slower", "is_busy", "again"),
    [
        (3, True, 0),
        (3, False, 1),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((20, True, 1), (0.3, True, 1))),
    ],
)
def test_costs_are_believed_where_other_programs_slow_a_run_down(tmp_path, monkeypatch, slower, is_busy, again):
    conditions = load_settings({"cache_dir": str(tmp_path / "cache")}).conditions
    profile_model(prepare(CHAIN, conditions, tmp_path, silent()), conditions, silent())
    prepared = prepare(CHAIN, conditions, tmp_path, silent())
    monkeypatch.setattr(under_test, "expected_ns_of", lambda prepared, known: 10**9)
    monkeypatch.setattr(under_test, "time_whole", lambda *words: WholeTime(int(slower * 10**9), 0.0))
    monkeypatch.setattr(under_test, "are_others_in_the_way", lambda before: is_busy)
    bar = Bar()
    profile_model(prepared, conditions, bar.progress)
    assert bool(bar.seen) == bool(again)
