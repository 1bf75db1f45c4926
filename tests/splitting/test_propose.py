"""What is proposed for a budget: runs of ops in tiles, or whole models in bands, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from remat_cli.core.schedule.floor import working_set_bytes
from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.profile import OpCost
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.propose import CHEAP_SHARE, DOUBT, SplitProposer
from remat_cli.splitting.tiles.search import SplitLimits
from tests.helpers import free_problem, observe
from tests.splitting.random_models import Sketch
from tests.splitting.split_case import Case, check_same, make_case
from tests.splitting.test_bands import unet
from tests.splitting.test_recast import normalised
from tests.splitting.test_search import images  # noqa: F401

FIXED_BYTES = 1_000
ENOUGH_SECONDS = 60.0


def proposer(case: Case, op_ns: int = 1_000_000) -> SplitProposer:
    costs = [OpCost(op.name, op_ns) for op in case.view.graph.ops]
    limits = SplitLimits(axis=SplitAxis(), seconds=ENOUGH_SECONDS, may_fill=case.may_fill)
    return SplitProposer(case.timeline, case.needy, costs, limits, FIXED_BYTES)


def share(case: Case, percent: int) -> int:
    return max(case.timeline.memory_bytes) * percent // 100


def test_regions_that_cost_next_to_nothing_have_no_rival(images):  # noqa: F811
    looking = proposer(images, op_ns=100_000_000)
    found = looking.propose(share(images, 60))
    assert [proposal.form for proposal in found] == ["regions"]
    assert found[0].added_ns <= CHEAP_SHARE * sum(cost.time_ns for cost in looking.costs)


def test_dear_regions_have_one_and_what_is_likely_cheaper_comes_first(images):  # noqa: F811
    found = proposer(images, op_ns=1_000).propose(share(images, 60))
    assert {proposal.form for proposal in found} == {"regions", "bands"}
    doubted = [proposal.added_ns * (DOUBT if proposal.form == "bands" else 1) for proposal in found]
    assert doubted == sorted(doubted)
    assert len({str(proposal.key) for proposal in found}) == 2


@pytest.mark.parametrize("percent", [80, 60])
def test_every_proposal_keeps_its_budget_and_all_bits(percent):
    case = unet()
    for proposal in proposer(case, op_ns=1_000).propose(share(case, percent)):
        assert proposal.peak_bytes <= share(case, percent) == proposal.target_bytes
        split = case.lean(split_model(proposal.view, proposal.order, proposal.parts))
        check_same(case, split, (proposal.form, percent))


def test_a_fusion_group_is_told_as_a_region_in_the_names_of_the_whole_model():
    case = normalised(8, size=48)
    found = next(p for p in proposer(case, op_ns=1_000).propose(share(case, 75)) if p.form == "bands")
    whole = {op.name for op in case.view.graph.ops}
    assert len(found.regions) == len(found.facts)
    for region, facts in zip(found.regions, found.facts, strict=True):
        assert set(region.ops) <= whole
        assert len(set(region.ops)) == len(region.ops)
        assert region.exits
        assert not set(region.exits) & set(region.kept)
        assert 2 <= region.tiles <= facts.extent
        assert facts.peak_after_bytes == FIXED_BYTES + found.peak_bytes
        assert facts.peak_before_bytes <= FIXED_BYTES + max(case.timeline.memory_bytes)
        assert facts.time_before_ns > 0
        assert facts.time_after_ns > 0


def test_what_stands_for_an_op_that_is_forbidden_is_not_cut_again():
    case = normalised(8, size=48)
    looking = proposer(case, op_ns=1_000)
    found = next(p for p in looking.propose(share(case, 80)) if p.form == "bands")
    name = next(op.name for op in case.view.graph.ops if op.op_type == "InstanceNormalization")
    assert any(name in region.ops for region in found.regions)
    looking.forbid(name)
    for proposal in looking.propose(share(case, 95)):
        assert all(name not in region.ops for region in proposal.regions)


def test_fills_are_given_up_once():
    looking = proposer(unet())
    if not looking.limits.may_fill:
        pytest.skip("the model cannot be raised to the opset that fills")
    assert looking.forbid_fills()
    assert not looking.forbid_fills()


def backward(masks: int = 3) -> Case:
    """What a step does: numbers on their way there, all of which wait for the gradient that comes back."""
    shape, sketch = [8, 64, 48], Sketch(np.random.default_rng(0))
    value, saved = sketch.input("x", shape), []
    for _ in range(masks):
        value = sketch.add("Softplus", [value], shape)
        saved.append(value)
    gradient = sketch.add("Neg", [value], shape)
    for each in reversed(saved):
        slope = sketch.add("Sigmoid", [each], shape)
        gradient = sketch.add("Mul", [gradient, slope], shape)
        gradient = sketch.add("Erf", [gradient], shape)
    return make_case(sketch.sample([gradient]))


def test_what_waits_for_a_gradient_is_left_to_plans_and_what_needs_most_is_cut_alone():
    case = backward()
    looking = proposer(case)
    tensor_bytes = 8 * 64 * 48 * 4
    budget = tensor_bytes * 5 // 2
    assert looking.waits_for_more(budget)
    assert not looking.waits_for_more(max(case.timeline.memory_bytes))
    [found] = looking.propose_needy(budget)
    assert found.form == "needy"
    assert found.peak_bytes <= budget
    assert found.regions
    split = case.lean(split_model(found.view, found.order, found.parts))
    check_same(case, split, found.regions)
    graph = to_graph(split, observe(split, case.feeds))
    problem = free_problem(graph)
    assert max(working_set_bytes(problem, op) for op in problem.ops) <= budget
    assert max(case.needy.memory_bytes) == 3 * tensor_bytes > budget


def test_what_cannot_be_reached_has_a_reason():
    case = unet()
    looking = proposer(case)
    assert looking.propose(1) == ()
    obstacle = looking.obstacle(None, 1)
    assert obstacle is not None
    assert obstacle.text
