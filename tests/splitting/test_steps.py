"""What a tiled region does, step by step: pieces are made before they are read, once, and join into the exits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.splitting.tiles.op_view import Slab
from remat_cli.splitting.tiles.steps import CutStep, JoinStep, RunStep, piece_shape, reads_of, region_steps, results_of
from remat_cli.splitting.tiles.tiling import Cutting
from tests.splitting.random_models import Sketch, image_models, transformer_models
from tests.splitting.split_case import cuttings, make_case


def words(steps):
    """Steps in short, for comparing with what was worked out by hand."""
    found = []
    for step in steps:
        kind = {CutStep: "cut", RunStep: "run", JoinStep: "join"}[type(step)]
        rows = [None if p.slab is None else (p.slab.start, p.slab.stop) for p in (*reads_of(step), *results_of(step))]
        found.append((kind, results_of(step)[0].tensor, rows))
    return found


def pooled():
    sketch = Sketch(np.random.default_rng(0))
    shape = [1, 3, 8, 4]
    value = sketch.add("Abs", [sketch.input("x", shape)], shape)
    sketch.add("MaxPool", [value], shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return make_case(sketch.sample(["t1"]))


def test_the_steps_of_a_small_region_by_hand():
    steps = region_steps(pooled().view, Cutting((0, 1), (("t1", 2),), 2))
    assert words(steps) == [
        ("cut", "x", [None, (0, 5)]),
        ("run", "t0", [(0, 5), (0, 5)]),
        ("run", "t1", [(0, 5), (0, 4)]),
        ("cut", "x", [None, (3, 8)]),
        ("run", "t0", [(3, 8), (3, 8)]),
        ("run", "t1", [(3, 8), (4, 8)]),
        ("join", "t1", [(0, 4), (4, 8), None]),
    ]


def test_kept_rows_are_cut_off_at_once_and_joined_in_the_next_tile():
    steps = region_steps(pooled().view, Cutting((0, 1), (("t1", 2),), 2, frozenset({"t0"})))
    assert words(steps) == [
        ("cut", "x", [None, (0, 5)]),
        ("run", "t0", [(0, 5), (0, 5)]),
        ("cut", "t0", [(0, 5), (3, 5)]),
        ("run", "t1", [(0, 5), (0, 4)]),
        ("cut", "x", [None, (5, 8)]),
        ("run", "t0", [(5, 8), (5, 8)]),
        ("join", "t0", [(3, 5), (5, 8), (3, 8)]),
        ("run", "t1", [(3, 8), (4, 8)]),
        ("join", "t1", [(0, 4), (4, 8), None]),
    ]


def test_the_same_rows_of_two_axes_are_two_pieces():
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.add("Abs", [sketch.input("x", [6, 6])], [6, 6])
    sketch.add("Mul", [value, sketch.add("Transpose", [value], [6, 6], perm=[1, 0])], [6, 6])
    view = make_case(sketch.sample(["t2"])).view
    steps = region_steps(view, Cutting((1, 2), (("t2", 0),), 2))
    cut = [step.result for step in steps if isinstance(step, CutStep)]
    assert {piece.slab for piece in cut} == {Slab(axis, start, start + 3) for axis in (0, 1) for start in (0, 3)}
    assert len({piece.name for piece in cut}) == 4


@settings(max_examples=25)
@given(st.data())
def test_pieces_are_made_once_before_they_are_read_and_fit_together(data):
    case = make_case(data.draw(st.one_of(image_models(), transformer_models())))
    for _ in range(5):
        cutting = data.draw(cuttings(case))
        steps = None if cutting is None else region_steps(case.view, cutting)
        for step in steps or ():
            _check_step(case.view, step)
        if steps is not None:
            _check_order(case.view, cutting, steps)


def _check_order(view, cutting, steps):
    inside = {name for op in cutting.ops for name in view.makes[op]}
    made = {}
    for step in steps:
        for piece in reads_of(step):
            if piece.slab is None and piece.tensor not in inside:
                assert piece.name == piece.tensor
            else:
                assert made[piece.name] == piece
        for piece in results_of(step):
            assert piece.name not in made
            made[piece.name] = piece
    assert {name for name, piece in made.items() if name == piece.tensor} == {name for name, _ in cutting.exits}


def _check_step(view, step):
    if isinstance(step, CutStep) and step.source.slab is not None:
        assert step.source.slab.contains(step.result.slab)
    if isinstance(step, JoinStep):
        axis = step.parts[0].slab.axis
        assert all(one.slab.stop == two.slab.start for one, two in zip(step.parts, step.parts[1:], strict=False))
        assert sum(part.slab.extent for part in step.parts) == piece_shape(view, step.result)[axis]
