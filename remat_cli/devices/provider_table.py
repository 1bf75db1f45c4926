"""The table of execution providers, one record each, and the devices that are named after them."""

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.core.values.buffer_cache import BufferCache
from remat_cli.core.values.gate_form import GateForm
from remat_cli.core.values.profile import HOST_MEMORY, DeviceSpec
from remat_cli.devices.mixing import Mixing

SESSION_THREADS = "intra_op_num_threads"


class Plugin(msgspec.Struct, frozen=True):
    """A package that adds a provider to stock onnxruntime as a library.

    `module` is imported for `get_library_path()`. `takes` says on which hardware it offers devices; `otherwise` is
    what to do on other hardware. `is_probed`: it offers devices that may turn out to be unusable, and then ends the
    process, so that they are tried in another one first.
    """

    package: str
    module: str
    takes: str
    otherwise: str
    is_probed: bool = False


class Fault(msgspec.Struct, frozen=True):
    """What a provider says when its device fails (`sign` is in it), and the same in plain words.

    `is_lost`: nothing runs on the device any more in that process.
    """

    sign: str
    words: str
    is_lost: bool = False


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One execution provider of ONNX Runtime.

    `package` is the distribution that contains it, `install` how to get it. `memory` is where its tensors are: `cpu` is
    the host's, any other name gets the device's number behind it. `is_opaque`: it compiles what it is given, so that
    neither order nor memory can be enforced inside. `is_measured`: it was run by the authors. `has_counters`: the
    runtime's profile says what its sessions hold. `has_index` says whether device names carry a number (`cuda:1`);
    `kinds` are the values of the option `device_type` that names may carry (`openvino:gpu`). `thread_option` is how a
    number of threads is passed: SESSION_THREADS to the session, any other name to the provider; empty: not at all.
    `options` are those it is always given, `known_options` all that it reads where it ignores others without a word
    (empty: it refuses them). `session_config` are entries that its sessions need. `is_asynchronous`: a run returns
    before its ops are done, and only fetching a value waits for them. `takes_turns`: threads may not call it at once.
    `shares_weights`: sessions can share a weight in its memory. `gives_outputs`: what a session makes there may outlive
    the call; else it is put into buffers of ours. `faults` are told in plain words. `cache` is how it takes buffers in
    its memory, under its options as they are here. `mixing` is how one session keeps some ops on the host beside it
    (None: it cannot, or that was not seen). `gates` is the form of gates for it (None: it compiles what they would hold
    in order). `counts_in_place`: its Size reads no data, so that nothing is copied to the host for a gate.
    `largest_tensor_bytes` is what a kernel can be given of one tensor on the least device (None: all that there is).
    `libraries` are file names of its provider library per operating system, `drivers` those of the driver that must be
    installed first.
    """

    name: str
    runtime_name: str
    package: str
    install: str
    needs: str = ""
    memory: str = HOST_MEMORY
    is_opaque: bool = False
    is_measured: bool = False
    has_counters: bool = False
    has_index: bool = False
    kinds: tuple[str, ...] = ()
    thread_option: str = ""
    options: tuple[tuple[str, str], ...] = ()
    known_options: tuple[str, ...] = ()
    is_asynchronous: bool = False
    takes_turns: bool = False
    shares_weights: bool = True
    gives_outputs: bool = True
    session_config: tuple[tuple[str, str], ...] = ()
    faults: tuple[Fault, ...] = ()
    cache: BufferCache | None = None
    mixing: Mixing | None = None
    gates: GateForm | None = None
    counts_in_place: bool = False
    largest_tensor_bytes: int | None = None
    plugin: Plugin | None = None
    libraries: tuple[tuple[str, str], ...] = ()
    drivers: tuple[tuple[str, str], ...] = ()

    @property
    def needs_sessions(self) -> bool:
        """Whether order or costs do not show inside one session."""
        return self.is_opaque or self.is_asynchronous

    def memory_of(self, index: int) -> str:
        """The name of the memory in which a device's tensors are."""
        return self.memory if self.memory == HOST_MEMORY else f"{self.memory}:{index}"


