"""Loops over windows along an axis of its own of each tensor: frames of a signal, turned, counted and cut at the ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from remat_cli.core.values.sizes import SizeFamily, SizeRange
from tests.splitting.looped_model import LoopedModel
from tests.splitting.test_looped_models import Build

STEP, FRAME = 10, 32
FAMILY = SizeFamily((SizeRange("n", 400, 1200, STEP),))
SIZES = [{"n": size} for size in (1200, 410, 400, 1200, 790, 860)]


def spectrum(build: Build, signal: str) -> str:
    """Powers of frames, [1, frames, 17]."""
    window = build.weight(np.hanning(FRAME), np.float32)
    made = build.op("STFT", signal, build.weight(np.array(STEP)), window)
    return build.op("ReduceSumSquare", made, axes=[-1], keepdims=0)


def of_frames(build: Build) -> str:
    """As front ends of speech recognisers have it: bands of powers, turned."""
    bands = build.op("MatMul", spectrum(build, "x"), build.normal(17, 8))
    return build.op("Transpose", build.op("Clip", bands, build.weight(1e-5, np.float32)), perm=[0, 2, 1])


def without_the_last(build: Build) -> str:
    """The last frame is left out, and the signal is mirrored at its ends."""
    padded = build.op("Pad", "x", build.weight([0, FRAME // 2, 0, FRAME // 2]), mode="reflect")
    bounds = [build.weight([each]) for each in (0, -1, 1, 1)]
    return build.op("Sqrt", build.op("Slice", spectrum(build, padded), *bounds))


def of_differences(build: Build) -> str:
    """Each number less the one before it, in front of a convolution with steps, turned behind it."""
    later = build.op("Slice", "x", *(build.weight([each]) for each in (1, 2**40, 1, 1)))
    before = build.op("Slice", "x", *(build.weight([each]) for each in (0, -1, 1, 1)))
    signal = build.op("Unsqueeze", build.op("Sub", later, build.op("Mul", before, before)), build.weight([1]))
    made = build.op("Conv", signal, build.normal(12, 1, 7), strides=[STEP], pads=[3, 3])
    return build.op("Transpose", build.op("Relu", made), perm=[0, 2, 1])


def joined_at_the_end(build: Build) -> str:
    """Every frame gives some numbers of a row, as a change of the sampling rate does."""
    made = build.op("Conv", build.op("Unsqueeze", "x", build.weight([1])), build.normal(4, 1, 12), strides=[STEP])
    turned = build.op("Transpose", build.op("Abs", made), perm=[0, 2, 1])
    return build.op("Neg", build.op("Reshape", turned, build.weight([1, -1])))


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (of_frames, {"STFT", "ReduceSumSquare", "MatMul", "Transpose"}),
        (without_the_last, {"STFT", "Slice", "Sqrt"}),
        (of_differences, {"Slice", "Mul", "Sub", "Unsqueeze", "Conv", "Relu", "Transpose"}),
        (joined_at_the_end, {"Conv", "Abs", "Transpose", "Reshape", "Neg"}),
    ],
)
def test_each_tensor_is_cut_along_its_own_axis(make: Callable[[Build], str], wanted: set[str]) -> None:
    build = Build()
    looped = LoopedModel(build.model((1, "n"), make(build)), FAMILY)
    (region,) = (region for region in looped.regions if region.windows is not None)
    assert wanted <= {looped.sized.view.graph.ops[op].op_type for op in region.ops}
    assert len(set(region.axes.values())) > 1 or make is without_the_last
    looped.check(SIZES, rows=16)
