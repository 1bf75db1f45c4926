from __future__ import annotations

import importlib.util
import platform
import sys
from types import SimpleNamespace

import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import ConfigError, MissingDependency, RuntimeFailure
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.devices.provider_table import REPEATABLE_CUDA
from remat_cli.runtime.sessions import providers
from remat_cli.runtime.sessions._ort import import_ort
from remat_cli.runtime.sessions.providers import (
    PROVIDERS,
    check_session,
    configure,
    is_present,
    must_estimate,
    parse_device,
    require,
    require_device,
)
from remat_cli.runtime.sessions.session import (
    SessionSettings,
    device_settings,
    open_session,
    session_device,
    session_options,
)
from tests.runtime.models import save_model, skip_model, untyped, value

NO_CUDA = "CUDAExecutionProvider" not in import_ort().get_available_providers()


@pytest.mark.parametrize(
    ("text", "name", "memory"),
    [
        ("cpu", "cpu", "cpu"),
        ("CPU", "cpu", "cpu"),
        ("cpu:1thread", "cpu:1threads", "cpu"),
        ("cpu:8threads", "cpu:8threads", "cpu"),
        ("cuda", "cuda:0", "cuda:0"),
        (" cuda:1 ", "cuda:1", "cuda:1"),
        ("tensorrt:1", "tensorrt:1", "cuda:1"),
        ("openvino:cpu", "openvino", "cpu"),
        ("openvino:gpu:2threads", "openvino:gpu:2threads", "cpu"),
        ("dml", "dml:0", "dml:0"),
        ("migraphx:0", "migraphx:0", "migraphx:0"),
        ("coreml", "coreml", "cpu"),
        ("webgpu", "webgpu:0", "webgpu:0"),
        ("webgpu:1", "webgpu:1", "webgpu:1"),
    ],
)
def test_device_names(text, name, memory):
    device = parse_device(text)
    assert (device.name, device.memory) == (name, memory)
    assert parse_device(device.name) == device


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "cpu:0", "cpu:0threads", "cpu:1thread:2threads", "cuda:", "cuda:x", "cuda:-1", "cuda:0:1", "coreml:1"],
)
def test_unknown_devices_are_refused_by_name(text):
    with pytest.raises(ConfigError, match=f"device.* '{text}'"):
        parse_device(text)


def test_rocm_names_what_took_its_place():
    with pytest.raises(ConfigError, match=r"'rocm:1': ONNX Runtime has no ROCm provider any more.* write migraphx:1"):
        parse_device("rocm:1")


def test_every_record_knows_its_provider():
    known = import_ort().get_all_providers()
    for name, provider in PROVIDERS.items():
        assert provider.name == name
        assert provider.runtime_name in known
        assert provider.install
        assert provider.is_measured == (name in {"cpu", "cuda", "openvino", "webgpu"})


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("cpu:2threads", {}),
        ("cuda:1", {"device_id": "1", **dict(REPEATABLE_CUDA)}),
        ("tensorrt:1", {"device_id": "1"}),
        ("openvino", {"device_type": "CPU"}),
        ("openvino:npu:3threads", {"device_type": "NPU", "num_of_threads": "3"}),
    ],
)
def test_options_of_providers(text, options):
    assert parse_device(text).provider_options == options


def test_a_session_is_named_by_provider_and_gets_the_options():
    spec = DeviceSpec("mine", "openvino", threads=2, options={"device_type": "GPU", "precision": "FP32"})
    settings = device_settings(spec, SessionSettings(custom_ops=("a.so",)))
    assert (settings.device, settings.is_alone, settings.custom_ops) == ("openvino:2threads", True, ("a.so",))
    device = session_device(settings)
    assert device.provider_options == {"device_type": "GPU", "num_of_threads": "2", "precision": "FP32"}
    cuda = session_device(device_settings(DeviceSpec("big", "cuda", "cuda:1", index=1), SessionSettings()))
    assert cuda.session_providers == [("CUDAExecutionProvider", {"device_id": "1", **dict(REPEATABLE_CUDA)})]


def test_cpu_is_there():
    require(PROVIDERS["cpu"])


@pytest.mark.skipif(not NO_CUDA, reason="this runtime has CUDA")
def test_cuda_without_its_package_says_what_to_install(tmp_path):
    with pytest.raises(MissingDependency, match=r"onnxruntime-gpu.*pip install \"remat_cli\[gpu\]\".*NVIDIA GPU"):
        open_session(skip_model(tmp_path / "m.onnx"), SessionSettings(device="cuda:0"))


def gpu_runtime(tmp_path, monkeypatch):
    """A runtime that was built with CUDA, in a folder without any library."""
    module = SimpleNamespace(
        __version__="9.9",
        __file__=str(tmp_path / "onnxruntime" / "__init__.py"),
        get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
        preload_dlls=lambda: None,
    )
    monkeypatch.setattr(providers, "import_ort", lambda: module)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    return tmp_path / "onnxruntime" / "capi"


