from __future__ import annotations

import json

import onnx
import pytest
from click.testing import CliRunner

from bench.split_targets import (
    HALVED,
    activation_bytes,
    is_settled,
    measured_overhead,
    measured_share,
    predicted_share,
    targets,
)
from bench.splitting import LENGTH, OWN, main
from sample_models.zoo import zoo_names

FIXED, BASELINE = 100, 1100


def row(model, budget="min", share=40.0, extra=5.0, **changed):
    """A row of a verified run: predicted half as large as measured, the original taking 100 ns."""
    peak = FIXED + (BASELINE - FIXED) * share / 100
    solution = {"fixed_bytes": FIXED, "baseline_peak_bytes": BASELINE, "overhead_percent": 1.0}
    solution["peak_bytes"] = FIXED + (peak - FIXED) / 2
    verification = {"measured_peak_default_session_bytes": peak, "outputs_identical": True, "runtime_version": "1"}
    report = {"solution": solution, "verification": verification, "seconds": 15.0}
    times = [[110, 120], [100, 100 + extra], [101, 100 + extra]]
    known = {"exit_code": 0, "message": "", "again": False, "cache": "empty", "times_ns": times}
    return {"model": model, "budget": budget, **known, "report": report, **changed}


def target(rows, word):
    (found,) = (line for line in targets(rows) if word in line.wanted)
    return found


def test_figures_of_a_row():
    one = row("unet", share=40.0, extra=5.0)
    assert (predicted_share(one), measured_share(one), activation_bytes(one)) == (20.0, 40.0, 400)
    assert measured_overhead(one) == pytest.approx(5.0)
    assert measured_overhead(row("unet", times_ns=[])) is None
    failed = row("unet", exit_code=3, report={"solution": None, "verification": None})
    assert (predicted_share(failed), measured_share(failed), activation_bytes(failed)) == (None, None, None)


def test_times_settle_when_both_models_least_times_come_twice():
    assert is_settled([[100, 200], [150, 203], [101, 300]])
    assert not is_settled([[100, 200], [150, 203]])
    assert not is_settled([[100, 200]])
    assert not is_settled([])


@pytest.mark.parametrize("model", HALVED)
def test_halved_models_need_a_row_that_is_small_and_fast(model):
    assert target([], f"{model}: at most").is_met is None
    assert target([row(model, share=50.0, extra=9.9)], f"{model}: at most").is_met
    assert not target([row(model, share=50.1, extra=1.0)], f"{model}: at most").is_met
    assert not target([row(model, share=20.0, extra=10.1)], f"{model}: at most").is_met
    rows = [row(model, "min", 20.0, 30.0), row(model, "50%", 49.0, 3.0)]
    assert target(rows, f"{model}: at most").found.startswith("49.0 %")
    assert not target([row(model, exit_code=4)], f"{model}: at most").is_met


def test_geometric_mean_needs_all_nine():
    rows = [row(name, share=20.0 if number % 2 else 80.0) for number, name in enumerate(zoo_names())]
    mean = target(rows, "geometric mean")
    assert mean.found.startswith(f"{(80**5 * 20**4) ** (1 / 9):.1f} % over 9")
    assert mean.is_met
    assert target(rows[:-1], "geometric mean").is_met is None
    assert not target([row(name, share=46.0) for name in zoo_names()], "geometric mean").is_met


def test_other_lines_tell_met_from_missed():
    assert target([row("unet", share=40.0)], "unet").is_met
    assert not target([row("unet", share=40.1)], "unet").is_met
    assert target([row("unet", "25%", share=25.0)], "unet").is_met is False
    assert target([row("transformer_1024", "30%", share=30.0)], "transformer_1024").is_met
    assert target([row("experiment", "6.2MiB")], "experiment").is_met
    mib = 2**20
    large = row("experiment", "6.2MiB")
    large["report"]["verification"]["measured_peak_default_session_bytes"] = int(6.3 * mib)
    assert not target([large], "experiment").is_met


def test_compile_time_is_read_from_cold_and_cached_rows_apart():
    cold, cached = row("resnet50"), row("resnet50", again=True, cache="filled")
    cold["report"]["seconds"], cached["report"]["seconds"] = 119.0, 21.0
    assert target([cold, cached], "empty cache").is_met
    assert not target([cold, cached], "cached").is_met
    assert target([cold], "s cached").is_met is None


def test_one_wrong_bit_shows():
    wrong = row("chain", "25%")
    wrong["report"]["verification"]["outputs_identical"] = False
    found = target([row("unet"), wrong], "bit-identical")
    assert not found.is_met
    assert "chain 25%" in found.found


def test_table_can_be_written_again_from_rows(tmp_path):
    failed = row("chain", "25%", exit_code=4, times_ns=[], report={"split_obstacle": "tensor 'y' is the reason"})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (row("unet"), failed)))
    done = CliRunner().invoke(main, ["--from-rows", str(path)])
    assert done.exit_code == 0, done.output
    assert "| unet | min | verified |" in done.output
    assert "- chain at 25%: tensor 'y' is the reason" in done.output


@pytest.mark.parametrize("name", OWN)
def test_own_models_are_legal_and_the_same_every_time(name):
    model = OWN[name]()
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString(deterministic=True) == OWN[name]().SerializeToString(deterministic=True)


def test_encoder_has_attention_over_the_whole_sequence():
    shapes = [
        tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in OWN["transformer_1024"]().graph.value_info
    ]
    assert (1, 8, LENGTH, LENGTH) in shapes


@pytest.mark.slow
def test_bench_runs_the_experiment_of_the_issue():
    done = CliRunner().invoke(main, ["--models", "experiment", "--budgets", "50%"])
    assert done.exit_code == 0, done.output
    assert "| experiment | 50% | verified |" in done.output
