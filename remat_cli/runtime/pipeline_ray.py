"""Stages of a pipeline on a Ray cluster: an actor per device, orders drive it, tensors pass through the object store.

Each actor runs what it is given in the order in which it was given, and waits for what it needs; no clock is read to
decide anything. What passes between stages goes from actor to actor, not through the driver.
"""

import contextlib
import importlib
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from remat_cli.base.errors import ConfigError, MissingDependency, RuntimeFailure
from remat_cli.core.pipeline_file import PipelineFile
from remat_cli.core.pipeline_orders import Turn, TurnSpan, flushed_turns, late_turns
from remat_cli.runtime._ort import share_arena, use_shared_arena
from remat_cli.runtime.pipeline_local import BlockRun, PipelineRunRequest, session_settings
from remat_cli.runtime.resident import status_bytes
from remat_cli.runtime.session import SessionSettings, session_options
from remat_cli.runtime.stage_runner import Arrays, StageRunner, stage_options

WINDOW_BLOCKS = 2
"""Blocks that are under way at most, so that inputs of later ones do not fill the object store."""
SILENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
CONNECT_SECONDS = 5.0
PLACE_SECONDS = 60.0


@dataclass(frozen=True)
class ClusterOptions:
    """Where actors go: an existing cluster, or none: one on this machine; and what each of them takes of it."""

    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    threads: int = 0


class LostStage(RuntimeFailure):
    """An actor ended in mid-run; `states` are those after `finished` updates, one per stage, empty: the first ones."""

    def __init__(self, line: str, finished: int, states: tuple[Arrays, ...]) -> None:
        """One line, and what is left."""
        super().__init__(line)
        self.finished = finished
        self.states = states


def import_ray() -> ModuleType:
    """Ray, which reports nothing about anybody.

    Raises:
        MissingDependency: it is not installed.
    """
    for name, value in SILENT.items():
        os.putenv(name, value)
    os.environ.update(SILENT)  # noqa: TID251 - Ray reads both before it starts anything
    try:
        ray = importlib.import_module("ray")
        vars(importlib.import_module("ray._private.worker"))["_worker_logs_enabled"] = (
            False  # else they go to our stdout
        )
        return ray
    except ImportError as error:
        raise MissingDependency(
            f'Ray is not installed ({error}): pip install "remat_cli[cluster]", or add --local'
        ) from None


class DeviceActor:
    """One device: its stages, run turn by turn."""

    def __init__(self, plan: PipelineFile, numbers: Sequence[int], request: tuple[str, bool, int]) -> None:
        """Open the sessions of some stages, counted from 1; folder, whether updates come late, threads."""
        folder, is_late, threads = request
        settings = session_settings(plan, threads)
        share_arena(session_options(settings))
        self._empty_bytes = own_bytes()
        self._outputs = frozenset(plan.outputs)
        self._runners = {
            number: StageRunner(
                plan.stages[number - 1], Path(folder), partial(_shared_options, settings), settings, is_late=is_late
            )
            for number in numbers
        }

    def load(self, stage: int, state: Arrays) -> None:
        """Begin with another state than the first."""
        self._runners[stage].load(state)

    def forward(self, turn: Turn, arrived: Arrays, fed: Arrays) -> tuple[Arrays, Any]:
        """What goes on to the next stage; and what the model gives, with when it was made."""
        began = time.monotonic_ns()
        runner = self._runners[turn.stage]
        leaves, made = runner.forward((turn.block, turn.batch), arrived, fed, ends_block=turn.ends_block)
        return leaves, (self._given(made), self._span(turn, began, runner))

    def backward(self, turn: Turn, returned: Arrays) -> tuple[Arrays, Any]:
        """What goes back to the stage before; and what the model gives, with when it was made."""
        began = time.monotonic_ns()
        runner = self._runners[turn.stage]
        goes_back, made = runner.backward(turn.batch, returned)
        return goes_back, (self._given(made), self._span(turn, began, runner))

    def update(self, turn: Turn, batches: int, chosen: Arrays) -> Arrays:
        """Update, and give the state that the next block begins with."""
        self._runners[turn.stage].update(batches, chosen)
        return self._runners[turn.stage].state()

    def state(self, stage: int) -> Arrays:
        """All that stays from step to step."""
        return self._runners[stage].state()

    def where(self) -> int:
        """The process, so that somebody can look at it."""
        return os.getpid()

    def _given(self, made: Mapping[str, Any]) -> Arrays:
        return {name: array for name, array in made.items() if name in self._outputs}

    def _span(self, turn: Turn, began: int, runner: StageRunner) -> TurnSpan:
        ended = time.monotonic_ns()
        return TurnSpan(
            turn.device, turn.stage, turn.kind, turn.batch, began, ended, runner.alive, own_bytes() - self._empty_bytes
        )


