from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from remat_cli.base.errors import BrokenSolver, ConfigError, RematError
from remat_cli.base.progress import Detail, Progress, silent
from remat_cli.commands import asked
from remat_cli.compiling.solve import refusal
from remat_cli.contest import runner, solving
from remat_cli.contest.commands import compare as pipeline_compare
from remat_cli.contest.commands.compare import check_agreement, compare
from remat_cli.contest.comparison import compare_request
from remat_cli.contest.report.bench_run import BenchCase
from remat_cli.contest.runner import Job, run_side_by_side
from remat_cli.report.style import Style
from remat_cli.settings.settings import load_settings
from remat_cli.solvers.base import Reason
from tests.contest import mishaps
from tests.contest.compare_processes import HereProcess, LogProcess, made_up
from tests.contest.report.compare_samples import compare_report, run

ROOT = Path(__file__).resolve().parents[3]
INSTANCE = ROOT / "bench" / "instances" / "sample_unet.json"


@pytest.fixture
def here(monkeypatch):
    """Runs take place in this process."""
    monkeypatch.setattr(pipeline_compare, "run_side_by_side", partial(run_side_by_side, runner=HereProcess))


def compared(path=INSTANCE, budgets="0.9", solvers="keep-all,checkpoint-last", progress=None, **settings):
    config = load_settings({"time_limit": "200ms", "threads": 2, "cache_dir": "cache", **settings})
    return compare(compare_request(path, budgets, solvers, config), config, progress or silent())


def test_one_problem_every_solver_every_budget(here):
    report = compared(budgets="0.9,70%,14000000", order="keep")
    assert [(run.budget, run.solver) for run in report.runs] == [
        (budget, solver) for budget in ("0.9", "70%", "14000000") for solver in ("keep-all", "checkpoint-last")
    ]
    assert [budget.bytes for budget in report.budgets] == [21_705_524, 16_882_074, 14_000_000]
    assert {run.baseline_peak_bytes for run in report.runs} == {report.baseline_peak_bytes} == {24_117_248}
    assert all(run.peak_bytes <= run.budget_bytes for run in report.runs if run.has_plan)
    assert [run.status for run in report.runs[:2]] == ["not_found", "feasible"]
    assert (report.instance, report.model, report.order, report.missing_runs) == (str(INSTANCE), None, "keep", 0)
    assert report.exit_code == 0


