"""Stand-ins for the processes of a comparison."""

from __future__ import annotations

from remat_cli.contest.worker import Job, _do
from remat_cli.report.bench_run import BenchCase, BenchRun


class HereProcess:
    """Does its job in this process, without warm-up, when it is heard for the first time."""

    def __init__(self, job: Job, watch) -> None:
        self.job = job
        self.polls = 0

    def __exit__(self, *reason: object) -> None:
        pass

    def poll(self, seconds: float) -> BenchRun | None:
        return _do(self.job, lambda message: None)


class LogProcess:
    """Ends at its second hearing with a made-up answer; keeps in `log` what happens."""

    log: list[tuple[str, str, str]] = []  # noqa: RUF012 - made anew by each test

    def __init__(self, job: Job, watch) -> None:
        self.case, self.polls = job.case, 0
        self._say("start")

    def __exit__(self, *reason: object) -> None:
        self._say("exit")

    def poll(self, seconds: float) -> BenchRun | None:
        self.polls += 1
        return self.answer() if self.polls == 2 else None

    def answer(self) -> BenchRun:
        return made_up(self.case)

    def _say(self, word: str) -> None:
        self.log.append((word, self.case.solver, self.case.label))


def made_up(case: BenchCase, **changes) -> BenchRun:
    """An answer to a case: no plan."""
    asked = {name: getattr(case, name) for name in BenchCase.__struct_fields__}
    return BenchRun(**(asked | {"status": "not_found", "seconds": 0.0} | changes))
