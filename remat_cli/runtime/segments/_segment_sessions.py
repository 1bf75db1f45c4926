"""A session for each segment of a program, with shared weights, and the values that go in and out of them."""

import ctypes
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np

from remat_cli.base.errors import MissingDependency, ModelError
from remat_cli.core.schedule.program import CopyAction, InputSpec, Program, SessionAction, StoredWeight
from remat_cli.core.values.profile import HOST_MEMORY, DeviceSpec
from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.runtime.sessions._ort import (
    EXTENDED_NAMES,
    SMALL_BITS,
    Array,
    array_of,
    import_ort,
    numpy_dtype,
    runtime_dtype,
    share_arena,
    share_cuda_arena,
)
from remat_cli.runtime.sessions.assignment import ask_for_assignment, assigned
from remat_cli.runtime.sessions.providers import device_of, place_of, placed_value, require_device, unowned
from remat_cli.runtime.sessions.session import SessionSettings, device_settings, open_session, session_options

NVIDIA: Final = "cuda"
LEAST_PLACED_BYTES: Final = 1024
"""Smaller weights may be parameters that a kernel reads on the host although its device is another."""
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
Place = tuple[str, int]
"""What the runtime calls a memory, and its number."""


@dataclass(frozen=True)
class Opened:
    """A session, ready to be bound; `places` are where its outputs go, in order.

    `weights` are the shared values that it reads: the runtime does not keep them alive, so this must.
    """

    action: SessionAction
    session: Any
    binding: Any
    places: tuple[Place, ...]
    weights: tuple[Any, ...]


@dataclass(frozen=True)
class Opening:
    """How sessions are opened: `caps` in bytes by name of memory.

    With a `profile_folder` they write profiles there, and each has an arena of its own, so that its counters are too.
    Without `has_arena` what a session frees goes back to the system. `may_misplace`: that the runtime puts an op
    elsewhere than the plan is for the caller to ask.
    """

    caps: Mapping[str, int]
    profile_folder: Path | None = None
    has_arena: bool = True
    may_misplace: bool = False


def check_devices(program: Program) -> None:
    """Check that every device of a program is here.

    Raises:
        MissingDependency: one is not; the plan is not run elsewhere instead.
    """
    for spec in program.devices:
        try:
            require_device(device_of(spec))
        except MissingDependency as error:
            raise MissingDependency(
                f"the plan needs device '{spec.name}', which is not here: {error}; compile again without it"
            ) from None


def open_all(program: Program, opening: Opening) -> tuple[Opened, ...]:
    """Open every session of a program; nothing falls back to another device.

    All sessions on the host use one arena, so that what one frees the next can take; it belongs to the process and is
    used only by sessions that ask for it. Caps of host memories add up.

    Raises:
        MissingDependency: a device cannot be used.
        RuntimeFailure: the runtime refuses a segment.
    """
    check_devices(program)
    if opening.has_arena:
        caps, devices = opening.caps, zip(program.devices, program.memory_of, strict=True)
        places = {program.memories[memory]: place_of_device(spec) for spec, memory in devices}
        hosts = [name for name, place in places.items() if place[0] == HOST_MEMORY]
        if hosts:
            given = [caps[name] for name in hosts if name in caps]
            share_arena(import_ort().SessionOptions(), sum(given) if given else None)
        for name, place in places.items():
            if place[0] == NVIDIA and name in caps:
                share_cuda_arena(place[1], max(1, caps[name] - outside_bytes(program, program.memories.index(name))))
    shared = shared_weights(program)
    return tuple(open_one(program, number, shared, opening) for number in range(len(program.sessions)))


def place_of_device(spec: DeviceSpec) -> Place:
    """Where the tensors of a device are."""
    return place_of(device_of(spec))


def open_one(
    program: Program,
    number: int,
    shared: Mapping[tuple[int, str], Any],
    opening: Opening,
    given: Mapping[str, Any] = NOTHING,
) -> Opened:
    """Open a session by its place, over the `shared` weights and those `given`, which it does not keep alive.

    Raises:
        MissingDependency: the device cannot be used.
        RuntimeFailure: the runtime refuses the segment.
    """
    action = program.sessions[number]
    spec, memory = program.devices[action.device], program.memory_of[action.device]
    settings = device_settings(spec, SessionSettings(custom_ops=program.custom_ops))
    options = session_options(settings)
    options.add_session_config_entry("session.force_spinning_stop", "1")  # else threads spin beside the next session
    place = place_of_device(spec)
    is_shared = place[0] == HOST_MEMORY or (place[0] == NVIDIA and program.memories[memory] in opening.caps)
    if not opening.has_arena:
        options.enable_cpu_mem_arena = opening.profile_folder is not None  # its counters are the arena's
    elif is_shared and opening.profile_folder is None:
        options.add_session_config_entry("session.use_env_allocators", "1")
    provider = PROVIDERS[spec.provider]
    is_mixed = bool(action.host_ops)
    reads_file = provider.is_opaque or not provider.shares_weights or is_mixed  # one that compiles does, too
    weights = () if reads_file else action.segment.weights
    mine = {name: shared[memory, name] for name in weights if (memory, name) in shared}
    for name, value in {**mine, **given}.items():
        options.add_initializer(name, value)
    if opening.profile_folder is not None and not provider.is_opaque:
        options.enable_profiling = True
        options.profile_file_prefix = str(opening.profile_folder / f"segment_{number:04}")
    path = Path(program.folder) / action.segment.file
    session = _open_mixed(path, action, program, options) if is_mixed else open_session(path, settings, options)
    users = (program.memory_of.index(program.values[name].memory) for name in action.segment.makes)
    places = tuple(place_of_device(program.devices[user]) for user in users)
    return Opened(action, session, session.io_binding(), places, tuple(mine.values()))


