"""A Ray cluster for the time of a run: joined, or started on this machine; it says nothing and reports nothing."""

import contextlib
import importlib
import importlib.util
import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any

from remat_cli.base.errors import ConfigError, MissingDependency, RuntimeFailure
from remat_cli.base.processes import STDERR, ProcessDied, Tell, started

SILENT: Mapping[str, str] = MappingProxyType(
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
)
AUTH_MODE, AUTH_TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
REFUSAL = "InvalidAuthToken"
"""What Ray's library writes, again and again, where a cluster asks for a token that is not given."""
QUIET: Mapping[str, Any] = MappingProxyType(
    {"log_to_driver": False, "logging_level": logging.CRITICAL, "configure_logging": True}
)
INSTALL = 'pip install "remat_cli[cluster]", or add --local'
OURS: Mapping[str, str] = MappingProxyType({"RAY_worker_niceness": "0"})
"""Of a cluster that is ours alone: else its actors come after everything else on the machine."""
CONNECT_SECONDS, JOIN_SECONDS, LOOK_SECONDS = 5.0, 12.0, 0.1
START_SECONDS = 60.0
"""For a process to begin and to load Ray."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where actors go: an existing cluster, or none: one on this machine; and what each of them takes of it."""

    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    threads: int = 0


def require_ray() -> None:
    """Check that Ray is installed, without loading it.

    Raises:
        MissingDependency: it is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingDependency(f"Ray is not installed: {INSTALL}")


def import_ray() -> ModuleType:
    """Import Ray in such a way that it reports nothing about anybody.

    Raises:
        MissingDependency: it is not installed, or does not load.
    """
    _tell_ray(SILENT)
    try:
        ray = importlib.import_module("ray")
        vars(importlib.import_module("ray._private.worker"))["_worker_logs_enabled"] = (
            False  # else they go to our stdout
        )
        return ray
    except ImportError as error:
        raise MissingDependency(f"Ray does not load ({error}): {INSTALL}") from None


def _tell_ray(values: Mapping[str, str]) -> None:
    """Set what Ray reads from the environment while it is imported, and hands to all that it starts."""
    for name, value in values.items():
        os.putenv(name, value)
    os.environ.update(values)  # noqa: TID251 - Ray reads both before it starts anything


def _is_told(name: str) -> bool:
    return name in os.environ  # noqa: TID251 - what the user says of Ray's own settings counts


@contextlib.contextmanager
def cluster(options: ClusterOptions, devices: int) -> Iterator[ModuleType]:
    """Join a cluster, or start one on this machine, for the time of the block; no dashboard, no usage statistics.

    Raises:
        ConfigError: a cluster on this machine lacks a resource that is asked for.
        MissingDependency: Ray is not installed.
        RuntimeFailure: there is no cluster at the address, or Ray does not start.
    """
    require_ray()
    if options.address is None:
        if not _is_told(AUTH_MODE):
            _tell_ray({AUTH_MODE: "token", AUTH_TOKEN: secrets.token_hex(32)})  # else Ray leaves one in the home folder
        _tell_ray(OURS)
        ray = import_ray()
        if custom := [name for name in options.resources if name not in ("cpu", "gpu")]:
            raise ConfigError(f"--resource {custom[0]}: a cluster of this machine has no such resource; give --address")
        processors = math.ceil(devices * options.resources.get("cpu", 1))  # it is said to have what the actors take
        _begin(ray, "a local cluster", num_cpus=processors, include_dashboard=False, address="local")
    else:
        where = f"the cluster at {options.address}"
        _check_address(options.address, where)
        ray = import_ray()
        _begin(ray, where, address=options.address)
    try:
        if options.address is None:
            # a cluster of one machine never gets more
            each, there = options.resources.get("gpu", 0), ray.cluster_resources().get("GPU", 0)
            if devices * each > there:
                raise ConfigError(
                    f"--resource gpu={each:g} for {devices} actors: this machine has {there:g}; ask for less, or give "
                    "--address"
                )
        yield ray
    finally:
        ray.shutdown()


def _begin(ray: ModuleType, where: str, **how: Any) -> None:
    """Start or join, without a word.

    Raises:
        RuntimeFailure: Ray cannot.
    """
    try:
        with _without_native_lines(), _own_signals():
            ray.init(**QUIET, **how)
    except Exception as error:
        raise RuntimeFailure(_no_answer(where, _first_line(error))) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """What SIGTERM does stays as it is: Ray would have its library write where it stood, many lines of it."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _no_answer(where: str, why: str) -> str:
    return (
        f"{where} does not answer: {why}; check --address, and that "
        "Ray's own settings here, such as its token, are those of the cluster"
    )


def _check_address(address: str, where: str) -> None:
    """Join once in a process of its own: where something else listens, Ray waits for minutes, or ends the process.

    A cluster that is started where Ray finds a token asks for it; who joins must say that there is one.

    Raises:
        RuntimeFailure: nobody listens there, something that is no cluster, or one that refuses us.
    """
    try:
        # Whether somebody listens, where the address has a port; Ray itself would ask for a minute.
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise RuntimeFailure(_no_answer(where, str(error))) from None
    asks = _asks_for_token(address, where)
    if asks and not _is_told(AUTH_MODE):
        _tell_ray({AUTH_MODE: "token"})
        asks = _asks_for_token(address, where)
    if asks:
        raise RuntimeFailure(f"{where} refuses our token: set {AUTH_TOKEN} to that of the cluster")


def _asks_for_token(address: str, where: str) -> bool:
    """Whether a cluster refuses us for the lack of a token; Ray itself would go on knocking.

    Raises:
        RuntimeFailure: there is no cluster.
    """
    try:
        with started(join_once, (address, where)) as worker:
            until = time.monotonic() + START_SECONDS

            def begin() -> None:
                nonlocal until
                until = time.monotonic() + JOIN_SECONDS

            while not worker.has_ended(begin, LOOK_SECONDS):
                if REFUSAL in (worker.folder / STDERR).read_text(errors="replace"):
                    return True
                if time.monotonic() > until:
                    raise RuntimeFailure(_no_answer(where, f"nothing that Ray knows within {JOIN_SECONDS:g} s"))
            worker.result()
            return False
    except ProcessDied as died:
        raise RuntimeFailure(_no_answer(where, died.line or "Ray broke down")) from None


def join_once(job: tuple[str, str], tell: Tell) -> None:
    """Join a cluster and leave it: what a process of its own does, to find out whether that is possible."""
    address, where = job
    ray = import_ray()
    tell()  # only now does the time that it may take to join begin
    try:
        ray.init(address=address, **QUIET)  # what its library writes goes to a file of this process
    except Exception as error:
        raise RuntimeFailure(_no_answer(where, _first_line(error))) from None
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
