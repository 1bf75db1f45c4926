"""Open a session, run it or its optimiser alone, and read from the runtime's own profile what ran and what it held."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.files import INLINE_LIMIT_BYTES, WORK_FOLDER
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.runtime.observe._events import ProfiledRun, ProfileEvent, read_runs, require_counters
from remat_cli.runtime.sessions._ort import (
    LONGEST_RUN_SECONDS,
    Array,
    Doing,
    import_ort,
    installed_rules,
    new_options,
    run_session,
    running,
    runtime_errors,
)
from remat_cli.runtime.sessions.apart import apart_if_heavy, files_beside, weighs_bytes
from remat_cli.runtime.sessions.guard import guarded
from remat_cli.runtime.sessions.providers import (
    UsableDevice,
    check_session,
    configure,
    device_of,
    parse_device,
    require_device,
    without_warnings,
)

Level = Literal["all", "extended", "basic", "disabled"]


class SessionSettings(msgspec.Struct, frozen=True):
    """How a session is opened.

    `exact` sets the options under which the runtime runs exactly the file: its order, its ops, and every buffer
    freed at its last use. Otherwise the options are the runtime's default ones, but for the `level` up to which it
    optimises, of which all is the default, and for what was asked of the arena, the memory pattern and the executor.
    `intra_op_threads` is 0 for the
    runtime's own default; a number of threads in `device` wins. `provider_options` go to the device's provider.
    A run that shows no end for `run_seconds` is ended.
    `is_alone`: the device's provider runs every op, and one that it does not support is an error; otherwise the CPU
    runs what another provider does not support. `custom_ops` are shared libraries with custom operators.
    """

    exact: bool = True
    level: Level = "all"
    intra_op_threads: int = 0
    device: str = "cpu"
    profiling: bool = False
    custom_ops: tuple[str, ...] = ()
    provider_options: tuple[tuple[str, str], ...] = ()
    is_alone: bool = False
    run_seconds: float = LONGEST_RUN_SECONDS
    has_arena: bool = True
    has_pattern: bool = True
    is_parallel: bool = False


@dataclass(frozen=True)
class Observation:
    """What one run showed; bytes are the runtime's counters at the end of each op, before it frees its inputs.

    `executed` are op names in execution order, ops inside subgraphs left out; `types` are, per op, the types of its
    outputs in the order of those that are named (an omitted optional output has no entry, neither has a sequence or
    an empty optional). `live_bytes` is, per executed op, what it holds beyond the baseline: live tensors.
    `nested_bytes` is, by control-flow op, how much more its subgraph held at most. `baseline_bytes` is what the
    session holds in its arena before the first op: packed weights, and weights of at most 127 bytes.
    `in_use_peak_bytes` is the most in use, workspace included, rounded by the allocator, baseline included.
    """

    executed: tuple[str, ...]
    outputs: dict[str, Array]
    types: dict[str, tuple[TensorType, ...]]
    live_bytes: tuple[int, ...]
    baseline_bytes: int
    in_use_peak_bytes: int
    arena_held_bytes: int
    runtime_version: str
    nested_bytes: dict[str, int]

    @property
    def op_live(self) -> dict[str, int]:
        """Live bytes at the end of each op, by name."""
        return dict(zip(self.executed, self.live_bytes, strict=True))

    @property
    def peak_live_bytes(self) -> int:
        """Most bytes of live tensors at the end of any op."""
        return max(self.live_bytes, default=0)

    def peak_with_workspace(self, workspace: Mapping[str, int]) -> int:
        """Most bytes of live tensors and workspace together during any op; ops not named need no workspace."""
        return max((live + workspace.get(name, 0) for name, live in self.op_live.items()), default=0)


@dataclass(frozen=True)
class FirstSight:
    """Outputs of one run, types as in `Observation`, and its `baseline_bytes` (None: not counted)."""

    types: dict[str, tuple[TensorType, ...]]
    baseline_bytes: int | None
    outputs: dict[str, Array]


def runtime_version() -> str:
    """Version of the installed ONNX Runtime."""
    return str(import_ort().__version__)


def session_options(settings: SessionSettings) -> Any:
    """The runtime's options object for these settings."""
    ort = import_ort()
    options = new_options(ort)
    if settings.exact:
        exact = installed_rules().exact
        if not exact.is_optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if exact.is_priority_based:
            options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_reuse = exact.reuses_dead_buffers
        options.enable_mem_pattern = exact.has_memory_pattern
    else:
        if settings.level != "all":
            options.graph_optimization_level = _levels(ort)[settings.level]
        options.enable_cpu_mem_arena, options.enable_mem_pattern = settings.has_arena, settings.has_pattern
        if settings.is_parallel:
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    if settings.intra_op_threads:
        options.intra_op_num_threads = settings.intra_op_threads
    options.enable_profiling = settings.profiling
    for library in settings.custom_ops:
        with runtime_errors(f"custom operators {library} do not load"):
            options.register_custom_ops_library(library)
    return options