def _open_mixed(path: Path, action: SessionAction, program: Program, options: Any) -> Any:
    """A session that a device and the host share, each op where the plan has it, as the runtime reports."""
    device, host = program.devices[action.device], program.devices[action.host_device]
    if host.threads:
        options.intra_op_num_threads = host.threads
    ask_for_assignment(options)
    settings = device_settings(device, SessionSettings(custom_ops=program.custom_ops))
    return open_session(path, msgspec.structs.replace(settings, is_alone=False), options, action.host_ops)


def misplaced_op(opened: Opened, program: Program) -> str | None:
    """The first op of a shared session that is not where the plan has it, with where that is; None: all are there."""
    if not opened.action.host_ops:
        return None
    here, there = (PROVIDERS[program.devices[d].provider] for d in (opened.action.host_device, opened.action.device))
    found, on_host = assigned(opened.session), set(opened.action.host_ops)
    for name in opened.action.segment.ops:
        wanted = here if name in on_host else there
        if found.get(name) != wanted.runtime_name:
            return f"op '{name}' is run by {found.get(name, 'nobody')}, not by {wanted.runtime_name}"
    return None


def has_counters(spec: DeviceSpec) -> bool:
    """Whether the runtime's profile says what a device holds in memory."""
    return PROVIDERS[spec.provider].has_counters


def outside_bytes(program: Program, memory: int) -> int:
    """The most that a memory other than the host's holds outside the sessions' arena: weights, and what is copied in.

    The runtime's Python layer takes these from an allocator of its own, which cannot be capped.
    """
    weights = sum(program.weights[name].size_bytes for m, name in placed_weights(program) if m == memory)
    held: dict[str, int] = {}
    most = 0
    for action in program.actions:
        if isinstance(action, CopyAction) and program.values[action.target].memory == memory:
            held[action.target] = program.values[action.target].size_bytes
        most = max(most, sum(held.values()))
        for name in action.drops:
            held.pop(name, None)
    return weights + most


def shared_weights(program: Program) -> dict[tuple[int, str], Any]:
    """Weights that sessions on a memory share, as one value each; on the host they lie in their mapped file.

    `SessionOptions.add_initializer` shares a value, `add_external_initializers` copies it into every session (measured
    once).
    """
    places = {m: place_of_device(s) for s, m in zip(program.devices, program.memory_of, strict=True)}
    values = {}
    for memory, name in placed_weights(program):
        value = placed_value(mapped_weight(Path(program.folder), program.weights[name]), places[memory])
        values[memory, name] = value if places[memory][0] == HOST_MEMORY else unowned(value)
    return values


def placed_weights(program: Program) -> list[tuple[int, str]]:
    """Weights that are put into a memory once for all its sessions, with the number of the memory.

    On the host those that several sessions read, since the runtime maps the others by itself; elsewhere every large
    one, so that what lies outside of the sessions is known. A provider that compiles reads the files.
    """
    readers: Counter[tuple[int, str]] = Counter()
    hosts = set()
    away = program.away_weights
    for number, action in enumerate(program.sessions):
        spec, memory = program.devices[action.device], program.memory_of[action.device]
        if place_of_device(spec)[0] == HOST_MEMORY:
            hosts.add(memory)
        provider = PROVIDERS[spec.provider]
        if provider.shares_weights and not provider.is_opaque and not action.host_ops:
            mine = action.segment.weights.keys() - away.get(number, frozenset())
            readers.update((memory, name) for name in mine if name in program.weights)
    stored = program.weights.items()
    can_be_placed = {n for n, w in stored if w.size_bytes >= LEAST_PLACED_BYTES and w.dtype not in EXTENDED_NAMES}
    return [
        (memory, name)
        for (memory, name), count in readers.items()
        if (count > 1 if memory in hosts else name in can_be_placed)
    ]


def mapped_weight(folder: Path, weight: StoredWeight) -> Array:
    """A weight as an array over its file."""
    dtype = numpy_dtype(weight.dtype)
    count = weight.size_bytes // dtype.itemsize
    data = np.memmap(folder / weight.file, dtype, mode="c", offset=weight.offset, shape=(count,))
    return np.asarray(data).reshape(weight.shape)


