"""Cases on any executor: threads or processes of this machine, or the machines of some cluster that has one."""

from concurrent.futures import Executor
from functools import partial

from remat_cli.base.processes import ignore
from remat_cli.contest.report.bench_run import BenchRun, joined
from remat_cli.contest.runner import Job, Runner, Watch, solve_case, versions


def on_executor(executor: Executor) -> Runner:
    """What takes a job to an executor, for `run_case` and `run_side_by_side`; improvements on the way are not heard."""
    return partial(CaseFuture, executor)


class CaseFuture:
    """One case as the future of an executor; whatever happens to who runs it becomes a run."""

    def __init__(self, executor: Executor, job: Job, watch: Watch) -> None:
        self._case = job.case
        self._future = executor.submit(solve_alone, job)

    def poll(self, seconds: float) -> BenchRun | None:
        """What came of the case; None if it goes on after so many seconds."""
        try:
            return self._future.result(seconds)
        except TimeoutError:
            return None
        except Exception as error:  # of whatever kind the executor has
            message = f"{type(error).__name__}: {error}"
            return joined(BenchRun, self._case, status="crashed", message=message, versions=versions())

    def close(self) -> None:
        """Take the case back, if nobody has begun it; one that runs is ended by its executor."""
        self._future.cancel()


def solve_alone(job: Job) -> BenchRun:
    """Solve a case where nobody is told of its progress."""
    return solve_case(job, ignore)
