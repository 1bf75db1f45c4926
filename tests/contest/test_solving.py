"""Solvers with and without a memory to page to: one way to run both, one report."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.compiling.page_answer import abstract_terms
from remat_cli.contest.report.bench_run import BenchCase
from remat_cli.contest.runner import Job, measure
from remat_cli.contest.solving import is_pager, made, names_of, solved
from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.spill import HOST, SpillSpec
from remat_cli.solvers import PAGERS, SOLVERS
from remat_cli.solvers.base import Limits

ROOT = Path(__file__).resolve().parents[2]
CHAIN = ROOT / "bench" / "instances" / "gpt_3_layers_train.json"
SECONDS = 10.0  # the first solver of a process compiles its kernels meanwhile, beside other tests


def subject(percent: int, rate: float = 4e11):
    free = instance_problem(load_instance(CHAIN))
    problem = free.with_budget(baseline(free).peak * percent // 100)
    host = SpillSpec(memory=HOST, write_bytes_per_second=rate, read_bytes_per_second=rate)
    return problem, abstract_terms(problem, host)


def test_where_values_may_page_auto_is_the_one_that_pages():
    assert names_of(may_page=False) == list(SOLVERS)
    assert names_of(may_page=True)[: len(PAGERS)] == list(PAGERS)
    assert set(names_of(may_page=True)) == {*PAGERS, *SOLVERS}
    assert is_pager("auto", may_page=True)
    assert not is_pager("auto", may_page=False)
    assert not is_pager("rotor", may_page=True)
    assert made("auto", {}, may_page=True).name == made("auto", {}, may_page=False).name == "auto"
    assert type(made("auto", {}, may_page=True)) is not type(made("auto", {}, may_page=False))


@pytest.mark.parametrize(
    "name", ["auto", pytest.param("paging", marks=pytest.mark.slow), "greedy-paging", "pofo", "rotor"]
)
def test_every_plan_is_within_the_budget_and_none_beats_its_ops(name):
    problem, terms = subject(70)
    found = solved(problem, name, {}, Limits(seconds=SECONDS), terms).solution
    assert found.solver == name
    assert found.status == "feasible"
    assert found.peak_bytes is not None
    assert found.peak_bytes <= found.budget_bytes == problem.memories[0].budget_bytes
    assert found.baseline_time == problem.baseline_time_ns
    assert found.time is not None
    assert found.time >= found.baseline_time
    assert found.overhead_percent == pytest.approx(100 * (found.time / found.baseline_time - 1))
    if name in ("paging", "greedy-paging"):
        assert found.recomputed_ops == 0
        assert found.facts["written_bytes"] == found.facts["read_bytes"] > 0
        assert found.time >= found.baseline_time + found.facts["stall"]


def test_a_budget_that_holds_everything_is_met_without_paging():
    problem, terms = subject(100)
    found = solved(problem, "auto", {}, Limits(seconds=SECONDS), terms).solution
    assert (found.status, found.time, found.gap_percent) == ("optimal", found.baseline_time, 0.0)


def test_a_budget_below_what_an_op_needs_is_proved_impossible():
    problem, terms = subject(1)
    for name in ("auto", "paging"):
        assert solved(problem, name, {}, Limits(seconds=SECONDS), terms).solution.status == "infeasible"


def test_a_process_of_its_own_gets_the_memory_too():
    problem, terms = subject(70)
    case = BenchCase(
        suite="compare",
        instance=CHAIN.name,
        instance_path=str(CHAIN),
        instance_sha256="",
        budget="70%",
        order="free",
        solver="greedy-paging",
        label="greedy-paging",
        seed=0,
        threads=1,
        time_limit_seconds=SECONDS,
    )
    run = measure(Job(case, problem, terms), lambda *message: None)
    assert run.status == "feasible"
    assert run.facts["written_bytes"] > 0
    assert run.time == solved(problem, "greedy-paging", {}, Limits(seconds=SECONDS), terms).solution.time


def test_an_instance_does_not_know_how_fast_a_memory_is():
    problem, _ = subject(70)
    with pytest.raises(
        ConfigError, match=r"--spill host: an instance knows no memory: write its bandwidth, host:12GB/s"
    ):
        abstract_terms(problem, SpillSpec(memory=HOST))


def test_a_model_in_place_of_an_instance_is_told_what_plans_models(tmp_path):
    model = tmp_path / "net.onnx"
    model.write_bytes(b"\x08\x0a")
    with pytest.raises(ModelError, match=r"not a benchmark instance: .*; an ONNX model is planned by `remat compile`"):
        load_instance(model)
