"""What one compile found is known to all later ones: no plan is worse than one that another budget led to."""

from __future__ import annotations

import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.base.progress import WATCHING, Stage
from remat_cli.compiling.one_model import verify
from remat_cli.compiling.process.resident import RUNS
from remat_cli.compiling.search.known_plans import FROM_CURVE, KnownPlans
from remat_cli.onnx_io.write.apart import packed_apart, unpacked
from remat_cli.report import render_json
from remat_cli.report.style import Style
from remat_cli.runtime.verify.verify_request import VerifyRequest

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
ROUNDING_PERCENT = 0.05  # costs of single ops are whole nanoseconds, and measured again where the machine was busy
FEW = {"verify": "fast", "time_limit": "4s", "race": "0%"}


def wide_chain(path: Path, layers: int = 4, rows: int = 2048, seed: int = 0) -> Path:
    """Products with small weights on many rows: whole ops need two tensors at once, tiles less."""
    random, nodes, value = np.random.default_rng(seed), [], "x"
    for number in range(layers):
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [f"a{number}"]))
        nodes.append(helper.make_node(("Relu", "Sigmoid")[number % 2], [f"a{number}"], [f"r{number}"]))
        value = f"r{number}"
    nodes.append(helper.make_node("ReduceMean", [value], ["y"], axes=[1], keepdims=0))
    weights = [numpy_helper.from_array(random.standard_normal((16, 16), np.float32), f"w{n}") for n in range(layers)]
    sizes = {"x": (rows, 16), "y": (rows,)}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in sizes.items()]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that knows nothing yet."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def compiled(model: Path, budget: str, **words: object) -> tuple[remat_cli.CompileReport, list[str]]:
    """The report, and the stages that a compile went through."""
    told: list[str] = []

    def tell(event: object) -> None:
        if isinstance(event, Stage):
            told.append(event.text)

    out = model.with_name(f"{model.stem}-{budget.strip('%')}.onnx")
    report = remat_cli.compile(model, budget=budget, output=out, force=True, on_progress=tell, **{**FEW, **words})
    return report, told


def figures(report: remat_cli.CompileReport) -> tuple[int, float]:
    """Promised bytes and promised overhead."""
    return report.solution.peak_bytes, report.solution.overhead_percent


def check_curve(found: dict[int, tuple[int, float]]) -> None:
    """None is slower than one for less memory, so that none is dominated."""
    for (less, small), (more, large) in itertools.combinations(sorted(found.items()), 2):
        assert large[1] <= small[1] + ROUNDING_PERCENT, (less, more)


def test_a_second_compile_at_a_budget_searches_for_nothing(own_cache: Path) -> None:
    model = wide_chain(own_cache / "chain.onnx")
    first, told = compiled(model, "40%")
    assert first.exit_code == 0
    assert FROM_CURVE not in first.solution.facts
    assert "solving" in told
    again, told = compiled(model, "40%")
    assert again.exit_code == 0
    assert again.solution.facts[FROM_CURVE]
    assert "solving" not in told
    assert figures(again) == pytest.approx(figures(first), abs=ROUNDING_PERCENT)
    assert again.regions == first.regions
    assert again.verification.outputs_identical


@pytest.mark.slow  # compiles five times
def test_larger_budgets_are_never_slower_whatever_comes_first(own_cache: Path) -> None:
    model, budgets = wide_chain(own_cache / "chain.onnx"), (70, 35, 50, 90)
    for budget in budgets:
        assert compiled(model, f"{budget}%", verify="off")[0].exit_code == 0
    check_curve({budget: figures(compiled(model, f"{budget}%", verify="off")[0]) for budget in budgets})


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["unet", "transformer", "detector"])
def test_no_budget_of_a_sample_has_a_worse_plan_than_another(own_cache: Path, sample: str) -> None:
    model, budgets = own_cache / f"{sample}.onnx", (80, 65, 50, 35)
    model.write_bytes((SAMPLES / model.name).read_bytes())
    found = {}
    for _ in range(2):  # what the last one found is known to the first one only the next time
        reports = {budget: compiled(model, f"{budget}%", verify="off")[0] for budget in budgets}
        found = {budget: figures(report) for budget, report in reports.items() if report.exit_code == 0}
    assert len(found) >= 2
    check_curve(found)


def test_tiles_are_kept_without_the_weights_of_the_whole_model(own_cache: Path) -> None:
    whole = ir.load(wide_chain(own_cache / "chain.onnx"))
    copy = whole.clone()
    own = ir.tensor(np.arange(3, dtype=np.int64), name="bounds")
    copy.graph.initializers["bounds"] = ir.Value(name="bounds", const_value=own, type=ir.TensorType(own.dtype))
    packed = packed_apart(copy, whole)
    assert packed is not None
    again = unpacked(packed, whole)
    assert again is not None
    assert again.graph.initializers["w0"].const_value is whole.graph.initializers["w0"].const_value
    assert again.graph.initializers["bounds"].const_value.numpy().tolist() == [0, 1, 2]
    assert ir.to_proto(again).graph.node == ir.to_proto(copy).graph.node
    del whole.graph.initializers["w0"]
    assert unpacked(packed, whole) is None