def _shared_options(settings: SessionSettings) -> Any:
    """Options of a session that uses the process's arena, so that what one session frees the next can take."""
    options = stage_options(settings)
    use_shared_arena(options)
    return options


def own_bytes() -> int:
    """What this process holds for itself, resident; files that it maps, the object store's among them, left out."""
    return status_bytes().get("RssAnon") or psutil.Process().memory_info().rss


@contextlib.contextmanager
def cluster(options: ClusterOptions, devices: int) -> Iterator[ModuleType]:
    """Join a cluster, or start one on this machine, for the time of the block; no dashboard, no usage statistics.

    Raises:
        ConfigError: a cluster on this machine lacks a resource that is asked for.
        MissingDependency: Ray is not installed.
        RuntimeFailure: there is no cluster at the address, or Ray does not start.
    """
    ray = import_ray()
    processors = devices if options.address is not None else _processors(options, devices)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL, "configure_logging": True}
    try:
        if options.address is not None:
            _knock(options.address)
        with _without_native_lines():
            if options.address is not None:
                ray.init(address=options.address, **quiet)
            else:
                ray.init(address="local", num_cpus=processors, include_dashboard=False, **quiet)
    except Exception as error:
        where = "a local cluster" if options.address is None else f"the cluster at {options.address}"
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise RuntimeFailure(
            f"{where} does not answer: {line}; check --address, and that "
            "Ray's own settings here, such as its token, are those of the cluster"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _without_native_lines() -> Iterator[None]:
    """Nothing reaches our stderr during the block: Ray's library writes a line there for each try to join."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _knock(address: str) -> None:
    """Whether somebody listens at an address with a port; Ray itself would ask for a minute.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def _processors(options: ClusterOptions, devices: int) -> int:
    """How many a cluster of this machine alone is said to have: as many as the actors take.

    Raises:
        ConfigError: a resource that such a cluster has not.
    """
    if custom := [name for name in options.resources if name not in ("cpu", "gpu")]:
        raise ConfigError(f"--resource {custom[0]}: a cluster of this machine has no such resource; give --address")
    return math.ceil(devices * options.resources.get("cpu", 1))


def run_on_cluster(
    plan: PipelineFile, folder: Path, request: PipelineRunRequest, options: ClusterOptions
) -> Generator[BlockRun, None, None]:
    """Run on a cluster; one `BlockRun` per update, its states fetched, so that a loss costs one block at most.

    Raises:
        ConfigError: late updates need more micro-batches.
        RuntimeFailure: the cluster is not there, or has no place for the actors.
        LostStage: an actor ended.
    """
    make = late_turns if request.is_late else flushed_turns
    turns = make(plan, request.batches, request.steps)
    with cluster(options, len(plan.devices)) as ray:
        driver = _Driver(ray, plan, request, _actors(ray, plan, (str(folder.resolve()), request.is_late), options))
        yield from driver.run(turns)


def _actors(ray: ModuleType, plan: PipelineFile, where: tuple[str, bool], options: ClusterOptions) -> list[Any]:
    """An actor per device, which has opened its sessions.

    Raises:
        RuntimeFailure: the cluster has no place for them.
    """
    kind = ray.remote(DeviceActor)
    asked: dict[str, Any] = {"num_cpus": options.resources.get("cpu", 1), "max_restarts": 0}
    asked["num_gpus"] = options.resources.get("gpu", 0)
    asked["resources"] = {name: each for name, each in options.resources.items() if name not in ("cpu", "gpu")}
    actors = []
    for device in range(len(plan.devices)):
        numbers = [number for number, stage in enumerate(plan.stages, 1) if stage.device == device]
        actors.append(kind.options(**asked).remote(plan, numbers, (*where, options.threads)))
    try:
        ray.get([actor.where.remote() for actor in actors], timeout=PLACE_SECONDS)
    except ray.exceptions.GetTimeoutError:
        wanted = ", ".join(f"{name}={each:g}" for name, each in {"cpu": 1, **options.resources}.items())
        raise RuntimeFailure(
            f"the cluster has no place for {len(actors)} actors of {wanted} within {PLACE_SECONDS:g} s: "
            "ask for less with --resource, or add machines"
        ) from None
    except ray.exceptions.RayError as error:
        raise RuntimeFailure(f"a device's sessions do not open: {_reason(error)}") from None
    return actors


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class _Driver:
    """Gives turns to actors in the plan's order, and collects what comes out, block by block."""

    def __init__(self, ray: ModuleType, plan: PipelineFile, request: PipelineRunRequest, actors: list[Any]) -> None:
        self._ray, self._plan, self._request, self._actors = ray, plan, request, actors
        self._passing: dict[tuple[str, int, int], Any] = {}
        self._results: dict[int, list[tuple[Turn, Any]]] = {}
        self._states: dict[int, dict[int, Any]] = {}
        self._finished = 0
        self._last: tuple[Arrays, ...] = request.states
        for number, state in enumerate(request.states, 1):
            actors[plan.stages[number - 1].device].load.remote(number, state)

    def run(self, turns: Sequence[Turn]) -> Iterator[BlockRun]:
        """Hand out all turns, no more than some blocks ahead of what has come back."""
        waiting = list(reversed(turns))
        for block in range(self._request.steps):
            while waiting and waiting[-1].block < block + WINDOW_BLOCKS:
                self._hand_out(waiting.pop())
            found = self._collect(block)
            self._finished, self._last = block + 1, found.states
            yield found

    def _hand_out(self, turn: Turn) -> None:
        stage = self._plan.stages[turn.stage - 1]
        actor = self._actors[stage.device]
        if turn.kind == "U":
            ref = actor.update.remote(turn, self._request.batches, dict(self._request.chosen))
            self._states.setdefault(turn.block, {})[turn.stage] = ref
            return
        if turn.kind == "F":
            fed = self._request.feed(turn.batch)
            mine = {name: fed[name] for name in stage.fed}
            arrived = self._passing.pop(("F", turn.stage - 1, turn.batch), {})
            passed, result = actor.forward.options(num_returns=2).remote(turn, arrived, mine)
        else:
            returned = self._passing.pop(("B", turn.stage + 1, turn.batch), {})
            passed, result = actor.backward.options(num_returns=2).remote(turn, returned)
        self._passing[turn.kind, turn.stage, turn.batch] = passed
        self._results.setdefault(turn.block, []).append((turn, result))

    def _collect(self, block: int) -> BlockRun:
        """Wait for a block, its updates included.

        Raises:
            LostStage: an actor ended.
        """
        given: dict[int, Arrays] = {}
        spans = []
        for turn, ref in self._results.pop(block):
            outputs, span = self._get(ref, turn.stage)
            given.setdefault(turn.batch, {}).update(outputs)
            spans.append(span)
            last = len(self._plan.stages) if turn.kind == "F" else 1
            if turn.stage == last:
                self._passing.pop((turn.kind, turn.stage, turn.batch), None)
        updated = self._states.pop(block, {})
        states = []
        for number, stage in enumerate(self._plan.stages, 1):
            has_state = bool(stage.states)
            ref = updated.get(number)
            if ref is None and has_state:
                ref = self._actors[stage.device].state.remote(number)
            states.append({} if ref is None else self._get(ref, number))
        return BlockRun(tuple(given[batch] for batch in sorted(given)), tuple(spans), tuple(states))

    def _get(self, ref: Any, stage: int) -> Any:
        ray = self._ray
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            lost = error.cause if isinstance(error.cause, ray.exceptions.RayActorError) else None
            if lost is None:
                raise RuntimeFailure(f"stage {stage} fails: {_reason(error)}") from None
        except ray.exceptions.RayError:
            pass
        stages = self._lost_stages() or [stage]
        many = "stages" if len(stages) > 1 else "stage"
        raise LostStage(
            f"{many} {', '.join(map(str, stages))} of device {self._plan.stages[stages[0] - 1].device} was lost "
            f"in update {self._finished + 1}",
            self._finished,
            self._last,
        ) from None

    def _lost_stages(self) -> list[int]:
        """Stages of the actors that do not answer any more."""
        found = []
        for device, actor in enumerate(self._actors):
            try:
                self._ray.get(actor.where.remote(), timeout=5)
            except self._ray.exceptions.GetTimeoutError:
                continue
            except self._ray.exceptions.RayError:
                found += [number for number, stage in enumerate(self._plan.stages, 1) if stage.device == device]
        return found
