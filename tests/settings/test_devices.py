from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from remat_cli.base.errors import ConfigError
from remat_cli.base.processes import total_memory_bytes
from remat_cli.core.values.profile import LinkSpec
from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.settings.devices import read_device
from remat_cli.settings.settings import asked_budget, load_settings

DEVICES = Path(__file__).resolve().parents[2] / "configs" / "devices"
SHIPPED = sorted(DEVICES.glob("*.yaml"))


def device_file(tmp_path, text, name="board.yaml"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def budgets_of(devices, budget=None, **flags):
    settings = load_settings({"devices": tuple(devices), "budget": budget, **flags})
    asked = asked_budget(settings, "live")
    found = {spec.memory: asked.for_device(spec.memory) for spec in settings.devices}
    return {memory: budget.bytes or budget.fraction or budget.kind for memory, budget in found.items()}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_descriptions_are_valid_and_say_where_figures_come_from(file):
    spec = read_device(file)
    assert spec.name == file.stem
    assert spec.note
    assert not spec.is_measured
    assert load_settings({"devices": (str(file),)}).devices == (spec,)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_device_of_every_provider_can_be_described(tmp_path, provider):
    assert read_device(Path(device_file(tmp_path, f"provider: {provider}"))).provider == provider


def test_two_nodes_have_memories_and_links_of_their_own():
    first, second = (read_device(DEVICES / f"numa-node{i}.yaml") for i in (0, 1))
    assert (first.memory, second.memory) == ("cpu", "node1")
    assert (first.links[0].to, second.links[0].to) == ("node1", "cpu")
    assert first.session_device == second.session_device == "cpu:1threads"


def test_names_are_written_in_full():
    config = load_settings({"devices": ("CPU:1thread", "cuda", "openvino:cpu")})
    assert [spec.name for spec in config.devices] == ["cpu:1threads", "cuda:0", "openvino"]
    assert [(s.provider, s.memory, s.threads) for s in config.devices] == [
        ("cpu", "cpu", 1),
        ("cuda", "cuda:0", 0),
        ("openvino", "cpu", 0),
    ]


def test_a_description_in_full(tmp_path):
    text = """
    name: box
    provider: cuda
    index: 1
    options: {gpu_mem_limit: 1000, do_copy_in_default_stream: true}
    budget: 1 GiB
    links: [{to: cpu, bytes_per_second: 1.5e10, latency_ns: 5, back_bytes_per_second: 1.0e+10}]
    power_watts: 70
    flops_per_second: 8.0e+12
    """
    spec = read_device(Path(device_file(tmp_path, text)))
    assert (spec.name, spec.memory, spec.index, spec.session_device) == ("box", "cuda:1", 1, "cuda:1")
    assert spec.session_options == (("do_copy_in_default_stream", "1"), ("gpu_mem_limit", "1000"))
    assert spec.links == (LinkSpec("cpu", 1.5e10, 5, 1e10),)
    assert (spec.power_watts, spec.flops_per_second, spec.memory_bytes_per_second) == (70, 8e12, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("threads: 2", "provider must be one of cpu, "),
        ("threads: 2", "and none is given"),
        ("provider: gpu", "not 'gpu'"),
        ("{provider: cpu, thread: 2}", "unknown key 'thread'; did you mean 'threads'?"),
        ("{provider: cpu, zzz: 2}", "known keys: name, provider"),
        ("{provider: cpu, threads: two}", "threads"),
        ("{provider: cpu, threads: -1}", "threads = -1 must not be negative"),
        ("{provider: cuda, threads: 2}", "provider cuda takes no number of threads"),
        ("{provider: cpu, index: 2}", "provider cpu takes no index"),
        ("{provider: cpu, flops_per_second: 0}", "flops_per_second = 0.0 must be above 0"),
        ("{provider: cpu, budget: much}", "'much' is not a budget"),
        ("{provider: cpu, options: [a]}", "options must map names to values"),
        ("{provider: cpu, links: {to: cpu}}", "links must be a list"),
        ("{provider: cpu, links: [{to: x, bandwidth: 3}]}", "links: unknown key 'bandwidth'; known keys: to,"),
        (
            "{provider: cpu, links: [{to: x, bytes_per_second: -3}]}",
            "links to x: bytes_per_second = -3.0 must be above",
        ),
        ("{provider: cpu, links: [{to: x}]}", "missing required field `bytes_per_second`"),
        ("[cpu]", "must hold `key: value` lines"),
    ],
)
def test_bad_descriptions(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load_settings({"devices": (device_file(tmp_path, text),)})
    assert words in str(caught.value)


def test_a_description_that_is_not_there():
    with pytest.raises(ConfigError, match=r"device file no\.yaml does not exist"):
        load_settings({"devices": ("cpu", "no.yaml")})


def test_two_devices_of_one_name_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="one is named twice"):
        load_settings({"devices": ("cuda", "cuda:0")})
    with pytest.raises(ConfigError, match="'cpu' is named twice"):
        load_settings({"devices": ("cpu", device_file(tmp_path, "{name: cpu, provider: cpu, note: mine}"))})