@pytest.mark.slow
def test_a_budget_on_the_process_is_answered_by_what_was_found_for_live_bytes(own_cache: Path) -> None:
    model = wide_chain(own_cache / "chain.onnx", rows=65536)
    found, _ = compiled(model, "45%")
    process = found.asked.process_bytes
    assert found.exit_code == 0
    within, told = compiled(model, str(process + 4096))
    assert within.exit_code == 0
    assert within.asked.process_bytes <= process + 4096
    assert within.solution.overhead_percent <= found.solution.overhead_percent + ROUNDING_PERCENT
    again, told = compiled(model, str(process + 4096))
    assert again.solution.facts[FROM_CURVE]
    assert "solving" not in told


def test_inspect_ends_with_what_less_memory_costs(own_cache: Path) -> None:
    model = wide_chain(own_cache / "chain.onnx")
    guessed = remat_cli.inspect(model).ladder
    assert guessed
    assert all(step.is_estimate for step in guessed)
    assert guessed[-1].budget_bytes < remat_cli.inspect(model).floor_bytes
    found, _ = compiled(model, "40%", verify="off")
    report = remat_cli.inspect(model)
    assert any(not step.is_estimate and step.budget_bytes <= found.solution.budget_bytes for step in report.ladder)
    assert any(line.startswith("what less memory costs") for line in report.lines(Style()))
    assert remat_cli.inspect(model, split="off").ladder == ()  # no plan without tiles is kept


def test_what_a_process_of_the_original_holds_is_measured_once(own_cache: Path) -> None:
    model = wide_chain(own_cache / "chain.onnx")
    first, again = (compiled(model, "40%", verify="on", capped_run=False)[0] for _ in range(2))
    watched = [{each.name: each.runs for each in report.stages}[WATCHING] for report in (first, again)]
    assert watched[0] == watched[1] == RUNS  # of the new model: the original's are those for its outputs
    assert again.verification.process.original == first.verification.process.original
    assert sum(each.runs for each in again.stages) < sum(each.runs for each in first.stages)
    assert sum(each.seconds for each in first.stages) == pytest.approx(first.seconds, rel=0.2)


def test_what_sessions_on_the_original_showed_is_not_measured_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are not counted for that: how often both models are timed in turn depends on how busy the machine is."""
    known_alone, verify_closely = list[Any](), verify.verify_closely

    def watched(request: VerifyRequest, *more: Any) -> Any:
        known_alone.append(request.known_alone)
        return verify_closely(request, *more)

    monkeypatch.setattr(verify, "verify_closely", watched)
    model = wide_chain(own_cache / "chain.onnx")
    first, again = (compiled(model, "40%", verify="on", capped_run=False)[0] for _ in range(2))
    assert known_alone[0] is None
    assert known_alone[-1]
    for report in (first, again):
        told = json.loads(render_json(report))
        assert (
            told["runs_of_model"]
            == sum(stage["runs"] for stage in told["stages"])
            >= told["verification"]["inferences"]
        )
        assert sum(told["seconds_by_stage"].values()) == pytest.approx(sum(each.seconds for each in report.stages))
    seen, known = again.verification, first.verification
    assert seen.outputs_identical
    assert seen.original_default_session_peak_bytes == known.original_default_session_peak_bytes


def test_where_a_known_plan_cannot_be_built_any_more_the_search_is_made_without_it(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wide_chain(own_cache / "chain.onnx", rows=65536)
    found, _ = compiled(model, "45%")
    assert found.exit_code == 0
    monkeypatch.setattr(KnownPlans, "build", lambda self, kept: None)
    again, _ = compiled(model, "43%")
    assert again.exit_code == 0
    assert FROM_CURVE not in again.solution.facts


@pytest.mark.parametrize("part", ["tiles", "searches", "plans"])
def test_what_another_version_kept_in_another_form_is_left_out(own_cache: Path, part: str) -> None:
    model = wide_chain(own_cache / "chain.onnx", rows=65536)
    found, _ = compiled(model, "45%")
    assert found.exit_code == 0
    with sqlite3.connect(next(own_cache.rglob("profiles.sqlite3"))) as database:
        changed = database.execute(
            "UPDATE models SET facts = ? WHERE scope LIKE ?", (msgspec.msgpack.encode({"of": "another"}), f"% {part}%")
        )
    database.close()
    assert changed.rowcount > 0
    again, _ = compiled(model, "45%")
    assert again.exit_code == 0
