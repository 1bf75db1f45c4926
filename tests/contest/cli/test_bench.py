from __future__ import annotations

import json
from pathlib import Path

import pytest

from remat_cli.contest.commands import bench as pipeline_bench
from tests.contest.report.bench_runs import bench_run, without_plan

CHAIN = {
    "nodes": [{"id": op, "cost": 1, "memory": 1} for op in range(9)],
    "edges": [[0, 1], [1, 2], [2, 3], [3, 4], [3, 5], [4, 5], [2, 6], [5, 6], [1, 7], [6, 7], [0, 8], [7, 8]],
}
BENCH = """
time_limit: 2s
threads: 1
suites:
  - name: small
    instances: [one.json, two.json]
    solvers: [keep-all, local-search]
    budgets: [0.8]
"""


@pytest.fixture(autouse=True)
def files(folder):
    for name in ("one", "two"):
        Path(f"{name}.json").write_text(json.dumps({**CHAIN, "name": name}))
    Path("bench.yaml").write_text(BENCH)


@pytest.fixture
def asked(monkeypatch):
    """The cases that would run; each gets a made-up answer."""
    cases = []

    def answer(case, path, watch):
        cases.append(case)
        watch((0.1, 3.0, None))
        fields = {name: getattr(case, name) for name in case.__struct_fields__}
        return bench_run(**fields) if not case.probe or float(case.budget) >= 0.62 else without_plan(**fields)

    monkeypatch.setattr(pipeline_bench, "run_case", answer)
    return cases


def lines(name="bench.jsonl"):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_runs_solvers_on_instances(remat):
    outcome = remat("bench", "bench.yaml", "--markdown", "bench.md")
    assert outcome.code == 0
    runs = lines()
    assert [(run["instance"], run["label"]) for run in runs] == [
        ("one", "keep-all"), ("one", "local-search"), ("two", "keep-all"), ("two", "local-search"),
    ]  # fmt: skip
    assert [run["status"] for run in runs] == ["not_found", "feasible"] * 2
    run = runs[1]
    assert (run["ops"], run["edges"], run["baseline_peak_bytes"], run["budget_bytes"]) == (
        9,
        12,
        6,
        5,
    )  # 4.8 rounded up
    assert run["peak_bytes"] <= run["budget_bytes"]
    assert run["time"] > run["baseline_time"] == 9
    assert run["trace"][-1][1] == run["overhead_percent"]
    assert 0 < run["seconds_to_first"] <= run["seconds_to_best"] <= run["seconds"]
    assert run["peak_rss_mib"] >= run["start_rss_mib"] > 10
    assert set(run["versions"]) == {"remat", "python", "ortools", "numba", "machine", "cores"}
    assert str(Path.cwd()) not in Path("bench.jsonl").read_text()
    assert "small: solver against solver" in outcome.out
    assert "1/4  small: one 0.8 free, keep-all, seed 0" in outcome.err
    assert Path("bench.md").read_text().startswith("# Solvers, measured")


def test_budgets_as_people_write_them(remat, asked):
    Path("bench.yaml").write_text(BENCH.replace("[0.8]", "[0.9, 80%, 5]"))
    assert remat("bench", "bench.yaml").code == 0
    assert {case.budget for case in asked} == {"0.9", "80%", "5"}


def test_resume_runs_only_what_is_missing(remat, asked):
    assert remat("bench", "bench.yaml").code == 0
    whole = Path("bench.jsonl").read_bytes()
    cut = whole.splitlines(keepends=True)
    Path("bench.jsonl").write_bytes(b"".join(cut[:2]) + cut[2][:40])
    asked.clear()
    outcome = remat("bench", "bench.yaml", "--resume")
    assert outcome.code == 0
    assert [(case.instance, case.label) for case in asked] == [("two", "keep-all"), ("two", "local-search")]
    assert Path("bench.jsonl").read_bytes() == whole
    assert "4 runs in bench.jsonl, 2 of them new" in outcome.out


def test_a_changed_instance_is_run_again(remat, asked):
    remat("bench", "bench.yaml")
    Path("two.json").write_text(json.dumps(CHAIN))
    asked.clear()
    remat("bench", "bench.yaml", "--resume")
    assert {case.instance for case in asked} == {"two"}


def test_existing_results_are_not_overwritten_by_chance(remat, asked):
    remat("bench", "bench.yaml")
    before = Path("bench.jsonl").read_bytes()
    outcome = remat("bench", "bench.yaml")
    assert (outcome.code, outcome.out) == (2, "")
    assert "add --resume to go on with it, or --force" in outcome.err
    assert Path("bench.jsonl").read_bytes() == before
    assert remat("bench", "bench.yaml", "--force").code == 0
    assert len(asked) == 8