def test_cuda_without_a_driver_names_it(tmp_path, monkeypatch):
    gpu_runtime(tmp_path, monkeypatch)
    monkeypatch.setattr(providers, "_load_problem", lambda name: f"{name}: cannot open shared object file")
    with pytest.raises(MissingDependency, match=r"driver is missing: libcuda\.so\.1"):
        require(PROVIDERS["cuda"])


def test_cuda_without_a_library_names_it(tmp_path, monkeypatch):
    folder = gpu_runtime(tmp_path, monkeypatch)
    monkeypatch.setattr(
        providers, "_load_problem", lambda name: "libcudnn.so.9: cannot open" if "providers_cuda" in name else ""
    )
    with pytest.raises(MissingDependency, match=r"libonnxruntime_providers_cuda\.so is not in the package"):
        require(PROVIDERS["cuda"])
    folder.mkdir(parents=True)
    (folder / "libonnxruntime_providers_cuda.so").touch()
    with pytest.raises(MissingDependency, match=r"onnxruntime-gpu 9\.9 does not load: libcudnn\.so\.9"):
        require(PROVIDERS["cuda"])
    monkeypatch.setattr(providers, "_load_problem", lambda name: "")
    require(PROVIDERS["cuda"])


def test_silent_fall_back_is_an_error():
    fallen = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(MissingDependency, match=r"'cuda:0' could not be used: .* fell back to CPUExecutionProvider"):
        check_session(fallen, parse_device("cuda"))
    check_session(fallen, parse_device("cpu"))


class FakeDriver:
    """NVIDIA's driver with so many GPUs; `status` is what every call returns."""

    def __init__(self, count, status=0):
        self.count, self.status = count, status

    def cuInit(self, flags):  # noqa: N802
        return self.status

    def cuDeviceGetCount(self, pointer):  # noqa: N802
        pointer._obj.value = self.count
        return self.status


def test_a_gpu_of_a_number_that_is_not_there(tmp_path, monkeypatch):
    folder = gpu_runtime(tmp_path, monkeypatch)
    folder.mkdir(parents=True)
    (folder / "libonnxruntime_providers_cuda.so").touch()
    monkeypatch.setattr(providers, "_load_problem", lambda name: "")
    monkeypatch.setattr(providers.ctypes, "CDLL", lambda name: FakeDriver(1))
    require_device(parse_device("cuda:0"))
    with pytest.raises(MissingDependency, match="'cuda:1' is not there: the driver finds 1 GPU, from 0 on"):
        require_device(parse_device("cuda:1"))
    monkeypatch.setattr(providers.ctypes, "CDLL", lambda name: FakeDriver(0, status=3))
    require_device(parse_device("cuda:1"))  # a driver that does not answer says nothing


def hardware(kind):
    device = SimpleNamespace(type=f"HardwareType.{kind}")
    return SimpleNamespace(ep_name="OpenVINOExecutionProvider", device=device, ep_metadata={})


def plugin_runtime(monkeypatch, offered, problem=""):
    """A stock runtime with OpenVINO's plugin package, which offers these devices."""

    def register(name, library):
        if problem:
            raise RuntimeError(problem)

    module = SimpleNamespace(
        __version__="9.9",
        get_available_providers=lambda: ["CPUExecutionProvider"],
        get_ep_devices=lambda: [SimpleNamespace(ep_name="CPUExecutionProvider"), *map(hardware, offered)],
        register_execution_provider_library=register,
        set_default_logger_severity=lambda severity: None,
    )
    monkeypatch.setattr(providers, "import_ort", lambda: module)
    monkeypatch.setitem(
        sys.modules, "onnxruntime_ep_openvino", SimpleNamespace(get_library_path=lambda: "/lib/plugin.so")
    )


def test_a_plugin_that_is_not_installed(monkeypatch):
    plugin_runtime(monkeypatch, [])
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_openvino", None)
    with pytest.raises(MissingDependency, match=r"package onnxruntime-ep-openvino .*remat_cli\[openvino\]"):
        require(PROVIDERS["openvino"])


def test_a_plugin_that_offers_nothing_here(monkeypatch):
    plugin_runtime(monkeypatch, [])
    with pytest.raises(MissingDependency, match=r"offers no device on this machine: it takes Intel.* works on others"):
        require(PROVIDERS["openvino"])
    assert not is_present(parse_device("openvino"))


def test_a_plugin_that_does_not_load(monkeypatch):
    plugin_runtime(monkeypatch, ["CPU"], "libtbb.so.12: cannot open")
    with pytest.raises(MissingDependency, match=r"does not load into onnxruntime 9\.9: libtbb\.so\.12"):
        require(PROVIDERS["openvino"])
    plugin_runtime(monkeypatch, ["CPU"], "EP library is already registered under OpenVINOExecutionProvider")
    require(PROVIDERS["openvino"])


def test_a_plugin_device_of_another_kind(monkeypatch):
    plugin_runtime(monkeypatch, ["CPU", "NPU"])
    require_device(parse_device("openvino:npu"))
    with pytest.raises(MissingDependency, match="'openvino:gpu' is not there: OpenVINO finds CPU, NPU here"):
        require_device(parse_device("openvino:gpu"))


