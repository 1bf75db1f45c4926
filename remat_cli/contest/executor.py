"""Cases on any executor: threads or processes of this machine, or the machines of some cluster that has one."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Generic, TypeVar

from remat_cli.base.processes import ignore
from remat_cli.contest.report.bench_run import BenchRun, joined
from remat_cli.contest.runner import Job, Runner, Watch, solve_case, versions

Row = TypeVar("Row")


def on_executor(executor: Executor) -> Runner:
    """What takes a job to an executor, for `run_case` and `run_side_by_side`; improvements on the way are not heard."""
    return partial(CaseFuture, executor)


class AnyFuture(Generic[Row]):
    """A case as the future of an executor; `lost` says what becomes of it where something happens to who runs it."""

    def __init__(self, future: Future[Row], lost: Callable[[Exception], Row]) -> None:
        self._future, self._lost = future, lost

    def poll(self, seconds: float) -> Row | None:
        """What came of the case; None if it goes on after so many seconds."""
        try:
            return self._future.result(seconds)
        except TimeoutError:
            return None
        except Exception as error:  # of whatever kind the executor has
            return self._lost(error)

    def close(self) -> None:
        """Take the case back, if nobody has begun it; one that runs is ended by its executor."""
        self._future.cancel()


class CaseFuture(AnyFuture[BenchRun]):
    """One case whose lost worker becomes a run."""

    def __init__(self, executor: Executor, job: Job, watch: Watch) -> None:
        def crashed(error: Exception) -> BenchRun:
            message = f"{type(error).__name__}: {error}"
            return joined(BenchRun, job.case, status="crashed", message=message, versions=versions())

        super().__init__(executor.submit(solve_alone, job), crashed)


def solve_alone(job: Job) -> BenchRun:
    """Solve a case where nobody is told of its progress."""
    return solve_case(job, ignore)
