"""The search for regions on small models whose answer is plain."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from remat_cli.core.schedule.splits import SplitAxis, parse_split_axis
from remat_cli.core.values.profile import OpCost
from remat_cli.splitting.tiles.build import FILL_SINCE
from remat_cli.splitting.tiles.search import LONGEST_REGION, SplitLimits, SplitSearch
from remat_cli.splitting.tiles.timeline import TensorTimeline
from tests.splitting.random_models import Sketch
from tests.splitting.split_case import Case, check_same, judged_peak_bytes, make_case

OP_NS = 1_000_000
ENOUGH_SECONDS = 60.0  # never reached: what is found must not depend on the machine


@pytest.fixture(scope="module")
def images() -> Case:
    """Convolutions at full size, then pooling, convolutions at half size, pooling: the large tensors come first."""
    sketch = Sketch(np.random.default_rng(0))
    value, channels, size = sketch.input("x", [1, 3, 32, 24]), 3, (32, 24)
    for _ in range(2):
        for _ in range(2):
            weight = sketch.weight(16, channels, 3, 3, scale=0.1)
            shape = [1, 16, *size]
            value = sketch.add("Conv", [value, weight], shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
            value, channels = sketch.add("Relu", [value], shape), 16
        size = (size[0] // 2, size[1] // 2)
        value = sketch.add("MaxPool", [value], [1, 16, *size], kernel_shape=[2, 2], strides=[2, 2])
    return make_case(sketch.sample([value]))


def search(case: Case, **limits) -> SplitSearch:
    """A search on a case where every op takes a millisecond."""
    costs = [OpCost(op.name, OP_NS) for op in case.view.graph.ops]
    chosen = {"axis": SplitAxis(), "seconds": ENOUGH_SECONDS, **limits}
    return SplitSearch(case.timeline, costs, SplitLimits(**chosen))


def peak(case: Case) -> int:
    return max(case.timeline.memory_bytes)


@pytest.mark.parametrize("percent", [90, 75, 60, 50, 40])
@pytest.mark.parametrize("may_fill", [False, True])
def test_a_chain_meets_the_budget_and_gives_the_same_bits(images, percent, may_fill):
    if may_fill and not images.may_fill:
        pytest.skip(f"the model cannot be raised to opset {FILL_SINCE}")
    budget = peak(images) * percent // 100
    proposal = search(images, may_fill=may_fill).propose(budget)
    assert proposal is not None
    assert proposal.regions
    assert proposal.peak_bytes <= budget
    split = images.split([region.cutting for region in proposal.regions])
    assert split is not None
    check_same(images, split, proposal)


def test_the_peak_proposed_is_the_peak_judged(images):
    budget = peak(images) // 2
    proposal = search(images).propose(budget)
    assert proposal is not None
    for region in proposal.regions:
        around = images.timeline.surroundings(region.start, region.stop)
        alone = images.split([region.cutting])
        assert alone is not None
        assert around.context_bytes + judged_peak_bytes(images, alone, region.cutting) == region.peak_bytes
    inside = {p for region in proposal.regions for p in range(region.start, region.stop)}
    outside = [held for p, held in enumerate(images.timeline.memory_bytes) if p not in inside]
    assert proposal.peak_bytes == max([*outside, *(region.peak_bytes for region in proposal.regions)])
    assert proposal.added_ns == sum(region.cost.added_ns for region in proposal.regions)


def test_regions_are_in_order_and_apart_and_hold_every_step_that_does_not_fit(images):
    budget = peak(images) * 45 // 100
    proposal = search(images).propose(budget)
    assert proposal is not None
    bounds = [bound for region in proposal.regions for bound in (region.start, region.stop)]
    assert bounds == sorted(bounds)
    too_much = {p for p, held in enumerate(images.timeline.memory_bytes) if held > budget}
    assert too_much <= {p for region in proposal.regions for p in range(region.start, region.stop)}
    for region in proposal.regions:
        assert region.cutting.ops == images.timeline.order[region.start : region.stop]


def test_a_budget_that_whole_ops_meet_needs_no_region(images):
    proposal = search(images).propose(peak(images))
    assert proposal is not None
    assert proposal.regions == ()
    assert proposal.added_ns == 0
    assert proposal.peak_bytes == peak(images)


def test_less_than_the_outputs_is_impossible_and_says_where(images):
    kept = sum(t.size_bytes for t in images.view.graph.tensors if t.kept)
    looking = search(images)
    assert looking.propose(kept - 1) is None
    assert looking.stuck is not None
    assert images.timeline.memory_bytes[looking.stuck] > kept - 1


def test_more_budget_never_costs_more(images):
    looking = search(images)
    found = [looking.propose(peak(images) * percent // 100) for percent in (45, 60, 75, 90, 100)]
    costs = [proposal.added_ns for proposal in found if proposal is not None]
    assert len(costs) == len(found)
    assert all(one >= two for one, two in pairwise(costs))


def test_forbidden_ops_are_in_no_region(images):
    budget = peak(images) * 3 // 4
    first = search(images).propose(budget)
    assert first is not None
    for op in first.regions[0].cutting.ops:
        limited = search(images, forbidden=frozenset({op})).propose(budget)
        assert limited is None or all(op not in region.cutting.ops for region in limited.regions)
    looking = search(images)
    looking.limits = replace(looking.limits, forbidden=frozenset(range(len(images.view.graph.ops))))
    assert looking.propose(budget) is None


@pytest.mark.parametrize("most_tiles", [1, 2, 4])
def test_no_more_tiles_than_allowed(images, most_tiles):
    for percent in (90, 75, 60, 45):
        proposal = search(images, most_tiles=most_tiles).propose(peak(images) * percent // 100)
        for region in proposal.regions if proposal is not None else ():
            assert region.cutting.tiles <= most_tiles
    assert (search(images, most_tiles=1).propose(peak(images) - 1) is None) or most_tiles > 1


@pytest.mark.parametrize(("text", "axis"), [("height", 2), ("width", 3), ("-1", 3)])
def test_exits_are_cut_along_the_axis_asked_for(images, text, axis):
    proposal = search(images, axis=parse_split_axis(text)).propose(peak(images) * 3 // 4)
    assert proposal is not None
    assert proposal.regions
    assert {found for region in proposal.regions for _, found in region.cutting.exits} == {axis}


def test_an_axis_of_one_position_helps_nothing(images):
    assert search(images, axis=parse_split_axis("batch")).propose(peak(images) * 3 // 4) is None


def test_the_same_question_has_the_same_answer(images):
    budget = peak(images) // 2
    one, two = search(images), search(images)
    assert one.propose(budget) == two.propose(budget)
    one.propose(budget * 3 // 2)
    assert one.propose(budget) == two.propose(budget)  # what was learnt in between changes nothing


def test_attention_is_cut_by_heads_or_rows():
    sketch = Sketch(np.random.default_rng(0))
    heads, length, width = 4, 64, 8
    shape, scores = [1, heads, length, width], [1, heads, length, length]
    queries, keys = (sketch.add("Abs", [sketch.input(name, shape)], shape) for name in "qk")
    turned = sketch.add("Transpose", [keys], [1, heads, width, length], perm=[0, 1, 3, 2])
    product = sketch.add("MatMul", [queries, turned], scores)
    shares = sketch.add("Softmax", [sketch.add("Tanh", [product], scores)], scores, axis=-1)
    case = make_case(sketch.sample([sketch.add("MatMul", [shares, keys], shape)]))
    budget = peak(case) * 45 // 100
    proposal = search(case).propose(budget)
    assert proposal is not None
    assert proposal.peak_bytes <= budget
    assert {axis for region in proposal.regions for _, axis in region.cutting.exits} <= {1, 2}
    split = case.split([region.cutting for region in proposal.regions])
    assert split is not None
    check_same(case, split, proposal)


def test_another_order_is_searched_in_that_order(images):
    order = tuple(range(len(images.view.graph.ops)))
    timeline = TensorTimeline(images.view, order, tuple(held + 1000 for held in images.timeline.memory_bytes))
    costs = [OpCost(op.name, OP_NS) for op in images.view.graph.ops]
    looking = SplitSearch(timeline, costs, SplitLimits(axis=SplitAxis(), seconds=ENOUGH_SECONDS))
    proposal = looking.propose(peak(images))
    assert proposal is not None
    assert proposal.regions  # workspace of 1,000 bytes more than before


def ends(widths, memory, free_bytes, more_runs=0):
    sketch = SimpleNamespace(width_bytes=widths, memory_bytes=memory)
    return SplitSearch(sketch, (), SplitLimits(axis=SplitAxis()))._ends(free_bytes, more_runs)


def ends_by_definition(widths, memory, free_bytes, more_runs=0):
    """Around the first step that does not fit: the nearest narrow cuts, and ever narrower ones.

    Two cuts just behind what does not fit, and behind each of a few further runs of steps that do not.
    """
    cuts = range(len(widths))
    narrow = [c for c in cuts if widths[c] <= max(widths[max(c - 1, 0)], widths[min(c + 1, len(widths) - 1)])]
    narrow = [c for c in narrow if widths[c] <= free_bytes]

    def tried(from_near_to_far):
        return {
            cut
            for number, cut in enumerate(from_near_to_far)
            if number < 4 or widths[cut] < min(widths[nearer] for nearer in from_near_to_far[:number])
        }

    found = {}
    for start in narrow:
        large = [p for p in range(start, len(memory)) if memory[p] > free_bytes]
        if large and start in tried([cut for cut in reversed(narrow) if cut <= large[0]]):
            after = [cut for cut in narrow if large[0] < cut <= start + LONGEST_REGION]
            fits = [p for p in range(large[0], len(memory)) if memory[p] <= free_bytes]
            beyond = [cut for cut in after if (fits and cut >= fits[0]) or cut >= len(memory)]
            found[start] = tried(after) | set(beyond[:2])
            behind = fits[0] if fits else len(memory)
            for _ in range(more_runs):
                next_large = next((p for p in range(behind, len(memory)) if memory[p] > free_bytes), None)
                if next_large is None:
                    break
                behind = next((p for p in range(next_large, len(memory)) if memory[p] <= free_bytes), len(memory))
                found[start] |= set([cut for cut in after if cut >= behind][:2])
            found[start] = tuple(sorted(found[start]))
    return found


def test_ends_are_those_of_the_definition():
    for seed in range(200):
        random = np.random.default_rng(seed)
        count = int(random.integers(1, 12 if seed % 2 else 200))
        widths, memory = random.integers(0, 9, count + 1).tolist(), random.integers(0, 9, count).tolist()
        free_bytes = int(random.integers(0, 10))
        for more_runs in (0, 1, 3):
            found = ends(widths, memory, free_bytes, more_runs)
            assert found == ends_by_definition(widths, memory, free_bytes, more_runs), seed


def test_one_region_takes_in_several_runs_of_steps_that_do_not_fit():
    """Changes of shape, which fit, stand between copies, which do not: nothing narrower is behind but one number."""
    sketch, rows, width = Sketch(np.random.default_rng(0)), 64, 256
    value = sketch.add("MatMul", [sketch.input("x", [rows, 8]), sketch.weight(8, width)], [rows, width])
    for parts in (2, 4, 8):
        folded = [sketch.constant(np.array(each, np.int64)) for each in ((rows, parts, width // parts), (rows, width))]
        value = sketch.add("Reshape", [value, folded[0]], [rows, parts, width // parts])
        value = sketch.add("Transpose", [value], [rows, width // parts, parts], perm=[0, 2, 1])
        value = sketch.add("Reshape", [value, folded[1]], [rows, width])
    case = make_case(sketch.sample([sketch.add("ReduceMax", [value], [1, 1])]))
    if not case.may_fill:
        pytest.skip(f"the model cannot be raised to opset {FILL_SINCE}")
    budget = peak(case) * 70 // 100
    proposal = search(case, may_fill=True).propose(budget)
    assert proposal is not None
    (region,) = proposal.regions
    types = [case.view.graph.ops[op].op_type for op in region.cutting.ops]
    assert types.count("Transpose") == 3
    split = case.split([region.cutting])
    assert split is not None
    check_same(case, split, "one region")


@pytest.mark.parametrize("memory", [(1, 1), (9, 9), (1, 9)])
def test_ends_of_many_steps_are_found_in_linear_time(memory):
    begin = time.process_time()
    ends([1] * 40_001, [memory[0]] * 39_999 + [memory[1]], 5)
    assert time.process_time() - begin < 5


def test_regions_that_cut_the_same_mask_are_cut_alike():
    """Parts of a constant are weights: of two ways to cut one, all are held twice."""
    sketch = Sketch(np.random.default_rng(0))
    length, width = 64, 8
    mask = sketch.weight(1, 1, length, length, scale=1)

    def attention(name: str, heads: int) -> str:
        shape, scores = [1, heads, length, width], [1, heads, length, length]
        queries, keys = (sketch.add("Abs", [sketch.input(f"{name}_{port}", shape)], shape) for port in "qk")
        turned = sketch.add("Transpose", [keys], [1, heads, width, length], perm=[0, 1, 3, 2])
        masked = sketch.add("Add", [sketch.add("MatMul", [queries, turned], scores), mask], scores)
        shares = sketch.add("Softmax", [masked], scores, axis=-1)
        return sketch.add("ReduceMax", [sketch.add("MatMul", [shares, keys], shape)], [1, heads, length, 1], axes=[3])

    case = make_case(sketch.sample([attention("a", 16), attention("b", 6)]))
    proposal = search(case, axis=parse_split_axis("2")).propose(peak(case) * 30 // 100)
    assert len(proposal.regions) == 2
    assert len({region.cutting.tiles for region in proposal.regions}) == 1
    split = case.split([region.cutting for region in proposal.regions])
    check_same(case, split, proposal)
