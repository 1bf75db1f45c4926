"""A Ray cluster for the time of a run: joined, or started on this machine; it says nothing and reports nothing."""

import contextlib
import importlib
import logging
import math
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from remat_cli.base.errors import ConfigError, MissingDependency, RuntimeFailure
from remat_cli.base.processes import ProcessDied, Silent, Tell, started

SILENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
CONNECT_SECONDS = 5.0
JOIN_SECONDS = 15.0


@dataclass(frozen=True)
class ClusterOptions:
    """Where actors go: an existing cluster, or none: one on this machine; and what each of them takes of it."""

    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    threads: int = 0


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


@contextlib.contextmanager
def cluster(options: ClusterOptions, devices: int) -> Iterator[ModuleType]:
    """Join a cluster, or start one on this machine, for the time of the block; no dashboard, no usage statistics.

    Raises:
        ConfigError: a cluster on this machine lacks a resource that is asked for.
        MissingDependency: Ray is not installed.
        RuntimeFailure: there is no cluster at the address, or Ray does not start.
    """
    ray = import_ray()
    if options.address is None:
        _begin(ray, "a local cluster", num_cpus=_processors(options, devices), include_dashboard=False, address="local")
    else:
        where = f"the cluster at {options.address}"
        _check_address(options.address, where)
        _begin(ray, where, address=options.address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _begin(ray: ModuleType, where: str, **how: Any) -> None:
    """Start or join, without a word.

    Raises:
        RuntimeFailure: Ray cannot.
    """
    try:
        with _without_native_lines():
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=True, **how)
    except Exception as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise RuntimeFailure(_no_answer(where, line)) from None


def _no_answer(where: str, why: str) -> str:
    return (
        f"{where} does not answer: {why}; check --address, and that "
        "Ray's own settings here, such as its token, are those of the cluster"
    )


def _check_address(address: str, where: str) -> None:
    """Join once in a process of its own: where something else listens, Ray waits for minutes, or ends the process.

    Raises:
        RuntimeFailure: nobody listens there, or something that is no cluster.
    """
    try:
        _knock(address)
    except OSError as error:
        raise RuntimeFailure(_no_answer(where, str(error))) from None
    try:
        with started(_join_once, (address, where), silence_seconds=JOIN_SECONDS) as worker:
            worker.answer()
    except Silent:
        raise RuntimeFailure(_no_answer(where, f"nothing that Ray knows within {JOIN_SECONDS:g} s")) from None
    except ProcessDied as died:
        raise RuntimeFailure(_no_answer(where, died.line or "Ray broke down")) from None


def _join_once(job: tuple[str, str], _tell: Tell) -> None:
    address, where = job
    ray = import_ray()
    _begin(ray, where, address=address)
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
