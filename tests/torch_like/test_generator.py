"""Random models are worth compiling: stock ONNX Runtime runs them, and their outputs say something of their inputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from tests.torch_like import FAMILIES, families_of, torch_like_model
from tests.torch_like.feeds import random_inputs
from tests.torch_like.model import NEWEST, OLDEST

SEEDS = range(40)
LEAST_CHANGE = 1e-4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_default_session_runs_it_and_every_output_depends_on_the_inputs(seed):
    proto = ir.to_proto(torch_like_model(seed))
    onnx.checker.check_model(proto)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    runs = [session.run(None, random_inputs(proto, seed)) for seed in (0, 1)]
    for value, first, second in zip(proto.graph.output, *runs, strict=True):
        assert np.isfinite(first).all(), value.name
        assert np.ptp(first) > LEAST_CHANGE, value.name
        assert np.abs(first - second).max() > LEAST_CHANGE, value.name


def test_a_seed_means_one_model():
    first, second = (ir.to_proto(torch_like_model(7)).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_all_families_and_opsets_occur():
    models = [torch_like_model(seed) for seed in range(200)]
    seen = {family for model in models for family in families_of(model)}
    assert set(FAMILIES) <= seen
    assert {model.opset_imports[""] for model in models} == set(range(OLDEST, NEWEST + 1))
