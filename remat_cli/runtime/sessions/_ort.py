"""ONNX Runtime at arm's length: imported on demand, in a process of its own, its errors, arenas and arrays."""

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from remat_cli.base import processes
from remat_cli.base.errors import DeviceLost, MissingDependency, ModelError, RuntimeFailure
from remat_cli.base.processes import ProcessDied, Silent, Start, Worker, fresh, ignore
from remat_cli.base.run_count import ran
from remat_cli.base.signals import signals_later
from remat_cli.devices.provider_table import fault_in
from remat_cli.ort_rules.records import Rules, rules_of
from remat_cli.runtime.sessions.error_text import one_line

SILENT = 4  # log severity "fatal only": errors reach the user as exceptions, not as lines on stderr


NO_TELEMETRY: Final = "ORT_DISABLE_TELEMETRY"
"""The runtime reads this while it is imported, when it would already write an id of the machine and of the session."""


def import_ort() -> ModuleType:
    """The onnxruntime module, which records and sends nothing about anybody.

    Raises:
        MissingDependency: it is not installed, or its native library does not load.
    """
    os.putenv(NO_TELEMETRY, "1")  # only the native library reads it; what the import begins, no call undoes
    try:
        with contextlib.nullcontext() if "onnxruntime" in sys.modules else signals_later():
            ort = importlib.import_module("onnxruntime")
    except ImportError as error:
        if getattr(error, "name", None) == "onnxruntime":
            raise MissingDependency('ONNX Runtime is not installed: pip install "remat_cli[cpu]"') from None
        raise MissingDependency(
            f'ONNX Runtime does not load ({one_line(error)}): pip install --force-reinstall "remat_cli[cpu]"'
        ) from error
    ort.disable_telemetry_events()  # where the caller imported it before us, and on systems that have another kind
    return ort


def new_options(ort: ModuleType) -> Any:
    """Session options that differ from the default ones only in that the runtime does not log."""
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    return options


class Doing(msgspec.Struct, frozen=True):
    """What was being done with a model's file, to open the line that says why it failed."""

    before: str
    file: str = ""
    after: str = ""

    def failed(self, why: str, kind: type[RuntimeFailure] = RuntimeFailure) -> RuntimeFailure:
        """The failure, as one line."""
        return kind(self.before, self.file, f"{self.after}: {why}")


def running(path: Path, how: str = "") -> Doing:
    """To run the model of a file, in some way that is said behind its name."""
    return Doing("ONNX Runtime fails to run ", path.name, how)


@contextlib.contextmanager
def runtime_errors(doing: Doing | str) -> Iterator[None]:
    """Turn what ONNX Runtime raises inside the block into a RuntimeFailure of one line that starts with `doing`.

    Its exception classes have no common base, so they are told by the module they come from; its Python layer
    raises ValueError and RuntimeError. Anything else passes through.
    """
    try:
        yield
    except Exception as error:
        if not (type(error).__module__.startswith("onnxruntime") or type(error) in (RuntimeError, ValueError)):
            raise
        raise failure(doing, error) from error


def failure(doing: Doing | str, error: BaseException) -> RuntimeFailure:
    """What the runtime raised, as our own error of one line that starts with `doing`; DeviceLost where a device is."""
    fault = fault_in(str(error))
    kind = DeviceLost if fault is not None and fault.is_lost else RuntimeFailure
    return (doing if isinstance(doing, Doing) else Doing(doing)).failed(one_line(error), kind)


def installed_rules() -> Rules:
    """What the runtime that is installed does."""
    return rules_of(str(import_ort().__version__))


def share_arena(options: Any, cap_bytes: int | None = None) -> None:
    """Register an arena for this process and let a session with these options use it. Once per process."""
    ort = import_ort()
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    with runtime_errors("ONNX Runtime refuses an arena"):
        ort.create_and_register_allocator(info, ort.OrtArenaCfg(_layout(cap_bytes)))
    use_shared_arena(options)


def use_shared_arena(options: Any) -> None:
    """Let a session with these options use the arena that this process has registered."""
    options.add_session_config_entry("session.use_env_allocators", "1")


def share_cuda_arena(index: int, cap_bytes: int) -> None:
    """The same on a GPU, for sessions that ask for it by `session.use_env_allocators`; not yet run on one."""
    ort = import_ort()
    info = ort.OrtMemoryInfo("Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, index, ort.OrtMemType.DEFAULT)
    options = {"device_id": str(index), "gpu_mem_limit": str(cap_bytes)}
    with runtime_errors(f"ONNX Runtime refuses an arena on cuda:{index}"):
        ort.create_and_register_allocator_v2(
            "CUDAExecutionProvider", info, options, ort.OrtArenaCfg(_layout(cap_bytes))
        )


def _layout(cap_bytes: int | None) -> dict[str, int]:
    """How an arena takes memory.

    Chunks are split to fit, so that bytes in use are rounded to whole units and no further. With a cap, one chunk of
    that size is taken first, which keeps fragmentation low. (With the growth strategy kSameAsRequested the runtime
    would ignore the size of the first chunk.)
    """
    rules = installed_rules()
    layout = {"arena_extend_strategy": 0, "max_dead_bytes_per_chunk": rules.arena.unit_bytes}  # 0: kNextPowerOfTwo
    if cap_bytes is not None:
        layout |= {"max_mem": cap_bytes, "initial_chunk_size_bytes": min(cap_bytes, rules.largest_first_region_bytes)}
    return layout


Array: TypeAlias = npt.NDArray[Any]

NUMPY_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "float": "float32",
        "double": "float64",
        "float16": "float16",
        "bool": "bool",
        "string": "object",
        **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    }
)
"""ONNX Runtime's name of an element type -> numpy's."""

