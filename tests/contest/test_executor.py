"""Cases on executors of the standard library give what a process of ours gives; one that breaks down is a run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from remat_cli.base.progress import silent
from remat_cli.contest.executor import on_executor
from remat_cli.contest.report.bench_run import BenchCase
from remat_cli.contest.runner import Job, run_case, run_side_by_side

INSTANCE = Path(__file__).resolve().parents[2] / "bench" / "instances" / "sample_unet.json"


def case(budget: str, solver: str = "keep-all") -> BenchCase:
    return BenchCase(
        suite="executor",
        instance="unet",
        instance_path=str(INSTANCE),
        instance_sha256="",
        budget=budget,
        order="keep",
        solver=solver,
        label=solver,
        seed=0,
        threads=1,
        time_limit_seconds=1.0,
    )


def test_cases_run_on_an_executor():
    jobs = [Job(case(budget), INSTANCE) for budget in ("1.0", "0.5", "1.0")]
    with ThreadPoolExecutor(2) as executor:
        found = run_side_by_side(jobs, 2, silent(), on_executor(executor))
        alone = run_case(case("1.0"), INSTANCE, lambda point: None, on_executor(executor))
    assert [found[number].status for number in range(3)] == ["optimal", "infeasible", "optimal"]
    assert (
        (found[0].peak_bytes, found[0].time) == (found[2].peak_bytes, found[2].time) == (alone.peak_bytes, alone.time)
    )


def test_what_remat_refuses_is_an_answer():
    with ThreadPoolExecutor(1) as executor:
        refused = run_case(case("0.9"), INSTANCE.with_name("nowhere.json"), lambda point: None, on_executor(executor))
    assert refused.status == "error"
    assert "nowhere.json" in refused.message or str(INSTANCE) in refused.message


class _Broken(ThreadPoolExecutor):
    """An executor whose workers die."""

    def submit(self, function, /, *words, **named):
        def die():
            raise BrokenProcessPool("a worker was killed")

        return super().submit(die)


def test_an_executor_that_breaks_down_is_a_run():
    with _Broken(1) as executor:
        run = run_case(case("1.0"), INSTANCE, lambda point: None, on_executor(executor))
    assert (run.status, run.message) == ("crashed", "BrokenProcessPool: a worker was killed")
