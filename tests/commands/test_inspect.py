"""A plan is looked at under the budget that is asked for now, and words that would change nothing are refused."""

import msgspec
import onnx
import pytest

import remat_cli as remat
from remat_cli.base.errors import ConfigError
from remat_cli.commands import inspect as command
from remat_cli.core.files.plan_file import write_plan
from remat_cli.core.values.curve import LadderStep
from remat_cli.core.values.resident import ProcessMemory
from tests.report import samples
from tests.splitting.quantised_models import dynamic_int8, encoder

MIB = samples.MIB
HELD = ProcessMemory(MIB, MIB, 20 * MIB, 20 * MIB, 0, 20 * MIB)  # with 1 MiB of inputs: 21 MiB


@pytest.fixture
def plan(tmp_path):
    file = samples.plan_file()
    file = msgspec.structs.replace(file, promise=msgspec.structs.replace(file.promise, process=HELD))
    write_plan(tmp_path / "net.plan.json", file)
    return tmp_path / "net.plan.json"


@pytest.mark.parametrize(
    ("words", "fits", "bounds", "budget_bytes"),
    [
        ({}, True, "live", 26 * MIB),
        ({"budget": "20MiB"}, False, "in the process", 20 * MIB),
        ({"budget": "21MiB"}, True, "in the process", 21 * MIB),
        ({"budget": "21MiB", "budget_scope": "live"}, False, "live", 21 * MIB),
        ({"budget": "25MiB", "budget_scope": "activations"}, True, "live", 26 * MIB + 1024),
        ({"budget": "100%"}, True, "live", samples.baseline(samples.problem()).peak),
        ({"budget": "1%"}, False, "live", None),
        ({"budget": "cpu=20MiB"}, False, "in the process", 20 * MIB),
    ],
)
def test_a_plan_is_judged_by_the_budget_that_is_asked_for(plan, words, fits, bounds, budget_bytes):
    report = remat.inspect(plan, **words)
    assert report.fits is fits
    how = "" if bounds == "live" else " by prediction"  # verification measured what is live, and no process
    assert report.verdict.startswith(f"fits{how}: " if fits else f"does not fit{how}: ")
    assert f" {bounds}" in report.verdict
    assert report.budget == words.get("budget", "80%")
    (need,) = report.needs
    assert budget_bytes in (None, need.budget_bytes)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"budget": "min"}, "--budget min: a plan is judged by bytes or a share"),
        ({"budget": "cuda:0=1GiB"}, "names no device 'cpu'"),
        ({"budget": "50%", "budget_scope": "process"}, "is not bytes"),
        ({"budget": "9MiB", "max_overhead": "5%", "split": "max"}, "--max-overhead, --split: "),
        ({"device": "openvino"}, "--device: "),
        ({"budget_scope": "live"}, "--budget-scope: nothing is judged without a budget"),
    ],
)
def test_what_cannot_apply_to_a_plan_is_refused_by_name(plan, words, told):
    with pytest.raises(ConfigError) as refused:
        remat.inspect(plan, **words)
    assert told in str(refused.value)


def test_a_process_that_a_plan_does_not_predict_is_not_judged(tmp_path):
    write_plan(tmp_path / "net.plan.json", samples.plan_file())
    assert " live" in remat.inspect(tmp_path / "net.plan.json", budget="25MiB").verdict
    with pytest.raises(ConfigError, match="predicts no process"):
        remat.inspect(tmp_path / "net.plan.json", budget="25MiB", budget_scope="process")


def test_a_model_in_dynamic_int8_says_why_that_did_not_help(tmp_path):
    onnx.save(dynamic_int8(encoder(64)).model, tmp_path / "net.onnx")
    report = remat.inspect(tmp_path / "net.onnx")
    assert report.few_bits is not None
    assert report.few_bits.kind == "int8"
    assert 0 < report.few_bits.float_bytes <= report.few_bits.alive_bytes


def test_the_ladder_has_no_budget_that_the_model_fits_as_it_is(tmp_path, monkeypatch):
    onnx.save(dynamic_int8(encoder(64)).model, tmp_path / "net.onnx")
    peak_bytes = remat.inspect(tmp_path / "net.onnx").peak_bytes
    steps = tuple(LadderStep(count, 1.0) for count in (peak_bytes + 1, peak_bytes, peak_bytes - 1))
    monkeypatch.setattr(command, "ladder", lambda *_: steps)
    assert remat.inspect(tmp_path / "net.onnx").ladder == steps[2:]
