"""Models after public reports run at the sizes that they are compiled for."""

from functools import partial

import numpy as np
import pytest

from bench.any_size import CASES, feeds_of, session_of
from bench.reported_models import (
    save_conformer,
    save_embedder,
    save_keypoints,
    save_neighbours,
    save_pitch,
    save_text_detector,
)

SMALL = {
    "embedder": (partial(save_embedder, layers=1, width=24, heads=2), {"batch": 2, "seq": 7}, [(2, 24)]),
    "text": (save_text_detector, {"height": 64, "width": 96}, [(1, 1, 64, 96)]),
    "conformer": (partial(save_conformer, layers=1, width=16, heads=2), {"frames": 803}, [(1, 101, 128)]),
    "neighbours": (partial(save_neighbours, kept=20, width=16), {"batch": 3}, [(3, 196, 9)]),
    "keypoints": (partial(save_keypoints, width=4), {"height": 64, "width": 72}, [(1, 64, 72), (1, 16, 8, 9)]),
    "pitch": (save_pitch, {"samples": 2304}, [(1, 6, 128)]),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_reported_model_runs_at_any_size(name, tmp_path):
    build, sizes, shapes = SMALL[name]
    session = session_of(build(tmp_path / "model.onnx"))
    outputs = session.run(None, feeds_of(session, sizes))
    assert [each.shape for each in outputs] == shapes
    assert all(np.isfinite(each).all() for each in outputs)
    assert sizes.keys() == CASES[name].dims.keys()


@pytest.mark.parametrize("name", CASES)
def test_sizes_of_a_case_are_in_its_steps_and_limits(name):
    case, rng = CASES[name], np.random.default_rng(0)
    for sizes in (case.at(case.most), case.at(100), *(case.drawn(rng) for _ in range(20))):
        assert all(sizes[each] in values for each, values in case.ranges.items())
