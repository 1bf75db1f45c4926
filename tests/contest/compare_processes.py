"""Stand-ins for the processes of a comparison."""

from __future__ import annotations

from remat_cli.contest.report.bench_run import BenchCase, BenchRun, joined
from remat_cli.contest.runner import Job, solve_case


class HereProcess:
    """Does its job in this process when it is heard for the first time."""

    def __init__(self, job: Job, watch) -> None:
        self.job = job

    def close(self) -> None:
        pass

    def poll(self, seconds: float) -> BenchRun | None:
        return solve_case(self.job, lambda *message: None)


class LogProcess:
    """Ends at its second hearing with a made-up answer; keeps in `log` what happens."""

    log: list[tuple[str, str, str]] = []  # noqa: RUF012 - made anew by each test

    def __init__(self, job: Job, watch) -> None:
        self.case, self.polls = job.case, 0
        self._say("start")

    def close(self) -> None:
        self._say("exit")

    def poll(self, seconds: float) -> BenchRun | None:
        self.polls += 1
        return self.answer() if self.polls == 2 else None

    def answer(self) -> BenchRun:
        return made_up(self.case)

    def _say(self, word: str) -> None:
        self.log.append((word, self.case.solver, self.case.budget))


def made_up(case: BenchCase, **changes) -> BenchRun:
    """An answer to a case: no plan."""
    return joined(BenchRun, case, **({"status": "not_found", "seconds": 0.0} | changes))