def test_force_for_one_suite_keeps_the_others(remat, asked):
    more = BENCH + BENCH.partition("suites:\n")[2].replace("small", "other")
    Path("bench.yaml").write_text(more)
    remat("bench", "bench.yaml")
    asked.clear()
    outcome = remat("bench", "bench.yaml", "--force", "--only", "other")
    assert {case.suite for case in asked} == {"other"}
    assert "4 runs in bench.jsonl, 4 of them new" in outcome.out
    assert [run["suite"] for run in lines()] == ["small"] * 4 + ["other"] * 4


def test_ctrl_c_keeps_what_is_there(remat, monkeypatch, asked):
    ask = pipeline_bench.run_case

    def interrupted(case, path, watch):
        if len(asked) == 2:
            raise KeyboardInterrupt
        return ask(case, path, watch)

    monkeypatch.setattr(pipeline_bench, "run_case", interrupted)
    outcome = remat("bench", "bench.yaml")
    assert (outcome.code, outcome.out) == (130, "")
    assert "note: 2 new runs are in bench.jsonl; the same command with --resume goes on" in outcome.err
    assert outcome.err.endswith("error: interrupted\n")
    assert len(lines()) == 2


def test_tables_from_the_file_alone(remat, asked):
    remat("bench", "bench.yaml", "-o", "r.jsonl")
    Path("bench.yaml").unlink()
    Path("one.json").unlink()
    outcome = remat("bench", "r.jsonl", "--svg", "plots")
    assert outcome.code == 0
    assert "4 runs in r.jsonl, 0 of them new" in outcome.out
    assert sorted(path.name for path in Path("plots").iterdir()) == ["small-one-0.8-free.svg", "small-two-0.8-free.svg"]
    report = json.loads(remat("bench", "r.jsonl", "--format", "json").out)
    assert len(report["runs"]) == 4


def test_flags_hold_for_all_suites(remat, asked):
    outcome = remat("bench", "bench.yaml", "--seed", "0", "--threads", "2", "--time-limit", "500ms")
    assert outcome.code == 0
    assert {(case.seed, case.threads, case.time_limit_seconds) for case in asked} == {(0, 2, 0.5)}


def test_a_failed_run_is_a_line_and_the_rest_goes_on(remat, monkeypatch):
    def crash(case, path, watch):
        fields = {name: getattr(case, name) for name in case.__struct_fields__}
        return without_plan(**fields, status="crashed", message="killed by signal 9")

    monkeypatch.setattr(pipeline_bench, "run_case", crash)
    outcome = remat("bench", "bench.yaml")
    assert outcome.code == 1
    assert len(lines()) == 4
    assert "note: one 0.8 free, keep-all, seed 0: crashed: killed by signal 9" in outcome.err


def test_tight_suite_bisects(remat, asked):
    tight = """
    suites:
      - {name: tight, kind: tight, step: 0.1, instances: [one.json], solvers: [keep-all]}
    """
    Path("bench.yaml").write_text(tight)
    outcome = remat("bench", "bench.yaml")
    assert [case.budget for case in asked] == ["0.5", "0.7", "0.6"]
    assert outcome.out.splitlines()[2].split()[:5] == ["one", "9", "free", "keep-all", "0.7"]
    asked.clear()
    remat("bench", "bench.yaml", "--resume")
    assert asked == []


def test_optional_suites_skip_what_is_not_there(remat, asked):
    Path("bench.yaml").write_text(BENCH.replace("[one.json, two.json]", "[no.json, t*.json]\n    optional: true"))
    outcome = remat("bench", "bench.yaml")
    assert outcome.code == 0
    assert "skipped small: no.json: it is not there" in outcome.out
    assert {case.instance for case in asked} == {"two"}


def test_nothing_to_run_is_no_error(remat, asked):
    Path("bench.yaml").write_text(BENCH.replace("[one.json, two.json]", "[no.json]\n    optional: true"))
    outcome = remat("bench", "bench.yaml")
    assert (outcome.code, asked) == (0, [])
    assert "skipped small: no.json: it is not there" in outcome.out
    assert "0 runs in bench.jsonl" in outcome.out
    assert not Path("bench.jsonl").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can make files")
def test_an_unwritable_results_file_costs_no_run(remat, asked):
    outcome = remat("bench", "bench.yaml", "-o", "/proc/bench.jsonl")
    assert (outcome.code, outcome.out, asked) == (1, "", [])
    assert outcome.err.startswith("error: ")
    assert "bench.jsonl cannot be written" in outcome.err or "/proc cannot be written to" in outcome.err


def test_a_folder_for_pictures_that_cannot_be_made(remat, asked):
    outcome = remat("bench", "bench.yaml", "--svg", "one.json/plots")
    assert outcome.code == 2
    assert "folder one.json/plots cannot be made" in outcome.err
    assert len(lines()) == 4  # the runs are kept


