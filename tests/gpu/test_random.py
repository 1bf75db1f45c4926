"""Random graphs, placed at random with ops computed again, on the CPU and a device: outputs, order, memory there."""

from __future__ import annotations

import pytest

from remat_cli.compiling.program import make_program
from remat_cli.devices.provider_table import named_spec
from tests import presence
from tests.gpu.cases import CPU, check_runs, random_case
from tests.presence import skip_without

skip_without(presence.device)
pytestmark = pytest.mark.gpu

GPU = named_spec(presence.device)
FEW, MANY = 2, 200


def check(seed, folder):
    case = random_case(seed, folder, (CPU, GPU))
    check_runs(case, case.placed.path, make_program(case.placed.plan, case.placed.path, folder / "program"))


@pytest.mark.parametrize("seed", range(FEW))
def test_a_sample_of_random_plans(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEW, MANY))
def test_many_random_plans(seed, tmp_path):
    check(seed, tmp_path)