EXTENDED_NAMES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "bfloat16": ("bfloat16", 16),
        "float8e4m3fn": ("float8_e4m3fn", 17),
        "float8e4m3fnuz": ("float8_e4m3fnuz", 18),
        "float8e5m2": ("float8_e5m2", 19),
        "float8e5m2fnuz": ("float8_e5m2fnuz", 20),
        "uint4": ("uint4", 21),
        "int4": ("int4", 22),
        "uint2": ("uint2", 25),
        "int2": ("int2", 26),
    }
)
"""Element types that numpy lacks: the runtime's name -> name in ml_dtypes and number in ONNX's TensorProto."""

RUNTIME_NAMES: Mapping[str, str] = MappingProxyType(
    {numpy: runtime for runtime, numpy in NUMPY_NAMES.items()}
    | {extended: runtime for runtime, (extended, _) in EXTENDED_NAMES.items()}
)
"""The way back: name of numpy or of ml_dtypes -> the runtime's."""

SMALL_BITS: Mapping[str, int] = MappingProxyType({"uint4": 4, "int4": 4, "uint2": 2, "int2": 2})
"""Element types of which the runtime has several in a byte, the first one lowest; arrays have one in a byte."""


class PackedArray(msgspec.Struct, frozen=True):
    """An array as plain bytes, for the way to another process and for comparing bit by bit."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy element type of a runtime element type.

    Raises:
        ModelError: remat cannot feed that type.
    """
    if dtype in NUMPY_NAMES:
        return np.dtype(NUMPY_NAMES[dtype])
    if dtype in EXTENDED_NAMES:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, EXTENDED_NAMES[dtype][0]))
        return extended
    raise ModelError(f"element type '{dtype}' cannot be fed; use a model with inputs of another type")


def runtime_dtype(array: Array) -> str:
    """The runtime's name of an array's element type; numpy's own name where the runtime has none."""
    name = array.dtype.name
    return RUNTIME_NAMES.get(name, name)


def storable(array: Array) -> Array:
    """Text as numpy's own, and types that numpy lacks as unsigned integers of their size."""
    if array.dtype == np.dtype(object):
        return array.astype(str)
    return array if array.dtype.isbuiltin else array.view(f"u{array.itemsize}")


def pack(name: str, array: Array) -> PackedArray:
    """An array as bytes; strings are stored as a list, since their bytes are pointers."""
    dtype = runtime_dtype(array)
    data = msgspec.msgpack.encode(array.ravel().tolist()) if dtype == "string" else array.tobytes()
    return PackedArray(name, dtype, tuple(int(size) for size in array.shape), data)


def unpack(packed: PackedArray) -> Array:
    """The array that was packed."""
    if packed.dtype == "string":
        return np.array(msgspec.msgpack.decode(packed.data), dtype=object).reshape(packed.shape)
    return np.frombuffer(packed.data, numpy_dtype(packed.dtype)).reshape(packed.shape)


def pack_all(arrays: Mapping[str, Array]) -> tuple[PackedArray, ...]:
    """Named arrays as bytes."""
    return tuple(pack(name, array) for name, array in arrays.items())


def unpack_all(arrays: Iterable[PackedArray]) -> dict[str, Array]:
    """The arrays that `pack_all` packed, by name."""
    return {packed.name: unpack(packed) for packed in arrays}


def run_session(session: Any, feeds: Mapping[str, Array], run_options: Any = None) -> dict[str, Array]:
    """Run once and return the outputs by name.

    Plain numpy types are fed directly and stay outside the runtime's arena. The types numpy lacks go through
    OrtValue, which the Python interface cannot turn back into numpy: their bytes are read from the buffer.
    """
    ran()
    names = [output.name for output in session.get_outputs()]
    types = [*(i.type for i in session.get_inputs()), *(o.type for o in session.get_outputs())]
    if not any(_element(text) in EXTENDED_NAMES for text in types):
        return dict(zip(names, session.run(names, dict(feeds), run_options), strict=True))
    values = session.run_with_ort_values(names, {name: host_value(array) for name, array in feeds.items()}, run_options)
    return {name: array_of(value) for name, value in zip(names, values, strict=True)}


