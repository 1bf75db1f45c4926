from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest

from remat_cli.core.errors import ConfigError, MissingDependency
from remat_cli.runtime import providers
from remat_cli.runtime._ort import import_ort
from remat_cli.runtime.providers import PROVIDERS, check_session, parse_device, require
from remat_cli.runtime.session import SessionSettings, open_session
from tests.runtime.models import skip_model

NO_CUDA = "CUDAExecutionProvider" not in import_ort().get_available_providers()


@pytest.mark.parametrize(
    ("text", "name"), [("cpu", "cpu"), ("CPU", "cpu"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), (" cuda:0 ", "cuda:0")]
)
def test_device_names(text, name):
    assert parse_device(text).name == name


@pytest.mark.parametrize("text", ["", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1"])
def test_unknown_devices_are_refused_by_name(text):
    with pytest.raises(ConfigError, match=f"device.* '{text}'"):
        parse_device(text)


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
