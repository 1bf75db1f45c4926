"""Partition and recomputation together: enumeration, the judge, and never worse than the partition alone."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.pipelines.plan.chain import PipelineChain
from remat_cli.pipelines.plan.judge import simulate_pipeline
from remat_cli.pipelines.solve.contiguous import best_contiguous
from remat_cli.pipelines.solve.joint import StageOption, as_they_run, best_joint, pareto, segment_curve
from remat_cli.pipelines.solve.onef1b_star import best_period
from tests.pipelines.solve.vectors import chains


def nothing(_i: int, _j: int) -> list[StageOption]:
    return []


@st.composite
def curves(draw: st.DrawFn, layers: int):
    """Any two options per stage, be they good or bad."""
    option = st.builds(StageOption, st.integers(0, 5), st.integers(0, 6), st.integers(0, 4))
    table = {(i, j): draw(st.lists(option, max_size=2)) for i in range(1, layers + 1) for j in range(i, layers + 1)}
    return lambda i, j: table[i, j]


def enumerated(chain: PipelineChain, devices: int, memory: int, curve) -> int | None:
    best = None
    for count in range(min(devices, chain.layers)):
        for inner in combinations(range(1, chain.layers), count):
            cuts = (*inner, chain.layers)
            stages = list(zip((1, *(cut + 1 for cut in inner)), cuts, strict=True))
            plain = [StageOption(0, sum(chain.saved_bytes[i - 1 : j]), 0) for i, j in stages]
            for chosen in product(*([keep, *curve(i, j)] for keep, (i, j) in zip(plain, stages, strict=True))):
                blocks = as_they_run(chain, cuts, chosen)
                plan = best_period(blocks, range(1, len(cuts) + 1), memory)
                if plan and (best is None or plan.period < best):
                    best = plan.period
    return best


def check(chain, plan, memory):
    run = simulate_pipeline(plan.stages, plan.schedule, "buf")
    assert run.normalized_period == plan.period
    assert max(run.peak_bytes.values()) <= memory
    assert run.live == plan.alive
    assert plan.cuts[-1] == chain.layers


@given(st.data(), chains(4), st.integers(1, 3), st.integers(2, 50))
def test_joint_plans_equal_enumeration(data, chain, devices, memory):
    curve = data.draw(curves(chain.layers))
    plan = best_joint(chain, devices, memory, curve)
    assert (plan and plan.period) == enumerated(chain, devices, memory, curve)
    if plan:
        check(chain, plan, memory)


@given(chains(7), st.integers(1, 4), st.integers(2, 60))
def test_never_worse_than_the_partition_alone(chain, devices, memory):
    alone = best_contiguous(chain, devices, memory)
    same = best_joint(chain, devices, memory, nothing)
    assert (same and same.period) == (alone and alone.period)
    joint = best_joint(chain, devices, memory, segment_curve(chain))
    if alone:
        assert joint.period <= alone.period
    if joint:
        check(chain, joint, memory)


def test_slow_options_of_inner_stages_are_not_missed():
    # Two devices of 14. The last layer alone saves 20 and can only run with 50 more time; the first has no choice.
    chain = PipelineChain((1, 1), (1, 1), (0, 0), (1, 1, 0), (0,), saved=(1, 20))
    curve = {(2, 2): [StageOption(50, 1, 10)]}
    plan = best_joint(chain, 2, 14, lambda i, j: curve.get((i, j), []))
    assert (plan.period, plan.cuts) == (52, (1, 2))


def test_recomputation_makes_fit_what_did_not():
    # Six layers that save 10 each. Alone, one stage holds 60, and the larger of two holds 30 or more beside 20 of
    # buffers. Run again, three layers keep 10 of a mini-batch and work on 20: with buffers 50; six as one stage, in
    # two segments of three, keep 20 and work on 20: 40.
    chain = PipelineChain((1,) * 6, (2,) * 6, (0,) * 6, (*(10,) * 6, 0), (0,) * 5)
    tight = 45
    assert best_contiguous(chain, 2, tight) is None
    joint = best_joint(chain, 2, tight, segment_curve(chain))
    check(chain, joint, tight)
    assert sum(option.extra_time for option in joint.options) > 0
    # Where there is room, nothing is bought.
    roomy = best_joint(chain, 2, 200, segment_curve(chain))
    assert (roomy.period, [option.extra_time for option in roomy.options]) == (9, [0, 0])


@settings(max_examples=50)
@given(chains(6))
def test_segments_by_hand(chain):
    curve = segment_curve(chain)
    for i in range(1, chain.layers + 1):
        for j in range(i, chain.layers + 1):
            saved = chain.saved_bytes[i - 1 : j]
            all_again = StageOption(sum(chain.forward[i - 1 : j]), saved[0], sum(saved[1:]), ((i, j),))
            assert pareto([*curve(i, j), all_again]) == curve(i, j)
            for option in curve(i, j):
                assert option.saved_bytes + option.work_bytes <= 2 * sum(saved)
                assert 0 < option.extra_time <= sum(chain.forward[i - 1 : j])
