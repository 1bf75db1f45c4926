"""Loops over windows along an axis of its own of each tensor: frames of a signal, turned, counted, cut at the ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

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


def masked(build: Build) -> str:
    """What lies behind a length is nought, before and behind the frames."""
    count = build.op("Squeeze", build.op("Shape", "x", start=1), build.weight([0]))
    places = build.op("Range", build.weight(np.array(0)), count, build.weight(np.array(1)))
    shown = build.op("Less", places, build.weight(np.array(700)))
    kept = spectrum(build, build.op("Where", shown, "x", build.weight(np.array(0), np.float32)))
    rows = build.op("Squeeze", build.op("Shape", kept, start=1, end=2), build.weight([0]))
    frames = build.op("Range", build.weight(np.array(0)), rows, build.weight(np.array(1)))
    early = build.op("Less", build.op("Unsqueeze", frames, build.weight([1])), build.weight(np.array(65)))
    return build.op("Where", early, kept, build.weight(np.array(0), np.float32))


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (masked, {"Range", "Less", "Where", "STFT", "Unsqueeze"}),
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


def test_places_are_counted_in_loops_without_windows_too() -> None:
    build = Build()
    count = build.op("Squeeze", build.op("Shape", "x", start=1), build.weight([0]))
    bounds = [build.weight(np.array(each), np.int32) for each in (0, 1)]
    places = build.op("Range", bounds[0], build.op("Cast", count, to=TensorProto.INT32), bounds[1])
    signs = build.op("Sub", build.op("Mod", places, build.weight(np.array(3), np.int32)), bounds[1])
    made = build.op("Mul", "x", build.op("Cast", signs, to=TensorProto.FLOAT))
    looped = LoopedModel(build.model((2, "n"), build.op("ReduceMax", build.op("Neg", made), axes=[0])), FAMILY)
    assert {"Range", "Mod", "Mul"} <= looped.cut
    assert all(region.windows is None for region in looped.regions)
    looped.check(SIZES, rows=96)