def check_feeds(inputs: tuple[InputSpec, ...], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """What is fed, by name, as arrays that the runtime can read where they are.

    Raises:
        ModelError: a name, an element type or a shape does not fit; one line.
    """
    wanted = {spec.name: spec for spec in inputs}
    if missing := [name for name in wanted if name not in feeds]:
        raise ModelError(f"input '{missing[0]}' is not fed; the model takes {_listed(wanted)}")
    if extra := [name for name in feeds if name not in wanted]:
        raise ModelError(f"'{extra[0]}' is fed but is no input; the model takes {_listed(wanted)}")
    arrays: dict[str, Array] = {}
    for name, spec in wanted.items():
        array = np.asarray(feeds[name])
        if tuple(array.shape) != spec.shape:
            raise ModelError(
                f"input '{name}' has shape {list(array.shape)}, the plan is for {list(spec.shape)}: "
                "compile again for other shapes"
            )
        if spec.dtype == "string" and array.dtype.kind == "U":
            arrays[name] = array.astype(object)
        elif array.dtype == numpy_dtype(spec.dtype):
            arrays[name] = np.ascontiguousarray(array).reshape(spec.shape)
        else:
            raise ModelError(f"input '{name}' is of type {runtime_dtype(array)}, the model takes {spec.dtype}")
    return arrays


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def copied(value: Any, target: Place) -> Any:
    """A new value in another memory with the same contents; between host memories a real copy too."""
    if _is_on_host(value) and target[0] == HOST_MEMORY:
        view = _host_view(value)
        made = np.empty_like(view)
        np.copyto(made, view)  # copying large ones lets other threads run
        return placed_value(made, target)
    return placed_value(_host_view(value), target)


def bound_outputs(opened: Opened, program: Program) -> list[Any]:
    """Bind what a segment makes; the buffers of its outputs where the provider gives none away, else nothing."""
    binding, makes = opened.binding, zip(opened.action.segment.makes, opened.places, strict=True)
    if PROVIDERS[program.devices[opened.action.device].provider].gives_outputs:
        for name, place in makes:
            binding.bind_output(name, *place)
        return []
    made = []
    for name, place in makes:
        spec = program.values[name]
        made.append(import_ort().OrtValue.ortvalue_from_shape_and_type(spec.shape, numpy_dtype(spec.dtype), *place))
        binding.bind_ortvalue_output(name, made[-1])
    return made


def owned(value: Any) -> Any:
    """A bound output in a container of its own: what a binding gives points into the binding, and ends with it."""
    ort = import_ort()
    alone = ort.capi.onnxruntime_pybind11_state.OrtValueVector()
    alone.push_back(value._get_c_value())
    return ort.OrtValue(alone[0])


def as_array(value: Any) -> Array:
    """A copy of a value as an array of the caller's.

    What the runtime gives on the host may be a view of an array of ours, which ends with the value.
    """
    return np.array(array_of(value)) if _is_on_host(value) else np.asarray(value.numpy())


def _is_on_host(value: Any) -> bool:
    return bool(value.device_name() == HOST_MEMORY)


def _host_view(value: Any) -> Array:
    """The array over a value on the host, without a copy; from a device it is a copy on the host."""
    dtype = value.data_type().removeprefix("tensor(").removesuffix(")")
    if not _is_on_host(value) or dtype == "string":
        return np.asarray(value.numpy())
    if dtype in SMALL_BITS or (dtype in EXTENDED_NAMES and not value.shape()):
        return array_of(value)
    element, shape = numpy_dtype(dtype), tuple(value.shape())
    size = int(np.prod(shape, dtype=np.int64)) * element.itemsize
    if not size:
        return np.empty(shape, element)
    buffer = memoryview((ctypes.c_char * size).from_address(value.data_ptr()))
    view: Array = np.frombuffer(buffer, element).reshape(shape)
    return view


@dataclass
class Holdings:
    """The values that a run holds. What the caller feeds is not counted.

    `held_bytes` is by memory. A value whose copy is under way is a future.
    """

    program: Program
    values: dict[str, Any]
    held_bytes: list[int] = field(init=False)
    fed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Only what is fed is there yet."""
        self.held_bytes = [0] * len(self.program.memories)
        self.fed = frozenset(self.values)

    def get(self, name: str) -> Any:
        """A value, waited for if it is being copied."""
        value = self.values[name]
        if isinstance(value, Future):
            value = self.values[name] = value.result()
        return value

    def put(self, name: str, value: Any) -> None:
        """Hold a new value."""
        spec = self.program.values[name]
        self.values[name] = value
        self.held_bytes[spec.memory] += spec.size_bytes if isinstance(value, Future) else size_of(value)

    def drop(self, name: str) -> None:
        """Let go of a value; what the caller feeds is the caller's."""
        if name in self.fed:
            return
        size = size_of(self.get(name))
        del self.values[name]
        self.held_bytes[self.program.values[name].memory] -= size


def size_of(value: Any) -> int:
    """Bytes of a value's buffer."""
    return int(value.tensor_size_in_bytes())
