"""Why loops leave a tensor whole: the message names the op, and the reason."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_estimate import LoopEstimate
from remat_cli.splitting.loops.obstacles import lengths_along, what_is_whole, why_whole
from tests.helpers import NOWHERE
from tests.splitting.looped_model import LoopedModel
from tests.splitting.test_looped_models import PICTURE, Build, squeezed


def averaged(build: Build) -> str:
    return build.op("GlobalAveragePool", build.op("Relu", build.conv("x", 8, 3)))


def padded_by_itself(build: Build) -> str:
    """Strides leave out two rows of three, and the runtime cuts some off at both ends."""
    own = {"auto_pad": "SAME_UPPER", "strides": [3, 3], "kernel_shape": [1, 1]}
    return build.op("Conv", build.conv("x", 8, 3), build.normal(4, 8, 1, 1), **own)


def determined(build: Build) -> str:
    made = build.conv("x", 2, 3)
    return build.op("Det", build.op("MatMul", made, build.op("Transpose", made, perm=[0, 1, 3, 2])))


def suppressed(build: Build) -> str:
    boxes = build.op("Transpose", build.op("Reshape", build.conv("x", 4, 3), build.weight([1, 4, -1])), perm=[0, 2, 1])
    scores = build.op("Reshape", build.conv("x", 1, 3), build.weight([1, 1, -1]))
    found = build.op("NonMaxSuppression", boxes, scores, build.weight(np.array([4])))
    return build.op("Cast", found, to=1)


def looped(make) -> LoopedModel:
    build = Build()
    return LoopedModel(
        build.model(PICTURE, make(build)), SizeFamily((SizeRange("h", 16, 96, 8), SizeRange("w", 16, 80, 8)))
    )


@pytest.mark.parametrize(
    ("make", "op_type", "reason"),
    [
        (averaged, "GlobalAveragePool", "(GlobalAveragePool) reads all of it: along no length that varies"),
        (padded_by_itself, "Conv", "(Conv) makes all of it at once: how it pads by auto_pad=SAME_UPPER depends on"),
        (determined, "Det", "(Det) reads all of it, and nothing is known of parts of it"),
        (suppressed, "NonMaxSuppression", "(NonMaxSuppression) reads all of it: its length depends on values"),
    ],
)
def test_the_op_and_the_reason_are_named(make, op_type, reason):
    sized = looped(make).sized
    op = max(at for at, each in enumerate(sized.view.graph.ops) if each.op_type == op_type)
    name = sized.view.makes[op][0] if "makes" in reason else sized.view.reads[op][0]
    assert not lengths_along(sized, op)
    assert f"op '{sized.view.graph.ops[op].name}' {reason}" in (why_whole(sized, [], name) or "")


def test_outputs_and_what_does_not_vary_are_told_apart():
    sized = looped(averaged).sized
    assert why_whole(sized, [], "y") == "it is a model output"
    fixed = next(name for name, shape in sized.dims.items() if name != "y" and not any(dim.terms for dim in shape))
    assert why_whole(sized, [], fixed) == "none of its lengths varies"


def test_what_is_whole_beside_loops_is_told():
    """A channel is weighted by its mean, for which what it is made from is whole: 16 channels of 96 x 80."""
    model = looped(squeezed)
    costs = tuple(OpCost(op.name, 1) for op in model.sized.view.graph.ops)
    profile = Profile("cpu", "", NOWHERE, costs, 0, 0)
    estimate = LoopEstimate(model.sized, model.regions, [Tiling(8) for _ in model.regions], profile)
    told = what_is_whole(estimate) or ""
    assert "(480.00 KiB) must exist whole: op 'GlobalAveragePool" in told
    assert sum(estimate.held_at_peak.values()) <= estimate.peak_bytes


def test_what_is_small_beside_the_largest_is_not_in_the_way():
    sized = looped(averaged).sized
    mean = next(at for at, each in enumerate(sized.view.graph.ops) if each.op_type == "GlobalAveragePool")
    read = sized.view.reads[mean][0]  # whole: its mean is asked for
    first = next(name for op in range(mean) for name in sized.view.makes[op] if name != read and name in sized.makers)
    assert why_whole(sized, [], first) is None

    def told(first_bytes: int, read_bytes: int) -> str:
        held = {first: first_bytes, read: read_bytes}
        return what_is_whole(SimpleNamespace(sized=sized, regions=[], held_at_peak=held, loop_at_peak=None)) or ""

    assert f"'{read}' (1.00 KiB) must exist whole" in told(2048, 1024)
    assert told(20480, 1024) == f"even in loops, 20.00 KiB of '{first}' are there at once"


def test_a_tile_that_holds_more_than_all_that_is_whole_is_told():
    model = looped(squeezed)
    sized, region = model.sized, model.regions[0]
    name = next(each for each in sized.makers if each in sized.kept)

    def told(tile_bytes: int) -> str:
        held = {name: 1024}
        seen = SimpleNamespace(sized=sized, regions=[region], held_at_peak=held, loop_at_peak=0)
        seen.body_bytes = {0: tile_bytes}.__getitem__
        return what_is_whole(seen) or ""

    first = sized.view.graph.ops[min(region.own)]
    assert (
        told(4096)
        == f"even in loops, 4.00 KiB are in one tile of the loop that begins with op '{first.name}' ({first.op_type})"
    )
    assert told(512) == f"'{name}' (1.00 KiB) must exist whole: it is a model output"