def default_order_options(settings: SessionSettings) -> Any:
    """Options of a session that runs exactly the file, but in the order, and with the buffers, of a default session."""
    ort, options = import_ort(), session_options(settings)
    options.execution_order = ort.ExecutionOrder.DEFAULT
    options.enable_mem_reuse = True
    return options


def wait_without_spinning(options: Any) -> None:
    """Let idle threads sleep, for sessions that run beside others and are not timed; nothing else changes."""
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")


def in_turn_options(settings: SessionSettings) -> Any:
    """Options of a session that is timed in turn with others: its threads sleep as soon as a run ends.

    They would go on spinning else, in the way of the next session's run.
    """
    options = session_options(settings)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def open_session(
    path: Path, settings: SessionSettings, options: Any = None, on_host: Sequence[str] | None = None
) -> Any:
    """An InferenceSession on a model file; `options` replaces the options that `settings` stand for.

    Of one that is shared by a device and the host, `on_host` are the ops on the latter.

    Raises:
        RuntimeFailure: the runtime refuses the model.
        MissingDependency: the device cannot be used.
    """
    device = session_device(settings)
    require_device(device)
    options = session_options(settings) if options is None else options
    with runtime_errors(Doing("ONNX Runtime refuses ", path.name)), without_warnings(device):
        providers = configure(options, device, settings.is_alone, on_host)
        session = import_ort().InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    check_session(session, device)
    return session


def session_device(settings: SessionSettings) -> UsableDevice:
    """The device that a session is opened on, with the options that go to its provider.

    Raises:
        ConfigError: no such device.
    """
    spec = parse_device(settings.device).spec
    return device_of(msgspec.structs.replace(spec, options={**spec.options, **dict(settings.provider_options)}))


def device_settings(spec: DeviceSpec, settings: SessionSettings) -> SessionSettings:
    """The same settings for sessions that run wholly on that device."""
    return msgspec.structs.replace(
        settings, device=spec.session_device, provider_options=spec.session_options, is_alone=True
    )


@contextlib.contextmanager
def profiled_session(
    path: Path, settings: SessionSettings, options: Any = None
) -> Iterator[tuple[Any, list[ProfiledRun]]]:
    """A session that is being profiled and an empty list that holds its runs when the block has ended well."""
    options = session_options(settings) if options is None else options
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER) as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = open_session(path, settings, options)
        runs: list[ProfiledRun] = []
        try:
            yield session, runs
        finally:
            profile = Path(session.end_profiling())
        runs.extend(read_runs(profile))


@apart_if_heavy
def run_profiled(path: Path, feeds: Mapping[str, Array], settings: SessionSettings) -> Observation:
    """Open a session, run it once, and report what happened; nothing is left on disk.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
        MissingDependency: the device cannot be used.
    """
    doing = running(path)
    with profiled_session(path, settings) as (session, runs), runtime_errors(doing):
        outputs = guarded(lambda options: run_session(session, feeds, options), settings.run_seconds, doing)
    return observation(runs[0], outputs, path.name)


@apart_if_heavy
def outputs_of(
    path: Path, feeds: Sequence[Mapping[str, Array]], settings: SessionSettings
) -> tuple[dict[str, Array], ...]:
    """What a model gives for each of the feeds, in one session; nothing is opened for none.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
        MissingDependency: the device cannot be used.
    """
    if not feeds:
        return ()
    session, doing = open_session(path, settings), running(path)
    with runtime_errors(doing):
        runs = (partial(run_session, session, group) for group in feeds)
        return tuple(guarded(run, settings.run_seconds, doing) for run in runs)


def run_each(
    path: Path,
    feeds: Iterable[Mapping[str, Array]],
    settings: SessionSettings,
    around: Callable[[int], AbstractContextManager[None]],
) -> list[dict[str, tuple[TensorType, ...]]]:
    """The types of all tensors, as in `Observation`, in runs of one session on several inputs.

    `around` is entered for the run that failed, by its number, so that it can say what failed.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    seen = _run_in_turn(path, tuple(feeds), settings)
    if seen.failure is not None:
        with around(seen.runs):
            raise seen.failure
    return list(seen.types)


class _SeenInTurn(msgspec.Struct, frozen=True):
    """How many runs of a session ended well, the types of all tensors in each, and why the next one did not."""

    runs: int
    types: tuple[dict[str, tuple[TensorType, ...]], ...]
    failure: RuntimeFailure | None = None


@apart_if_heavy
def _run_in_turn(path: Path, feeds: tuple[Mapping[str, Array], ...], settings: SessionSettings) -> _SeenInTurn:
    doing, done = running(path), 0
    with profiled_session(path, settings) as (session, runs):
        for group in feeds:
            try:
                with runtime_errors(doing):
                    guarded(partial(run_session, session, group), settings.run_seconds, doing)
            except RuntimeFailure as failure:
                return _SeenInTurn(done, (), failure)
            done += 1
    return _SeenInTurn(done, tuple({event.name: event.types for event in run.events} for run in runs))


@apart_if_heavy
def first_sight(path: Path, feeds: Mapping[str, Array], settings: SessionSettings) -> FirstSight:
    """What one run shows, also where the runtime counts no memory.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    doing = running(path)
    with profiled_session(path, settings) as (session, runs), runtime_errors(doing):
        outputs = guarded(lambda options: run_session(session, feeds, options), settings.run_seconds, doing)
    events = runs[0].events
    return FirstSight({event.name: event.types for event in events}, counted_baseline_bytes(events), outputs)


