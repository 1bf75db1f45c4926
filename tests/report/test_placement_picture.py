from __future__ import annotations

import random
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.schedule.plan import Compute, Copy
from remat_cli.report.devices.placed import placement_matrix
from remat_cli.report.explain import PlacedLife, PlacedStep, PlacementMatrix
from remat_cli.report.pictures.placement_picture import placement_lines
from remat_cli.report.pictures.svg_chart import AGAIN, COLORS, inspect_picture, inspect_svg
from remat_cli.report.style import Style
from tests.report import device_samples, samples

PLANS = {"one": device_samples.one, "shared": device_samples.shared, "several": device_samples.several}


@pytest.mark.parametrize("name", PLANS)
def test_matrix_says_what_the_judge_says(name):
    placed = PLANS[name]()
    matrix = placement_matrix(placed)
    copies = [step for step in placed.steps if isinstance(step, Copy)]
    computes = [step for step in placed.steps if isinstance(step, Compute)]
    kinds = [step.kind for step in matrix.steps]
    assert kinds.count("copy") == len(copies)
    assert kinds.count("given") == placed.given
    assert kinds.count("recompute") == placed.plan.recomputed_ops
    assert [s.row for s in matrix.steps if s.kind != "copy"] == [step.op for step in computes]
    assert max(step.end_ns for step in matrix.steps) == placed.plan.time_ns
    assert [(life.memory, life.first, life.last) for life in matrix.lives] == [
        (i.memory, i.birth, i.death) for i in placed.plan.instances
    ]


def test_picture_of_two_memories():
    matrix = placement_matrix(device_samples.several())
    assert placement_lines(matrix, Style(60))[:12] == [
        "placement of 4 ops and 1 input in 8 steps; an op per row, a step per column:",
        "  cpu: A cpu:1threads, B cpu:2threads",
        "  x         │○───↑────────────────────",
        "  make_skip │                        b────",
        "  shrink    │                    ↓────────",
        "  join      │                            B",
        "            └0───────2───────4───────6───────",
        "  cuda:0: C cuda:0",
        "  x         │    ↓────",
        "  make_skip │        C────",
        "  grow      │            C────",
        "  shrink    │                C───↑",
    ]


@pytest.mark.parametrize("name", PLANS)
def test_every_step_has_a_mark_where_there_is_room(name):
    matrix = placement_matrix(PLANS[name]())
    cells = "".join(line.partition("│")[2] for line in placement_lines(matrix, Style(100)))
    counts = {kind: sum(step.kind == kind for step in matrix.steps) for kind in ("compute", "recompute", "copy")}
    assert len(re.findall("[A-Z]", cells)) == counts["compute"]
    assert len(re.findall("[a-z]", cells)) == counts["recompute"]
    assert cells.count("↓") == cells.count("↑") == counts["copy"]


def large(ops: int, steps: int, seed: int) -> PlacementMatrix:
    """Any steps and lives, three devices and two memories."""
    chance = random.Random(seed)
    made, lives = [], []
    for number in range(steps):
        row, device = chance.randrange(ops), chance.randrange(3)
        target = (0 if device == 2 else 2) if chance.random() < 0.2 else None
        kind = "copy" if target is not None else chance.choice(("compute", "recompute"))
        made.append(PlacedStep(kind, row, device, number, number + 1, target))
        lives.append(PlacedLife(row, chance.randrange(2), number, chance.randrange(number, steps)))
    names = tuple(f"/block_{op // 10}/op_{op}" for op in range(ops))
    return PlacementMatrix(
        rows=names,
        devices=("cpu:1threads", "cpu:2threads", "cuda:0"),
        memories=("cpu", "cuda:0"),
        memory_of=(0, 0, 1),
        steps=tuple(made),
        lives=tuple(lives),
    )


@given(st.integers(1, 400), st.integers(1, 500), st.integers(40, 120), st.booleans())
def test_picture_fits_its_width(ops, steps, width, has_unicode):
    lines = placement_lines(large(ops, steps, ops), Style(width, has_unicode=has_unicode))
    assert all(len(line) <= width for line in lines[2:] if "│" in line or "|" in line or "└" in line or "+" in line)
    bars = [line for line in lines if ("│" if has_unicode else "|") in line]
    assert 0 < len(bars) <= 2 * 24


def test_a_narrow_picture_drops_no_kind_of_step():
    lines = "\n".join(placement_lines(large(300, 400, 1), Style(50)))
    assert all(mark in lines for mark in ("a", "b", "c", "░", "about 12 ops per row"))


def test_wide_cells_of_several_ops_are_filled_with_their_shade():
    names = tuple(f"op_{op}" for op in range(48))
    steps = tuple(PlacedStep("compute", op, 0, op, op + 1) for op in range(2))
    lives = (PlacedLife(0, 0, 0, 1), PlacedLife(1, 0, 1, 1), PlacedLife(2, 0, 0, 1), PlacedLife(3, 0, 0, 1))
    matrix = PlacementMatrix(rows=names, devices=("cpu",), memories=("cpu",), memory_of=(0,), steps=steps, lives=lives)
    rows = [line.partition("│")[2] for line in placement_lines(matrix, Style(60)) if "│" in line]
    assert rows == ["A░░░A", "▓▓▓▓▓"]


def test_color_only_adds_codes():
    matrix = large(60, 90, 3)
    plain, colored = (placement_lines(matrix, Style(80, has_color=color)) for color in (False, True))
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in colored] == plain
    assert colored != plain


@pytest.mark.parametrize("name", PLANS)
def test_svg_is_the_same_every_time_and_shows_what_is_used(name):
    report = device_samples.inspect_report(PLANS[name]())
    picture = inspect_picture(report)
    assert picture == inspect_picture(report)
    assert picture.startswith(b"<?xml")
    for device in range(len(report.devices)):
        assert COLORS[device].encode() in picture
    assert (AGAIN.encode() in picture) is (name != "one")


def test_svg_of_many_steps_is_drawn():
    matrix = large(300, 400, 2)
    report = device_samples.inspect_report(device_samples.several())
    memories = tuple(msgspec.structs.replace(memory, memory_bytes=(samples.MIB,) * 400) for memory in report.memories)
    picture = inspect_picture(msgspec.structs.replace(report, placement=matrix, memories=memories))
    assert picture.count(b"<path") > len(matrix.steps)


def test_without_a_placement_the_picture_is_that_of_memory():
    assert inspect_picture(samples.inspect_report()) == inspect_svg(samples.inspect_report())
