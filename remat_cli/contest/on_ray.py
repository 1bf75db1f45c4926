"""A Ray cluster as an executor of Python's own kind, for sweeps."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from remat_cli.base.errors import MissingDependency


class RayExecutor(Executor):
    """Runs functions as tasks of a Ray cluster, each in a process of its own; the cluster that is there, or a new one.

    Raises:
        MissingDependency: Ray is not installed.
    """

    def __init__(self) -> None:
        """Find the cluster."""
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise MissingDependency("--executor ray needs Ray: pip install 'remat_cli[cluster]'") from None
        self._is_own = not self._ray.is_initialized()
        if self._is_own:
            self._ray.init(configure_logging=False, log_to_driver=False)
        self._max_workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A task that is not begun again by itself, in a worker that ends with it."""
        task = self._ray.remote(function).options(max_retries=0, max_calls=1)
        future: Future[Any] = task.remote(*args, **kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, if it was found by us."""
        if self._is_own:
            self._ray.shutdown()