def counted_baseline_bytes(events: tuple[ProfileEvent, ...]) -> int | None:
    """What was in use before the first op of a first run began; None where the runtime counts no memory."""
    return baseline_bytes(events) if all(event.has_counters for event in events) else None


def observation(run: ProfiledRun, outputs: dict[str, Array], name: str) -> Observation:
    """What the first run of a session says.

    Raises:
        RuntimeFailure: two ops of the model have the same name, so that figures cannot be told apart, or the runtime
            counts no memory.
    """
    require_counters(run)
    events = run.events
    baseline = baseline_bytes(events)
    names = [event.name for event in events]
    if twice := sorted(op for op, count in Counter(names).items() if count > 1):
        raise RuntimeFailure("", name, f": two ops are named '{twice[0]}'; give every op a name of its own")
    return Observation(
        executed=tuple(names),
        outputs=outputs,
        types={event.name: event.types for event in events},
        live_bytes=tuple(event.requested_bytes - baseline for event in events),
        baseline_bytes=baseline,
        in_use_peak_bytes=events[-1].peak_bytes if events else 0,
        arena_held_bytes=events[-1].held_bytes if events else 0,
        runtime_version=runtime_version(),
        nested_bytes={e.name: max(0, e.nested_bytes - e.requested_bytes) for e in events if e.nested_bytes},
    )


def baseline_bytes(events: tuple[ProfileEvent, ...]) -> int:
    """What was in use before the first op of a first run began."""
    return events[0].requested_bytes - events[0].growth_bytes if events else 0


SMALLEST_EXTERNAL_BYTES = 1024
"""Smaller weights stay inside the model file."""


@apart_if_heavy
def optimize(
    source: Path,
    target: Path,
    level: Level,
    intra_op_threads: int = 0,
    custom_ops: tuple[str, ...] = (),
    seconds: float = LONGEST_RUN_SECONDS,
) -> None:
    """Write to `target` the graph that a session at this optimisation level would run.

    `all` includes the CPU's own memory layout (fastest, tied to this kind of CPU), `extended` runs on every CPU,
    `basic` has standard ops only, which other execution providers can run too.
    Models whose weights lie outside the file, or are too large for one, get `TARGET.data` beside the target. The call
    may take so many `seconds`: the runtime computes what is constant.

    Raises:
        RuntimeFailure: the runtime refuses the model, takes too long, or cannot write the file.
    """
    ort = import_ort()
    options = new_options(ort)
    options.graph_optimization_level = _levels(ort)[level]
    # Nothing runs, so no weights are packed; and what looks for buffers to use again takes squares of their number.
    options.enable_mem_reuse = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.optimized_model_filepath = str(target)
    options.intra_op_num_threads = intra_op_threads
    for library in custom_ops:
        with runtime_errors(f"custom operators {library} do not load"):
            options.register_custom_ops_library(library)
    if needs_data_file(source, target):
        add = options.add_session_config_entry
        add("session.optimized_model_external_initializers_file_name", data_file(target).name)
        add("session.optimized_model_external_initializers_min_size_in_bytes", str(SMALLEST_EXTERNAL_BYTES))
    doing = Doing("ONNX Runtime cannot optimise ", source.name)
    with runtime_errors(doing):
        guarded(
            lambda _: ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"]), seconds, doing
        )
    if not target.exists():
        raise RuntimeFailure("ONNX Runtime did not write the optimised ", source.name, f" to {target}")


def _levels(ort: Any) -> dict[Level, Any]:
    """The runtime's name of each level."""
    return {
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    }


def needs_data_file(source: Path, target: Path) -> bool:
    """Whether the optimised weights are kept in a file of their own.

    They are when they are too large for one file, and when the source's are, unless both lie in one folder: then
    those that stay as they are remain where they are.

    Raises:
        RuntimeFailure: the file cannot be read.
    """
    try:
        beside = files_beside(source)
        is_large = weighs_bytes(source, beside) > INLINE_LIMIT_BYTES
    except OSError as error:
        raise RuntimeFailure(f"{source} cannot be read: {error.strerror}") from None
    return is_large or (bool(beside) and source.absolute().parent != target.absolute().parent)


def data_file(target: Path) -> Path:
    """Where the weights of an optimised model are when they do not lie inside it."""
    return target.with_name(f"{target.name}.data")
