"""Regions that written models take of the system, run after run: the simulator beside the log of the runtime."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import msgspec
import onnx
import pytest

from remat_cli.base.progress import silent
from remat_cli.commands.asked import request_of, settings_of
from remat_cli.compiling.plan import plan_model
from remat_cli.compiling.planned import OneModel, PlannedModel
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.process.steady import inside, with_early_outputs
from remat_cli.compiling.profile import profile_model
from remat_cli.compiling.write import judge_again
from remat_cli.onnx_io.read.load import save
from remat_cli.onnx_io.write.steady import steady
from remat_cli.ort_rules.arena import LoadedSession, simulate_runs
from remat_cli.ort_rules.forecast import Steady, asked_for
from tests.runtime.test_arena import SAMPLES, watched
from tests.torch_like.outcome import save_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ties between chunks follow Linux's addresses")
RUNS = 5
RANDOM = range(2000, 2300)
SAMPLES_BY_NAME = {path.stem: path for path in SAMPLES}
BALLASTS = (None, (), (2**19 + 256,), (2**20 + 256, 2**22 + 256))
"""Of the forms that are tried: without the steady form, without ballasts, and with some."""


def planned_model(path: Path, budget: str, folder: Path, **words: object) -> PlannedModel:
    """A model compiled to a budget, before it is verified."""
    given = {"budget": budget, "time_limit": "20s", "intra_op_threads": 1, "cache_dir": str(folder / "cache"), **words}
    settings = settings_of(given)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    prepared = prepare(path, settings.conditions, work, silent())
    platform = profile_model(prepared, settings.conditions, silent())
    return plan_model(prepared, platform, request_of(settings), work, silent())


def regions_logged(path: Path, held: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Sizes of the regions that each run took, and the addresses of all."""
    _, *runs = watched("logged", path, RUNS, held).stderr.split("RUN\n")
    sizes = [tuple(map(int, re.findall(r"Extended allocation by (\d+) bytes", run))) for run in runs]
    return sizes, [int(place, 16) for place in re.findall(r"Allocated memory at (\w+)", "".join(runs))]


def ways(places: list[int]) -> list[bool]:
    """Whether new regions lie first; both where it is now so, now not."""
    found = {older > newer for newer, older in itertools.combinations(places[::-1], 2)}
    return sorted(found) or [True]


def open_dimensions(path: Path) -> set[str]:
    """Names of the dimensions that a model leaves open."""
    inputs = onnx.load(path, load_external_data=False).graph.input
    return {dim.dim_param for port in inputs for dim in port.type.tensor_type.shape.dim if dim.dim_param}


def check(
    planned: PlannedModel, folder: Path, ballasts: tuple[int, ...] | None, held: int, most_early_bytes: int = 0
) -> None:
    """The log of a written model in a form beside the simulation, with outputs of so many bytes made beforehand."""
    assert isinstance(planned, OneModel)
    rewritten = planned.written.rewritten
    judge = partial(judge_again, planned.prepared, planned.profile, planned.plan, rewritten)
    judged, model = judge(), rewritten.model
    if ballasts is not None:
        conditions = msgspec.structs.replace(planned.prepared.conditions, plain=False)
        found = inside(rewritten, judged.graph, conditions)
        assert found is not None
        if most_early_bytes:
            found = with_early_outputs(found, judged.graph, conditions, most_early_bytes)
            assert found is not None
        form = replace(found.form, ballast_bytes=ballasts)
        judged, model = judge(found), steady(model, form)
        judged = replace(judged, steady=Steady(form, found.branch))
    path = folder / "written.onnx"
    save(model, path)
    sizes, places = regions_logged(path, held)
    requests, arena = asked_for(judged, planned.prepared.runtime), planned.prepared.rules.arena
    sessions = [LoadedSession(arena, newest_first=way) for way in ways(places)]
    simulated = [simulate_runs(requests, RUNS, held, session) for session in sessions]
    assert sizes in [[run.new_regions for run in runs] for runs in simulated]


def spread(ballasts: tuple) -> list[object]:
    """Each form with none or two blocks held meanwhile, in turn; all with none, one and two in the slow tests."""
    quick = [(ballast, 2 * (number % 2)) for number, ballast in enumerate(ballasts)]
    rest = [pair for pair in itertools.product(ballasts, (0, 1, 2)) if pair not in quick]
    return [*quick, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in rest)]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Compiled models, each once."""

    @cache
    def make(path: Path, budget: str) -> PlannedModel:
        return planned_model(path, budget, tmp_path_factory.mktemp(path.stem), plain=True)

    return make


@pytest.mark.parametrize(("ballast", "held"), spread(BALLASTS))
def test_regions_of_a_compiled_sample(ballast, held, tmp_path, planned):
    check(planned(SAMPLES_BY_NAME["unet"], "70%"), tmp_path, ballast, held)


@pytest.fixture(scope="module")
def step(samples):
    """A small training step, with two dozen outputs of which all but the loss are parameters."""
    return samples.training_step("chain", "mse")


QUICK = [(2**12, BALLASTS[1], 0), (2**30, BALLASTS[2], 2)]
"""Few outputs made beforehand, or all; the form; and blocks held meanwhile."""
THOROUGH = [each for each in itertools.product((2**12, 2**30), BALLASTS[1:3], (0, 1, 2)) if each not in QUICK]


@pytest.mark.parametrize(
    ("most_bytes", "ballast", "held"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in THOROUGH)],
)
def test_regions_with_outputs_made_beforehand(most_bytes, ballast, held, step, tmp_path, planned):
    check(planned(step, "100%"), tmp_path, ballast, held, most_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("held", [0, 1, 2])
@pytest.mark.parametrize("ballast", BALLASTS)
@pytest.mark.parametrize("budget", ["100%", "60%", "min"])
@pytest.mark.parametrize("sample", SAMPLES_BY_NAME)
def test_regions_of_compiled_samples(sample, budget, ballast, held, tmp_path, planned):
    check(planned(SAMPLES_BY_NAME[sample], budget), tmp_path, ballast, held)


@pytest.mark.slow
def test_regions_of_random_models(tmp_path):
    for seed in RANDOM:
        path = save_model(seed, tmp_path)
        dims = {"dim": {"batch": 1}} if "batch" in open_dimensions(path) else {}
        made = planned_model(path, "70%", tmp_path, plain=True, split="off", **dims)
        if isinstance(made, OneModel):
            for held, ballast in ((0, None), (1, BALLASTS[seed % 4]), (2, BALLASTS[(seed + 1) % 4])):
                check(made, tmp_path, ballast, held)