def test_a_model_is_profiled_once_and_its_fixed_part_counts(here, tmp_path):
    model = ROOT / "sample_models" / "chain.onnx"
    report = compared(model, "100%,50%", "keep-all,auto", cache_dir=str(tmp_path))
    assert report.model == str(model)
    assert report.fixed_bytes > 0
    whole, half = (budget.bytes for budget in report.budgets)
    assert whole == report.baseline_peak_bytes
    assert half == report.fixed_bytes + -(-(report.baseline_peak_bytes - report.fixed_bytes) // 2)
    assert {run.solver: run.overhead_percent for run in report.runs_at("100%")} == {"auto": 0.0, "keep-all": 0.0}
    assert [run.fixed_bytes for run in report.runs] == [report.fixed_bytes] * 4


def test_scope_of_bytes(here, tmp_path):
    model = ROOT / "sample_models" / "chain.onnx"
    report = compared(model, "1GiB", "keep-all", cache_dir=str(tmp_path), budget_scope="activations")
    assert report.budgets[0].bytes == 2**30 + report.fixed_bytes


def test_a_budget_below_the_floor_takes_no_process(monkeypatch):
    monkeypatch.setattr(pipeline_compare, "run_side_by_side", partial(run_side_by_side, runner=None))
    report = compared(budgets="0.1,1000")
    assert [(run.solver, run.status, run.time) for run in report.runs] == [
        ("keep-all", "infeasible", None),
        ("checkpoint-last", "infeasible", None),
    ] * 2
    assert report.floor_bytes == 12_582_912


def test_options_reach_their_solver(here):
    report = compared(solvers="keep-all,moccasin", options=("moccasin.max_copies=3",))
    options = {run.solver: run.options for run in report.runs}
    assert options["moccasin"]["max_copies"] == 3
    assert options["keep-all"] == {}


def job(budget, solver="keep-all"):
    case = BenchCase(
        suite="compare",
        instance="unet",
        instance_path="unet.json",
        instance_sha256="",
        budget=budget,
        order="free",
        solver=solver,
        label=solver,
        seed=0,
        threads=1,
        time_limit_seconds=0.2,
    )
    return Job(case, INSTANCE)


@pytest.fixture
def log(monkeypatch):
    entries: list[tuple[str, str, str]] = []
    monkeypatch.setattr(LogProcess, "log", entries)
    return entries


def test_never_more_at_once_than_there_are_slots(log):
    jobs = [job(f"0.{number}") for number in range(1, 8)]
    ended = run_side_by_side(jobs, 3, silent(), LogProcess)
    assert sorted(ended) == list(range(7))
    at_once, most = 0, 0
    for word, *_ in log:
        at_once += 1 if word == "start" else -1
        most = max(most, at_once)
    assert (at_once, most) == (0, 3)


def stops(after: int, said: list[str] | None = None) -> Progress:
    """The user stops once so many runs have ended; `said` gets what was told of them."""
    said = [] if said is None else said
    return Progress(
        lambda event: said.append(str(event)) if isinstance(event, Detail) else None, lambda: len(said) >= after
    )


def test_ctrl_c_ends_what_runs_and_keeps_what_had_ended(log):
    said: list[str] = []
    ended = run_side_by_side([job(f"0.{number}") for number in range(1, 6)], 1, stops(1, said), LogProcess)
    assert list(ended) == [0]
    assert [word for word, *_ in log] == ["start", "exit"]
    assert said == ["1/5  keep-all 0.1 not found"]


def test_progress_names_what_still_runs(log):
    said: list[str] = []
    run_side_by_side([job(f"0.{number}") for number in range(1, 7)], 6, stops(9, said), LogProcess)
    assert said[0] == ("1/6  keep-all 0.1 not found; running keep-all 0.2, keep-all 0.3, keep-all 0.4 and 2 more")


def test_an_interrupted_comparison_is_a_report(here):
    report = compared(budgets="0.9,0.8", progress=stops(1), threads=1)
    assert [(run.solver, run.budget) for run in report.runs] == [("keep-all", "0.9")]
    assert (report.missing_runs, report.exit_code) == (3, 130)


def test_an_interrupt_before_any_run_has_ended_is_no_report(here):
    with pytest.raises(KeyboardInterrupt):
        compared(progress=stops(0))


@pytest.mark.parametrize("status", ["error", "crashed", "overran"])
def test_a_failed_run_fails_the_comparison_and_ends_the_others(log, status):
    class Fails(LogProcess):
        def answer(self):
            is_bad = self.case.budget == "0.2"
            return made_up(self.case, status=status, message="illegal schedule") if is_bad else made_up(self.case)

    with pytest.raises(RematError, match=rf"solver keep-all at budget 0.2: {status}: illegal schedule"):
        run_side_by_side([job(f"0.{number}") for number in range(1, 9)], 3, silent(), Fails)
    assert sum(word == "start" for word, *_ in log) == sum(word == "exit" for word, *_ in log) == 3


def test_a_process_that_dies_fails_the_comparison(monkeypatch):
    monkeypatch.setattr(runner, "solve_case", mishaps.give_up)
    with pytest.raises(RematError, match=r"solver keep-all at budget 0.9: crashed: ended with code 1: out of luck"):
        compared(solvers="keep-all")


@pytest.mark.slow
def test_real_processes():
    report = compared(budgets="0.9,100%")
    assert [run.status for run in report.runs_at("100%")] == ["optimal", "optimal"]
    assert [run.status for run in report.runs] == ["not_found", "feasible", "optimal", "optimal"]
    assert report.threads == 2
    assert report.run_threads == 1


def test_more_threads_than_runs_are_shared_among_them(here):
    report = compared(solvers="keep-all", threads=5, budgets="0.9,0.8")
    assert (report.threads, report.run_threads) == (5, 2)


def test_plans_that_contradict_a_proof_are_a_bug():
    check_agreement(compare_report())
    worse = run("moccasin", 0, 1030, space="free", lower_bound_percent=2.5)
    with pytest.raises(BrokenSolver, match=r"the plan of auto at budget 90% has \+1.0000 %, less than .* \+2.5000 %"):
        check_agreement(compare_report(runs=(run("auto", 0, 1010), worse)))
    refuted = run("moccasin", 0, None, status="infeasible")
    with pytest.raises(BrokenSolver, match="the plan of auto at budget 90% is one that was proved impossible"):
        check_agreement(compare_report(runs=(run("auto", 0, 1010), refuted)))
    with pytest.raises(BrokenSolver, match="proved impossible"):
        check_agreement(compare_report(runs=(run("auto", 0, 1010),), floor_bytes=91 * 2**20))


def test_ops_in_reasons_have_their_names():
    names = ("in", "conv_1", "")
    reason = Reason("op {} is read by op {} and op {}, not top 1", (1, 2, 7))
    assert reason.named(names) == "op conv_1 is read by op 2 and op 7, not top 1"
    assert str(reason.renumbered(range(3, 12))) == "op 4 is read by op 5 and op 10, not top 1"


@dataclass(frozen=True)
class Picky:
    """A solver that takes nothing."""

    name: str

    def supports(self, problem):
        return Reason("op {} breaks the chain", (1,))


@pytest.fixture
def picky(monkeypatch):
    for module in (asked, solving):
        monkeypatch.setattr(module, "make_solver", lambda name, options=None: Picky(name))


def test_none_that_applies_is_refused_with_reasons(picky):
    with pytest.raises(ConfigError, match=r"no solver applies: keep-all: op .* breaks the chain; checkpoint-last: op "):
        compared()


def test_solve_refuses_with_the_name_of_the_op(picky):
    from remat_cli.commands.solve import solve_instance

    config = load_settings({"budget": "0.9", "solver": "keep-all"})
    with pytest.raises(ConfigError, match=r"solver keep-all cannot take this problem: op \S+ breaks the chain"):
        solve_instance(INSTANCE, config, silent())
    assert refusal(None, Picky("keep-all"), ("a", "conv")) == "op conv breaks the chain"


@pytest.mark.slow
def test_plans_that_page_stand_beside_those_that_do_not(here):
    chain = ROOT / "bench" / "instances" / "gpt_3_layers_train.json"
    report = compared(chain, "0.7", "rotor,auto,greedy-paging,checkmate", spill="host:400GB/s", order="free")
    assert [run.solver for run in report.runs] == ["auto", "greedy-paging", "checkmate", "rotor"]
    assert {run.solver: run.may_page for run in report.runs} == {
        "auto": True, "greedy-paging": True, "checkmate": False, "rotor": False,
    }  # fmt: skip
    assert report.spill is not None
    assert report.spill.read_bytes_per_second == 400e9
    best, *others = [run for run in report.runs_at("0.7") if run.has_plan]
    assert best.solver == "auto"
    assert all(run.peak_bytes <= run.budget_bytes for run in (best, *others))
    assert report.bound_percent("0.7") == 0.0  # what was proved of plans that page nothing does not count
    assert "values may wait in host, 400.00 GB/s out, 400.00 GB/s back" in "\n".join(report.lines(Style()))


def test_a_pager_without_a_memory_is_told_what_to_add():
    with pytest.raises(ConfigError, match=r"solver 'pofo' plans with a memory to page to: add --spill"):
        compared(solvers="pofo")


def test_a_model_pages_to_a_disk_in_a_comparison_too(here, tmp_path):
    model = ROOT / "sample_models" / "chain.onnx"
    spill = {"folder": str(tmp_path), "write_bytes_per_second": 1e10, "read_bytes_per_second": 1e10}
    report = compared(model, "100%", "greedy-paging,keep-all", cache_dir=str(tmp_path), spill=spill)
    assert {run.solver: run.status for run in report.runs} == {"greedy-paging": "feasible", "keep-all": "optimal"}
