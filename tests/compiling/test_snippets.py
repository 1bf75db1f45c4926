"""How a compiled file is opened, in a line: with just the options that it needs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from remat_cli.compiling.one_model.record import model_snippet, session_line
from remat_cli.core.values.resident import RunsForecast
from remat_cli.core.values.session import session_of
from tests.report.samples import plan_file

OUT = Path("out.onnx")
PROVIDERS = 'providers=["CPUExecutionProvider"])'


def steady(**request):
    """A plan whose later runs take no more than the first."""
    plan = plan_file()
    promise = msgspec.structs.replace(plan.promise, runs=RunsForecast(0, 0, 0, 0, ()))
    return msgspec.structs.replace(plan, promise=promise, request=msgspec.structs.replace(plan.request, **request))


def test_without_options_it_is_a_session():
    assert session_line(steady(), OUT) == f'session = onnxruntime.InferenceSession("out.onnx", {PROVIDERS}'


@pytest.mark.parametrize(
    ("plan", "option"),
    [
        (plan_file(), "options.enable_mem_pattern = False"),
        (steady(custom_ops=("mine.so",)), 'options.register_custom_ops_library("mine.so")'),
        (steady(session=session_of(("arena=off",))), "options.enable_cpu_mem_arena = False"),
        (
            steady(session=session_of(("optimisation=basic",))),
            "options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC",
        ),
    ],
)
def test_what_it_needs_is_set_before(plan, option):
    assert session_line(plan, OUT) == (
        f"options = onnxruntime.SessionOptions(); {option}; "
        f'session = onnxruntime.InferenceSession("out.onnx", options, {PROVIDERS}'
    )
    assert option.replace("onnxruntime.", "ort.") in model_snippet(plan, OUT)