def run_into(session: Any, feeds: Mapping[str, Array], into: Mapping[str, Array]) -> dict[str, Array]:
    """`run_session` that writes some outputs into arrays that are there already, of their shapes and types."""
    if not into:
        return run_session(session, feeds)
    binding = session.io_binding()
    values = {name: host_value(array) for name, array in feeds.items()}  # they must live until the run is over
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    names = [output.name for output in session.get_outputs()]
    for name in names:
        if (array := into.get(name)) is None:
            binding.bind_output(name)
        else:
            dtype = runtime_dtype(array)
            element = EXTENDED_NAMES[dtype][1] if dtype in EXTENDED_NAMES else array.dtype.type
            binding.bind_output(name, "cpu", 0, element, array.shape, array.ctypes.data)
    ran()
    session.run_with_iobinding(binding)
    made = dict(zip(names, binding.get_outputs(), strict=True))
    return {name: into[name] if name in into else array_of(value) for name, value in made.items()}


def type_of(port: Any) -> np.dtype[Any]:
    """The numpy element type of a session's input or output."""
    return numpy_dtype(_element(port.type))


def typed_array(array: Array, type_text: str) -> Array:
    """An array as the runtime's input of that type takes it: files hold types that numpy lacks as integers."""
    element = _element(type_text)
    return array.view(numpy_dtype(element)) if element in EXTENDED_NAMES and array.dtype.kind in "uV" else array


def _element(type_text: str) -> str:
    return type_text.removeprefix("tensor(").removesuffix(")")


def host_value(array: Array) -> Any:
    """An array of any element type as the runtime's value, on the host."""
    ort_value = import_ort().OrtValue
    dtype = runtime_dtype(array)
    if dtype not in EXTENDED_NAMES:
        return ort_value.ortvalue_from_numpy(array)
    if dtype in SMALL_BITS:
        small = ort_value.ortvalue_from_shape_and_type(array.shape, EXTENDED_NAMES[dtype][1])
        # Elements of so few bits, several to a byte.
        width = SMALL_BITS[dtype]
        codes = np.ascontiguousarray(array).view(np.uint8).ravel()
        in_byte = 8 // width
        whole = np.append(codes, np.zeros(-codes.size % in_byte, np.uint8)).reshape(-1, in_byte)
        joined: Array = ((whole & (2**width - 1)) << np.arange(0, 8, width)).sum(axis=1).astype(np.uint8)
        data = joined.tobytes()
        ctypes.memmove(small.data_ptr(), data, len(data))
        return small
    bits = np.ascontiguousarray(array).reshape(array.shape).view(np.uint16 if array.itemsize == 2 else np.uint8)
    return ort_value.ortvalue_from_numpy_with_onnx_type(bits, EXTENDED_NAMES[dtype][1])


def array_of(value: Any) -> Array:
    """A copy of a value on the host as an array, of any element type."""
    dtype = _element(value.data_type())
    if dtype not in EXTENDED_NAMES:
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    element = numpy_dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    bits = SMALL_BITS.get(dtype, 8 * element.itemsize)
    data = ctypes.string_at(value.data_ptr(), (count * bits + 7) // 8) if count else b""
    if dtype in SMALL_BITS:
        # The reverse: one element to a byte.
        found: Array = (np.frombuffer(data, np.uint8)[:, None] >> np.arange(0, 8, bits)) & (2**bits - 1)
        spread = found.astype(np.uint8).ravel()
        return spread[:count].view(element).reshape(shape)
    return np.frombuffer(data, element).reshape(shape)


Job = TypeVar("Job")
Answer = TypeVar("Answer")
Advance: TypeAlias = Callable[[int, int], None]
"""Told how many of how many units of work are done."""
ignore_progress: Advance = ignore


LONGEST_RUN_SECONDS: Final = 3600.0
"""Without progress; a longer run of an honest model would be no use to a compiler that makes dozens of them."""


def too_long(seconds: float) -> str:
    """Why a run was ended."""
    return f"no progress for {seconds:g} s; if the model needs longer, add --run-limit {2 * seconds:g}s"


@contextlib.contextmanager
def started(
    function: Callable[[Job, Advance], Answer],
    job: Job,
    start: Start = fresh,
    seconds: float = LONGEST_RUN_SECONDS,
) -> Iterator[Worker[Answer]]:
    """Start `function(job, advance)` in a process of its own, and end that with the block, however it ends.

    Raises:
        RuntimeFailure: the process crashed, or was silent for `seconds`, and somebody waited for its answer.
    """
    try:
        with processes.started(function, job, start, seconds) as worker:
            yield worker
    except Silent:
        raise Doing("the process that runs ONNX Runtime was ended").failed(too_long(seconds)) from None
    except ProcessDied as died:
        how = f"was killed by signal {-died.code} (out of memory?)" if died.code < 0 else f"ended with code {died.code}"
        raise RuntimeFailure(f"the process that runs ONNX Runtime {how}: {died.line or 'no message'}") from None


def run_fresh(
    function: Callable[[Job, Advance], Answer],
    job: Job,
    advance: Advance = ignore_progress,
    seconds: float = LONGEST_RUN_SECONDS,
) -> Answer:
    """Run `function(job, advance)` in a fresh process and wait for what it returns.

    Raises:
        RematError: what the function raised on purpose.
        RuntimeFailure: the process crashed, or was silent for `seconds`.
    """
    with started(function, job, fresh, seconds) as worker:
        return worker.answer(advance)