REPEATABLE_CUDA = (
    ("use_tf32", "0"),
    ("cudnn_conv_algo_search", "HEURISTIC"),
    ("cudnn_conv_use_max_workspace", "0"),
)
"""float32 as on the CPU, the same algorithm in every session (the default benchmarks them), and little workspace."""
WEBGPU_OPTIONS = (("preferredLayout", "NCHW"), ("storageBufferCacheMode", "bucket"))
"""The layout of ONNX, as the provider's own (NHWC) adds Transposes to the graph; and the cache mode that frees buffers
during a run, by rounding their sizes."""
CACHE_OPTIONS = ("storageBufferCacheMode",)
"""Options that say how a provider keeps free buffers."""
WEBGPU_KNOWN_OPTIONS = (
    "dawnBackendType",
    "defaultBufferCacheMode",
    "enableGraphCapture",
    "enableInt64",
    "enablePIXCapture",
    "enableRobustness",
    "forceCpuNodeNames",
    "kvCacheQuantizationBits",
    "maxNumPendingDispatches",
    "maxStorageBufferBindingSize",
    "multiRotaryCacheConcatOffset",
    "powerPreference",
    "preferredLayout",
    "preserveDevice",
    "queryResolveBufferCacheMode",
    "sessionBufferPoolGenerations",
    "storageBufferCacheMode",
    "uniformBufferCacheMode",
    "validationMode",
)
"""Read from the strings of version 0.4.0's library; those that take addresses inside a process are left out."""
WEBGPU_CACHE = BufferCache(
    bucket_bytes=(
        *(64, 128, 256, 512, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152, 4194304),
        *(8388608, 12582912, 16777216, 26214400, 33554432, 44236800, 58982400, 67108864, 134217728, 167772160),
    ),
    granule_bytes=16,
    packed_ops=("Conv", "ConvTranspose"),
    there_and_back_ops=("Softmax", "TopK"),
    pairing_ops=("Max", "Min"),
    scaling_ops=("InstanceNormalization",),
    turning_ops=("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare"),
)
"""ONNX Runtime's buffer_manager.cc (BUCKET_DEFAULT_LIMIT_TABLE, NormalizeBufferSize). Below the provider (version
0.4.0) it was seen that a buffer can be taken again at once, that the original of one packed weight stays, that
ReduceSum transposes what it reads unless it reduces the last axes, and that Softmax along another axis than the last
transposes what it reads and makes the output transposed before it turns it back (softmax.cc: from opset 13 on); TopK
does so too, Max of n makes n - 2 tensors in between, and InstanceNormalization has a scale and a shift per channel."""
WEBGPU_BINDING_BYTES = 2**27
"""What WebGPU promises everywhere of a storage buffer's binding (maxStorageBufferBindingSize). Kernels are given larger
tensors in parts; a 160 MiB Abs, Neg, ReduceMax was wrong without a word on Mesa's driver in software."""
WEBGPU_FAULTS = (
    Fault("evice] is lost", "the device was lost: its driver was reset or has ended; run it again", is_lost=True),
    Fault(
        "[Invalid Buffer",
        "out of memory on the device, or a tensor is larger than its largest buffer; take a smaller budget for it",
    ),
)
NVIDIA_DRIVERS = (("Linux", "libcuda.so.1"), ("Windows", "nvcuda.dll"))

PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        "cpu": Provider(
            name="cpu",
            runtime_name="CPUExecutionProvider",
            package="onnxruntime",
            install='pip install "remat_cli[cpu]"',
            is_measured=True,
            has_counters=True,
            thread_option=SESSION_THREADS,
            gates="size",
        ),
        "cuda": Provider(
            name="cuda",
            runtime_name="CUDAExecutionProvider",
            package="onnxruntime-gpu",
            install='pip uninstall onnxruntime, then pip install "remat_cli[gpu]"',
            needs="an NVIDIA GPU with its driver, CUDA and cuDNN",
            memory="cuda",
            is_measured=True,
            has_counters=True,
            has_index=True,
            options=REPEATABLE_CUDA,
            mixing=Mixing(layers_entry="session.layer_assignment_settings"),
            gates="shape",
            counts_in_place=True,
            libraries=(
                ("Linux", "libonnxruntime_providers_cuda.so"),
                ("Windows", "onnxruntime_providers_cuda.dll"),
            ),
            drivers=NVIDIA_DRIVERS,
        ),
        "tensorrt": Provider(
            name="tensorrt",
            runtime_name="TensorrtExecutionProvider",
            package="onnxruntime-gpu",
            install='pip uninstall onnxruntime, then pip install "remat_cli[gpu]"',
            needs="an NVIDIA GPU with its driver, CUDA, cuDNN and TensorRT",
            memory="cuda",
            is_opaque=True,
            has_index=True,
            libraries=(
                ("Linux", "libonnxruntime_providers_tensorrt.so"),
                ("Windows", "onnxruntime_providers_tensorrt.dll"),
            ),
            drivers=NVIDIA_DRIVERS,
        ),
        "openvino": Provider(
            name="openvino",
            runtime_name="OpenVINOExecutionProvider",
            package="onnxruntime-openvino",
            install='pip install "remat_cli[openvino]" on an Intel processor, on any other `pip uninstall onnxruntime` '
            "and `pip install onnxruntime-openvino`",
            needs="a processor, GPU or NPU that OpenVINO supports",
            is_opaque=True,
            is_measured=True,
            kinds=("cpu", "gpu", "npu"),
            thread_option="num_of_threads",
            options=(("device_type", "CPU"),),
            plugin=Plugin(
                package="onnxruntime-ep-openvino",
                module="onnxruntime_ep_openvino",
                takes="Intel processors only",
                otherwise="`pip uninstall onnxruntime` and `pip install onnxruntime-openvino` works on others",
            ),
        ),
        "webgpu": Provider(
            name="webgpu",
            runtime_name="WebGpuExecutionProvider",
            package="onnxruntime-ep-webgpu",
            install='pip install "remat_cli[webgpu]"',
            needs="a GPU with a Vulkan, Direct3D 12 or Metal driver",
            memory="webgpu",
            is_measured=True,
            has_index=True,
            options=WEBGPU_OPTIONS,
            known_options=WEBGPU_KNOWN_OPTIONS,
            is_asynchronous=True,
            takes_turns=True,
            shares_weights=False,
            gives_outputs=False,
            faults=WEBGPU_FAULTS,
            cache=WEBGPU_CACHE,
            mixing=Mixing(names_option="forceCpuNodeNames"),
            gates="shape",
            largest_tensor_bytes=WEBGPU_BINDING_BYTES,
            plugin=Plugin(
                package="onnxruntime-ep-webgpu",
                module="onnxruntime_ep_webgpu",
                takes="GPUs with a Vulkan, Direct3D 12 or Metal driver",
                otherwise="install the GPU's driver (Debian: apt-get install libvulkan1 mesa-vulkan-drivers); where "
                "there is no GPU, `make setup-webgpu` gets a driver in software (see docs/devices.md)",
                is_probed=True,
            ),
        ),
        "dml": Provider(
            name="dml",
            runtime_name="DmlExecutionProvider",
            package="onnxruntime-directml",
            install="pip uninstall onnxruntime, then pip install onnxruntime-directml (Windows)",
            needs="Windows with a DirectX 12 GPU",
            memory="dml",
            is_opaque=True,
            has_index=True,
            session_config=(("ep.dml.disable_graph_fusion", "1"),),
        ),
        "migraphx": Provider(
            name="migraphx",
            runtime_name="MIGraphXExecutionProvider",
            package="onnxruntime-migraphx",
            install="pip uninstall onnxruntime, then install AMD's onnxruntime-migraphx for your ROCm version",
            needs="an AMD GPU with ROCm and MIGraphX",
            memory="migraphx",
            is_opaque=True,
            has_index=True,
            libraries=(("Linux", "libonnxruntime_providers_migraphx.so"),),
            drivers=(("Linux", "libamdhip64.so"),),
        ),
        "coreml": Provider(
            name="coreml",
            runtime_name="CoreMLExecutionProvider",
            package="onnxruntime",
            install='pip install "remat_cli[cpu]" on macOS',
            needs="a Mac",
            is_opaque=True,
        ),
    }
)
GONE: Mapping[str, str] = MappingProxyType(
    {"rocm": "ONNX Runtime has no ROCm provider any more, MIGraphX took its place: write migraphx"}
)


