"""A Ray cluster as an executor: tasks come back as futures, and a worker that dies is an error of its task alone."""

from __future__ import annotations

import os

import pytest

from remat_cli.base.units import format_bytes

pytest.importorskip("ray")


def end(code: int) -> None:
    """A task whose worker is gone."""
    os._exit(code)


@pytest.mark.slow
def test_tasks_are_futures_and_a_lost_worker_is_told():
    from remat_cli.contest.on_ray import RayExecutor

    with RayExecutor() as executor:
        found = [executor.submit(format_bytes, size * 2**20) for size in (1, 2)]
        assert [each.result(120) for each in found] == ["1.00 MiB", "2.00 MiB"]
        lost = executor.submit(end, 1)
        with pytest.raises(Exception, match=r"(?i)worker|task|actor"):
            lost.result(120)
        assert executor.submit(format_bytes, 2**10).result(120) == "1.00 KiB"