def test_settings_per_solver_and_instance(remat, asked):
    text = """
    seeds: [0, 1]
    time_limit: 1s
    suites:
      - name: s
        instances: [{path: one.json, budgets: [0.8], targets: {80%: 2.5}}]
        solvers: [auto, {name: auto, label: patient, options: {patience: 0}, time_limit: 2m, seeds: [7]}]
        reference: patient
    """
    Path("bench.yaml").write_text(text)
    assert remat("bench", "bench.yaml").code == 0
    assert [(case.label, case.seed, case.time_limit_seconds) for case in asked] == [
        ("auto", 0, 1), ("auto", 1, 1), ("patient", 7, 120),
    ]  # fmt: skip
    assert {case.target_percent for case in asked} == {2.5}
    assert {case.reference for case in asked} == {"patient"}


SUITE = "suites: [{name: s, instances: [one.json], solvers: [auto], budgets: [0.9]}]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "`suites` must be a list"),
        ("- a\n- b", "must hold `key: value` lines"),
        ("suits: []", "unknown key 'suits'; did you mean 'suites'?"),
        ("suites: [3]", "suite 1 must hold"),
        (SUITE.replace("solvers", "solver"), "suite s: unknown key 'solver'; did you mean 'solvers'?"),
        (SUITE.replace("solvers: [auto], ", ""), "suite s: needs the key 'solvers'"),
        (SUITE.replace("[auto]", "[moccasim]"), "no solver named 'moccasim'"),
        (SUITE.replace("[auto]", "[]"), "solvers is empty"),
        (SUITE.replace("[auto]", "[{nam: auto}]"), "in solvers[0]: unknown key 'nam'; did you mean 'name'?"),
        (SUITE.replace("[auto]", "[{name: auto, options: {x: 1}}]"), "unknown field `x`"),
        (SUITE.replace("[auto]", "[auto, auto]"), "two solvers are named 'auto'"),
        (SUITE.replace("0.9", "1.2"), "budget '1.2'"),
        (SUITE.replace("0.9", "min"), "budget 'min' is not one fraction"),
        (SUITE.replace(", budgets: [0.9]", ""), "one.json has no budgets"),
        (SUITE.replace("budgets", "kind: tight, budgets"), "leave out `budgets`"),
        (SUITE.replace("budgets", "kind: loose, budgets"), "suite s in kind: Invalid enum value 'loose'"),
        (SUITE.replace("budgets", "seeds: [-1], budgets"), "seeds must not be negative"),
        (SUITE.replace("budgets", "orders: [up], budgets"), "suite s in orders[0]: Invalid enum value 'up'"),
        (SUITE.replace("budgets", "time_limit: soon, budgets"), "time limit 'soon'"),
        (SUITE.replace("budgets", "reference: x, budgets"), "reference 'x' is none of its solvers: auto"),
        (SUITE.replace("budgets", "threads: -1, budgets"), "threads must not be negative"),
        (SUITE.replace("one.json", "no.json"), "instance no.json does not exist"),
        (SUITE.replace("one.json", "."), "instance . is a folder: write ./*.json"),
        (
            SUITE.replace("one.json", "{path: one.json, targets: {0.8: 1}}"),
            "one.json has a target for budget 0.8, which is none of its budgets",
        ),
        (SUITE.replace("}]", "}, {name: s, instances: [one.json], solvers: [auto], budgets: [1]}]"), "named 's'"),
    ],
)
def test_a_wrong_bench_file_is_one_line(remat, asked, text, words):
    Path("bench.yaml").write_text(text)
    outcome = remat("bench", "bench.yaml")
    assert (outcome.code, outcome.out, asked) == (2, "", [])
    assert len(outcome.err.splitlines()) == 1
    assert words in outcome.err
    assert not Path("bench.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no.yaml",), "does not exist"),
        (("bench.yaml", "--only", "x"), "has no suite 'x'; there are: small"),
        (("bench.yaml", "--time-limit", "x"), "time limit 'x'"),
        (("bench.yaml", "-o", "bench.yaml"), "exists"),
        (("bench.yaml", "-o", "bench.yaml", "--force"), "would overwrite"),
        (("bench.yaml", "--markdown", "one.json"), "one.json exists: add --force"),
        (("bench.yaml", "--svg", "one.json"), "one.json is not a folder"),
        (("one.json",), "results one.json line 1"),
        (("one.json", "--resume"), "--resume is for running a bench file"),
        (("one.json", "-o", "x"), "--output is for running a bench file"),
    ],
)
def test_wrong_flags_are_one_line(remat, asked, arguments, words):
    Path("one.json").write_text('{"nodes": []}\n')
    outcome = remat("bench", *arguments)
    assert (outcome.code, outcome.out, asked) == (2, "", [])
    assert len(outcome.err.splitlines()) == 1
    assert words in outcome.err
