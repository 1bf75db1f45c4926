"""The simulated arena and memory pattern beside the runtime's own log, byte for byte, and their rules one by one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from remat_cli.onnx_io.read.load import save
from remat_cli.onnx_io.write.steady import steady
from remat_cli.ort_rules import arena as arenas
from remat_cli.ort_rules.arena import Arena, LoadedSession, simulate_runs
from remat_cli.ort_rules.requests import Request
from remat_cli.ort_rules.steady import SteadyBranch, SteadyForm, steady_requests
from remat_cli.runtime.sessions._ort import installed_rules
from remat_cli.runtime.sessions.session import optimize

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "sample_models").glob("*.onnx"))
KIB, MIB = 2**10, 2**20
ALIGNED_BYTES = 64
RULES = installed_rules().arena
pattern_bytes = partial(arenas.pattern_bytes, rules=RULES)


def requests(*steps: tuple[int, int]) -> list[Request]:
    """Requests from (number, bytes); 0 bytes give back."""
    known: dict[int, int] = {}
    found = []
    for number, size in steps:
        found.append(Request(number, size or known[number], bool(size)))
        known[number] = size or known[number]
    return found


def regions_of(*sizes: int) -> list[int]:
    """Regions after requests of so many bytes that stay."""
    arena = Arena(RULES)
    arena.run(Request(number, size, True) for number, size in enumerate(sizes))
    return arena.regions


def test_a_unit_is_taken_even_for_nothing():
    assert [RULES.rounded_bytes(size) for size in (0, 1, 256, 257)] == [256, 256, 256, 512]


def test_regions_double_until_one_fits_and_the_second_of_a_size_makes_the_next_larger():
    assert regions_of(4 * MIB, 4 * MIB, 8 * MIB) == [4 * MIB, 4 * MIB, 8 * MIB]
    assert regions_of(100) == [MIB]
    assert regions_of(1100 * MIB, 1100 * MIB, 1100 * MIB) == [2048 * MIB] * 3


def test_a_chunk_is_cut_only_where_as_much_would_be_left():
    arena = Arena(RULES)
    arena.run(requests((0, 700 * KIB), (0, 0), (1, 400 * KIB)))
    assert arena.regions == [MIB]
    assert arena.held[1].size == 400 * KIB
    arena.run(requests((2, 400 * KIB)))
    assert arena.held[2].size == 624 * KIB  # whole: less than twice as much
    assert arena.touched_bytes == 800 * KIB
    assert arena.resident_bytes == 800 * KIB + MIB // 32


def test_free_neighbours_join():
    arena = Arena(RULES)
    arena.run(requests((0, 256 * KIB), (1, 256 * KIB), (2, 256 * KIB), (0, 0), (2, 0), (1, 0), (3, MIB)))
    assert arena.regions == [MIB]
    assert [chunk.size for chunk in arena.chunks[0]] == [MIB]


def test_a_pattern_takes_the_tightest_gap_at_once():
    steps = ((0, 512), (1, 256), (2, 1024), (0, 0), (3, 256), (4, 512))
    assert pattern_bytes(requests(*steps)) == 512 + 256 + 1024 + 512
    assert pattern_bytes(requests((0, 512), (1, 256), (0, 0), (2, 512))) == 768


def test_what_is_above_the_last_live_request_is_a_gap_too():
    steps = ((0, 512), (1, 1024), (2, 512), (3, 1024), (1, 0), (3, 0), (4, 768))
    assert pattern_bytes(requests(*steps)) == 512 + 1024 + 512 + 1024
    assert (
        pattern_bytes(requests(*steps, (5, 1024))) == 512 + 1024 + 512 + 1024
    )  # the gap above fits, the other is left
    tight = ((0, 1280), (1, 512), (2, 1024), (0, 0), (2, 0), (3, 1024), (4, 1280))
    assert pattern_bytes(requests(*tight)) == 1280 + 512 + 1024


@pytest.fixture(scope="module")
def tracer(tmp_path_factory) -> Path:
    """The library that notes requests."""
    library = tmp_path_factory.mktemp("tracer") / "requests.so"
    source = Path(__file__).with_name("requests.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def watched(kind: str, model: Path, *rest: object, tracer: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({} if tracer is None else {"LD_PRELOAD": str(tracer)})}
    command = [sys.executable, "-m", "tests.runtime.watch_arena", kind, str(model), *map(str, rest)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
@pytest.mark.parametrize("sample", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_regions_and_block_are_those_of_the_runtime(sample, tmp_path, tracer):
    model = tmp_path / "optimised.onnx"
    optimize(sample, model, "all", 1)
    found = [Request(*event) for event in json.loads(watched("traced", model, tracer, tracer=tracer).stdout)]
    first, second = watched("logged", model, 2, 0).stderr.split("RUN\n")[1:]
    arena = Arena(RULES)
    arena.run(found)
    assert arena.regions == [int(size) for size in re.findall(r"Extended allocation by (\d+) bytes", first)]
    given_back = {request.number for request in found if not request.takes}
    block = pattern_bytes([request for request in found if request.number in given_back])
    assert [str(block)] == re.findall(r"rounded_bytes:(\d+)", second)[:1]


def alike(found: list[Request]) -> list[tuple[int, int, bool]]:
    """Requests with numbers in order of appearance, and sizes as they are asked for without an arena."""
    numbers: dict[int, int] = {}
    return [
        (numbers.setdefault(each.number, len(numbers)), -(-each.bytes // ALIGNED_BYTES), each.takes) for each in found
    ]


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
@pytest.mark.parametrize(
    "ballast_bytes", [(), (2**19 + 256,), (2**24 + 256, 2**27 + 256), (2**19 + 256, 2**21 + 256, 2**24 + 256)]
)
def test_the_steady_form_asks_for_what_is_said_of_it(ballast_bytes, tmp_path, tracer):
    size = 2**12
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, size])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, size])
    relu = helper.make_node("Relu", ["x"], ["y"], name="relu")
    model = ir.from_proto(
        helper.make_model(
            helper.make_graph([relu], "g", [value], [result]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
    )
    form, path = SteadyForm(ballast_bytes), tmp_path / "steady.onnx"
    save(steady(model, form), path)
    found = [Request(*event) for event in json.loads(watched("traced", path, tracer, tracer=tracer).stdout)]
    inner = [Request(0, 3 * size * 4, True, in_block=False)]
    assert alike(found) == alike(list(steady_requests(inner, SteadyBranch(2), form)))


def test_a_run_that_leaves_the_arena_as_it_was_is_the_last_that_is_simulated():
    steps = requests((0, 3 * MIB), (1, MIB), (0, 0), (1, 0))
    steps.insert(3, Request(2, 2 * MIB, True, in_block=False))  # an output
    once, *later = simulate_runs(steps, 1000, 1, LoadedSession(RULES))
    assert later[5:] == later[5:6] * len(later[5:])
    assert later[-1].resident_bytes >= once.resident_bytes


def test_what_is_not_written_takes_an_address_and_no_memory():
    arena = Arena(RULES)
    arena.run([Request(0, 3 * MIB, True, is_written=False), Request(0, 3 * MIB, False), Request(1, MIB, True)])
    assert arena.regions == [4 * MIB]
    assert arena.touched_bytes == MIB


def test_where_regions_lie_decides_between_equal_chunks():
    steps = requests((0, 3 * MIB), (1, 3 * MIB), (0, 0), (1, 0), (2, 2 * MIB))
    newest, oldest = (Arena(RULES, newest_first=first) for first in (True, False))
    for arena in (newest, oldest):
        arena.run(steps)
        assert arena.regions == [4 * MIB, 4 * MIB]
    assert newest.held[2].region == 1
    assert oldest.held[2].region == 0