def fault_in(text: str) -> Fault | None:
    """The fault of a device that a provider's message speaks of, if it does."""
    return next((fault for each in PROVIDERS.values() for fault in each.faults if fault.sign in text), None)


def cache_of(spec: DeviceSpec) -> BufferCache | None:
    """How a device takes buffers; None where its provider has no cache, or options of the user change it."""
    provider = PROVIDERS[spec.provider]
    usual = dict(provider.options)
    changed = any(usual.get(key) != value for key, value in spec.options.items() if key in CACHE_OPTIONS)
    return None if changed else provider.cache


def named_spec(text: str) -> DeviceSpec:
    """The device of a name: a provider, then `:` and a number, a kind (`openvino:gpu`) or threads (`cpu:8threads`).

    `cuda` alone is `cuda:0`, `openvino:cpu` is `openvino`, `cpu:1thread` is `cpu:1threads`.

    Raises:
        ConfigError: no such provider, or something behind it that it does not take.
    """
    first, *parts = text.strip().lower().split(":")
    if first in GONE:
        raise ConfigError(f"device '{text}': {':'.join([GONE[first], *parts])}")
    provider = PROVIDERS.get(first)
    if provider is None:
        names = ", ".join(_example(provider) for provider in PROVIDERS.values())
        raise ConfigError(f"no device named '{text}'; there are: {names}, or a file: --device FILE.yaml")
    taken = [_read_part(provider, part, text) for part in parts]
    found: dict[str, str] = dict(taken)
    if len(found) != len(taken):
        raise ConfigError(f"device '{text}' says the same thing twice: write {_example(provider)}")
    return _spec(provider, int(found.get("index", 0)), int(found.get("threads", 0)), found.get("kind", ""))


def is_device_file(text: str) -> bool:
    """Whether a device is given by a YAML file rather than by name."""
    return text.strip().lower().endswith((".yaml", ".yml"))


def is_plain(spec: DeviceSpec) -> bool:
    """Whether a device is what its name says and no more: not one that a file describes."""
    provider = PROVIDERS[spec.provider]
    kind = spec.options.get("device_type", "").lower()
    plain = _spec(provider, spec.index, spec.threads, kind)
    return msgspec.structs.replace(plain, name=spec.name) == spec and spec.name.split(":")[0] == provider.name


def _spec(provider: Provider, index: int, threads: int, kind: str) -> DeviceSpec:
    kind = "" if kind == "cpu" else kind
    number = str(index) if provider.has_index else ""
    parts = (provider.name, number, kind, f"{threads}threads" if threads else "")
    return DeviceSpec(
        name=":".join(part for part in parts if part),
        provider=provider.name,
        memory=provider.memory_of(index),
        index=index,
        threads=threads,
        options={"device_type": kind.upper()} if kind else {},
    )


def _read_part(provider: Provider, part: str, text: str) -> tuple[str, str]:
    """What a part of a name says: ("index", "1"), ("threads", "8") or ("kind", "gpu")."""
    if part in provider.kinds:
        return "kind", part
    if provider.has_index and re.fullmatch(r"[0-9]+", part):
        return "index", part
    if provider.thread_option and (match := re.fullmatch(r"([1-9][0-9]*)threads?", part)):
        return "threads", match[1]
    forms = [
        "a number" if provider.has_index else "",
        ", ".join(provider.kinds),
        "a number of threads such as 2threads" if provider.thread_option else "",
    ]
    takes = " or ".join(form for form in forms if form) or "nothing behind its name"
    raise ConfigError(f"device '{text}': {provider.name} takes {takes}: write {_example(provider)}")


def _example(provider: Provider) -> str:
    if provider.has_index:
        return f"{provider.name}:0"
    return (
        f"{provider.name} or {provider.name}:2threads" if provider.thread_option == SESSION_THREADS else provider.name
    )


def gates_of(provider: str) -> GateForm:
    """The form of the gates that hold ops in a plan's order in sessions of a provider.

    Raises:
        ConfigError: the provider compiles what it is given, so that no gate holds anything there.
    """
    form = PROVIDERS[provider].gates
    if form is None:
        raise ConfigError(f"provider {provider} compiles what it is given: no gates hold ops in order there")
    return form
