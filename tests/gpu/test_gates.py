"""Random plans for a device alone as one model with gates, in a session as users open one: nothing large is copied."""

from __future__ import annotations

import onnx
import pytest

from remat_cli.compiling.platform import Platform
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.verify.gated import gated_job, see_gated
from remat_cli.sessions.gated import Gating, save_gated
from tests import presence
from tests.gpu.cases import random_case, steady_bytes
from tests.presence import skip_without

skip_without(presence.device)
pytestmark = pytest.mark.gpu

GPU = named_spec(presence.device)
FEW, MANY = (1, 2), 200
LARGE_BYTES = 64


def check(seed, folder):
    """Order, place, copies and outputs are as promised; ops run again; the device holds no more than judged."""
    case = random_case(seed, folder, (GPU,), least_again=1)
    placed = case.placed
    spot = placed.plan.placement
    platform = Platform(placed.prepared.graph, spot.devices, spot.profiles, spot.links, spot.session_bytes)
    gating = Gating(placed.prepared, platform, placed.problem, placed.judged)
    found = gating.written()
    assert found.reason == ""
    assert gating.checked(found, folder).reason == ""
    assert max(found.copied_bytes, default=0) <= LARGE_BYTES
    assert len(found.rewritten.step_ops) == len(gating._ops)
    path = folder / "gated.onnx"
    save_gated(found.rewritten, path)
    held_bytes = steady_bytes(case, GPU, "gated", path)
    assert held_bytes is None or held_bytes <= found.peak_bytes
    return case, found.rewritten


@pytest.mark.parametrize("seed", FEW)
def test_a_sample_of_random_plans_is_kept(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, MANY))
def test_many_random_plans_are_kept(seed, tmp_path):
    check(seed, tmp_path)


def test_without_its_gates_the_order_is_lost(tmp_path):
    """So that the check of the order can fail: the file as it is, but every reader reads past the views."""
    case, rewritten = check(0, tmp_path)
    model = onnx.load(tmp_path / "gated.onnx")
    behind = {node.output[0]: node.input[0] for node in model.graph.node if node.name.startswith("remat_gate/")}
    for node in model.graph.node:
        for at in range(len(node.input) if not node.name.startswith("remat_gate/") else 0):
            while node.input[at] in behind:
                node.input[at] = behind[node.input[at]]
    open_path = tmp_path / "open.onnx"
    onnx.save(model, open_path)
    seen = see_gated(gated_job(open_path, GPU, case.placed.prepared.feeds))
    steps = set(rewritten.step_ops)
    assert tuple(name for name in seen.ran if name in steps) != rewritten.step_ops
