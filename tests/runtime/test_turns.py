"""Two models are timed in turn, in one process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from onnx import TensorProto, helper

from remat_cli.runtime.measure.turns import MOST_ROUNDS, SessionRuns, TurnsJob, run_in_turns, time_in_turn
from remat_cli.runtime.sessions._ort import ignore_progress, pack_all, run_fresh
from remat_cli.runtime.sessions.session import SessionSettings
from tests.runtime.models import save_model, value
from tests.runtime.test_busy import SPIN

SHAPE = (512, 512)


def products(path, count):
    """A chain of matrix products, so that more of them take longer."""
    nodes = [helper.make_node("MatMul", [f"t{i}" if i else "x", "x"], [f"t{i + 1}"]) for i in range(count)]
    ports = [value(name, TensorProto.FLOAT, SHAPE) for name in ("x", f"t{count}")]
    return save_model(path, nodes, ports[:1], ports[1:])


def test_the_longer_model_takes_longer(tmp_path):
    models = (products(tmp_path / "one.onnx", 1), products(tmp_path / "many.onnx", 20))
    feeds = {"x": np.full(SHAPE, 1e-3, np.float32)}
    one_ns, many_ns = time_in_turn(models, feeds, SessionSettings(exact=False, intra_op_threads=1))
    assert 0 < one_ns < many_ns


def test_a_busy_machine_is_seen_though_few_short_runs_are_timed(tmp_path):
    model, settings = str(products(tmp_path / "one.onnx", 1)), SessionSettings(exact=False, intra_op_threads=1)
    feeds = pack_all({"x": np.full(SHAPE, 1e-3, np.float32)})
    job = TurnsJob((model, model), (feeds,), SessionRuns(settings, (0, 0)), rounds=1)
    with subprocess.Popen([sys.executable, "-c", SPIN]) as other:
        try:
            found = run_fresh(run_in_turns, job, ignore_progress)
        finally:
            other.kill()
    assert 2 * 3 <= found.runs <= 2 * (2 + MOST_ROUNDS)
    assert found.noise.other_cores > 0.1