class FakeOptions:
    """Session options that remember what was asked of them."""

    def __init__(self):
        self.entries, self.devices, self.intra_op_num_threads = {}, [], 0

    def add_session_config_entry(self, key, value):
        self.entries[key] = value

    def add_provider_for_devices(self, devices, options):
        self.devices.append(([entry.device.type for entry in devices], options))


ALONE = {"session.disable_cpu_ep_fallback": "1"}


def test_a_plugin_is_added_by_device(monkeypatch):
    plugin_runtime(monkeypatch, ["CPU", "GPU"])
    options = FakeOptions()
    assert configure(options, parse_device("openvino:gpu:2threads"), is_alone=True) is None
    assert options.devices == [(["HardwareType.GPU"], {"num_of_threads": "2"})]
    assert options.entries == ALONE


def test_a_built_in_provider_is_opaque_or_with_the_cpu(tmp_path, monkeypatch):
    gpu_runtime(tmp_path, monkeypatch)
    alone, together = FakeOptions(), FakeOptions()
    placed = ("CUDAExecutionProvider", {"device_id": "0", **dict(REPEATABLE_CUDA)})
    assert configure(alone, parse_device("cuda"), is_alone=True) == [placed]
    assert configure(together, parse_device("cuda"), is_alone=False) == [placed, "CPUExecutionProvider"]
    assert (alone.entries, together.entries) == (ALONE, {})


def test_threads_of_the_name_reach_the_session(tmp_path):
    options = session_options(SessionSettings(intra_op_threads=1))
    path = skip_model(tmp_path / "m.onnx")
    session = open_session(path, SessionSettings(device="cpu:3threads", is_alone=True), options)
    assert session.get_session_options().intra_op_num_threads == options.intra_op_num_threads == 3


@pytest.mark.skipif(
    "OpenVINOExecutionProvider" in import_ort().get_available_providers()
    or importlib.util.find_spec("onnxruntime_ep_openvino") is None,
    reason="needs stock onnxruntime with the plugin onnxruntime-ep-openvino",
)
def test_openvino_by_its_real_plugin(tmp_path):
    """On an Intel processor it runs; on others one line says why not."""
    settings = SessionSettings(device="openvino:1threads", is_alone=True)
    path = skip_model(tmp_path / "m.onnx")
    if is_present(parse_device("openvino")):
        assert "OpenVINOExecutionProvider" in open_session(path, settings).get_providers()
    else:
        for _ in range(2):  # the library is registered once only
            with pytest.raises(MissingDependency, match="offers no device on this machine: it takes Intel"):
                open_session(path, settings)


@pytest.mark.skipif(not NO_CUDA, reason="this runtime has CUDA")
def test_estimates_are_made_only_where_asked_for():
    gpu, board = DeviceSpec("gpu", "cuda", "cuda:0"), DeviceSpec("board", "cpu", is_elsewhere=True)
    assert not must_estimate(DeviceSpec("here", "cpu"), may_estimate=True)
    assert must_estimate(gpu, may_estimate=True)
    assert must_estimate(board, may_estimate=True)
    with pytest.raises(MissingDependency, match=r"onnxruntime-gpu.*--device FILE\.yaml --estimate"):
        must_estimate(gpu, may_estimate=False)
    with pytest.raises(MissingDependency, match=r"'board' is described as another machine's.* FILE\.yaml --estimate"):
        must_estimate(board, may_estimate=False)
    described = DeviceSpec("gpu", "cuda", "cuda:0", flops_per_second=1e12, memory_bytes_per_second=1e11)
    with pytest.raises(MissingDependency, match=r"by estimated costs: --estimate$"):
        must_estimate(described, may_estimate=False)
    assert not is_present(parse_device("cuda"))


NO_OPENVINO = "OpenVINOExecutionProvider" not in import_ort().get_available_providers()


@pytest.mark.skipif(NO_OPENVINO, reason="needs onnxruntime-openvino in place of onnxruntime")
def test_built_in_openvino_refuses_what_it_cannot_run(tmp_path, capfd):
    node, square = helper.make_node, [2, 2]
    ends = [value("x", TensorProto.FLOAT, square)], untyped("y")
    good = save_model(tmp_path / "good.onnx", [node("Relu", ["x"], ["y"], name="r")], *ends)
    bad = save_model(tmp_path / "bad.onnx", [node("Det", ["x"], ["y"], name="d")], *ends)
    alone = SessionSettings(device="openvino:1threads", is_alone=True)
    assert open_session(good, alone).get_providers()[0] == "OpenVINOExecutionProvider"
    with pytest.raises(RuntimeFailure, match="fallback to CPU EP has been explicitly disabled"):
        open_session(bad, alone)
    with pytest.raises(RuntimeFailure, match="Invalid OpenVINO EP option: bogus"):
        open_session(good, SessionSettings(device="openvino", provider_options=(("bogus", "1"),)))
    assert capfd.readouterr().out == ""  # the runtime's own retry on the CPU would print