def test_one_cpu_with_threads_is_the_cpu_under_threads():
    assert load_settings({"devices": ("cpu:2threads",)}) == load_settings({"devices": ("cpu",), "intra_op_threads": 2})
    (device,) = load_settings({"devices": ("cpu:2threads",), "intra_op_threads": 2}).devices
    assert device.name == "cpu"


def test_threads_are_given_once():
    for devices in (("cpu:2threads",), ("cpu:2threads", "cuda:0")):
        with pytest.raises(ConfigError, match="cpu:2threads computes with 2 threads, but --intra-op-threads says 3"):
            load_settings({"devices": devices, "intra_op_threads": 3})


def test_threads_for_all_devices_that_name_none():
    specs = load_settings({"devices": ("cpu", "openvino", "cuda:0"), "intra_op_threads": 3}).devices
    assert [(spec.name, spec.threads) for spec in specs] == [("cpu", 3), ("openvino", 3), ("cuda:0", 0)]


def test_budgets_by_device_or_memory():
    assert budgets_of(["cpu", "cuda"], "cpu=2GiB,cuda:0=512MiB") == {"cpu": 2**31, "cuda:0": 2**29}
    assert budgets_of(["cpu:1threads", "cuda"], "cpu:1thread=1GiB,cuda=25%") == {"cpu": 2**30, "cuda:0": Fraction(1, 4)}
    assert budgets_of(["cpu", "tensorrt"], "cpu=1GiB,tensorrt:0=1MiB") == {"cpu": 2**30, "cuda:0": 2**20}


def test_one_budget_for_several_memories():
    assert budgets_of(["cpu", "cuda"], "60%") == {"cpu": Fraction(3, 5), "cuda:0": Fraction(3, 5)}
    with pytest.raises(ConfigError, match=r"'1GiB' is one size for several memories.*--budget cpu=1GiB,cuda:0=1GiB"):
        budgets_of(["cpu", "cuda"], "1GiB")
    for text in ("min", "cpu=min,cuda:0=1GiB"):
        with pytest.raises(ConfigError, match="'min' cannot be found for several memories"):
            budgets_of(["cpu", "cuda"], text)


def test_devices_of_one_memory_share_its_budget():
    shared = ["cpu:1threads", "cpu:2threads"]
    assert budgets_of(shared, "1GiB") == {"cpu": 2**30}
    assert budgets_of(shared, "min") == {"cpu": "min"}
    assert budgets_of(shared, "cpu:1threads=1GiB,cpu:2threads=1024MiB") == {"cpu": 2**30}
    with pytest.raises(ConfigError, match="1GiB and 2GiB: cpu:1threads and cpu:2threads share memory 'cpu'"):
        budgets_of(shared, "cpu:1threads=1GiB,cpu:2threads=2GiB")


def test_budgets_that_do_not_fit_the_devices():
    with pytest.raises(ConfigError, match="budget names 'npu', which is no device here: there are cpu, cuda:0"):
        budgets_of(["cpu", "cuda"], "cpu=1GiB,npu=1GiB")
    with pytest.raises(ConfigError, match="memory 'cuda:0' has no budget: add --budget cuda:0=512MiB"):
        budgets_of(["cpu", "cuda"], "cpu=1GiB")
    with pytest.raises(ConfigError, match="no budget: add --budget 512MiB"):
        budgets_of(["cpu", "cuda"])


def test_the_hosts_memory_has_what_the_machine_has_where_no_budget_names_it():
    assert budgets_of(["cpu", "cuda"], "cuda:0=1GiB") == {"cpu": total_memory_bytes(), "cuda:0": 2**30}


def test_budgets_of_descriptions_hold_where_no_flag_speaks(tmp_path):
    gpu = device_file(tmp_path, "{provider: cuda, budget: 3GiB}")
    assert budgets_of(["cpu", gpu], "cpu=1GiB") == {"cpu": 2**30, "cuda:0": 3 * 2**30}
    assert budgets_of(["cpu", gpu], "board=1GiB,cpu=50%") == {"cpu": Fraction(1, 2), "cuda:0": 2**30}
    assert budgets_of([gpu]) == {"cuda:0": 3 * 2**30}
    assert budgets_of([gpu], "50%") == {"cuda:0": Fraction(1, 2)}
    other = device_file(tmp_path, "{provider: tensorrt, budget: 2GiB}", "other.yaml")
    with pytest.raises(ConfigError, match="board and other share memory 'cuda:0'"):
        load_settings({"devices": (gpu, other)})


def test_an_option_that_the_provider_would_ignore_is_refused(tmp_path):
    good = device_file(tmp_path, "{provider: webgpu, options: {storageBufferCacheMode: simple}}")
    assert read_device(Path(good)).options == {"storageBufferCacheMode": "simple"}
    bad = device_file(tmp_path, "{provider: webgpu, options: {preferedLayout: NHWC}}")
    with pytest.raises(ConfigError, match="webgpu knows no 'preferedLayout'; did you mean 'preferredLayout'"):
        read_device(Path(bad))
