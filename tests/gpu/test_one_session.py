"""Random plans on the CPU and a device as one session: the runtime's own order, copies, placement and memory there."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from remat_cli.compiling.placed.cut import cut_of, in_one_session
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.program import make_program
from remat_cli.core.files.plan_file import graph_instances, write_plan
from remat_cli.devices.provider_table import PROVIDERS, named_spec
from remat_cli.runtime.segments._segment_sessions import Opening, misplaced_op, open_all
from tests import presence
from tests.gpu.cases import CPU, check_runs, random_case
from tests.presence import skip_without

skip_without(presence.device)
pytestmark = pytest.mark.gpu

GPU = named_spec(presence.device)
FEW, MANY = (13,), 40


def shared(seed, folder):
    """A random plan on both as one session, and its program; None where it cannot be one."""
    case = random_case(seed, folder, (CPU, GPU))
    placed = case.placed
    spot, problem, prepared = placed.plan.placement, placed.problem, placed.prepared
    platform = Platform(prepared.graph, spot.devices, spot.profiles, spot.links)
    plan = in_one_session(platform, prepared.reference, problem, placed.judged)
    if plan is None:
        return None
    cut = cut_of(platform, problem, plan, "one_session")
    peaks = dict(zip((memory.name for memory in problem.memories), cut.peak_bytes, strict=True))
    spot = msgspec.structs.replace(spot, way="one_session", segments=1, peak_bytes=peaks)
    lives = graph_instances(prepared.graph, problem, plan)
    file = msgspec.structs.replace(placed.plan, schedule=plan.schedule, instances=lives, placement=spot)
    write_plan(placed.path, file)
    return case, make_program(file, placed.path, folder / "program")


def check(seed, folder):
    """Ops run where and when planned, outputs are the CPU's within tolerance, the device holds no more than planned."""
    found = shared(seed, folder)
    if found is None:
        return False
    case, program = found
    check_runs(case, case.placed.path, program)
    return True


@pytest.mark.parametrize("seed", FEW)
def test_a_plan_is_run_as_one_session(seed, tmp_path):
    assert check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(14, MANY))
def test_many_plans_are_run_as_one_session(seed, tmp_path):
    if not check(seed, tmp_path):
        pytest.skip("this plan cannot be one session")


def test_an_op_that_is_elsewhere_is_named(tmp_path):
    """By the runtime's report, whatever it was told."""
    _, program = shared(1, tmp_path)
    (opened,) = open_all(program, Opening({}))
    assert misplaced_op(opened, program) is None
    op = next(name for name in opened.action.segment.ops if name not in opened.action.host_ops)
    action = msgspec.structs.replace(opened.action, host_ops=(*opened.action.host_ops, op))
    line = misplaced_op(replace(opened, action=action), program)
    here = PROVIDERS[GPU.provider].runtime_name
    assert line == f"op '{op}' is run by {here}, not by CPUExecutionProvider"
