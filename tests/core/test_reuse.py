"""Dead buffers that a default session keeps for later tensors of one shape."""

from remat_cli.core.reuse import held_for_later
from remat_cli.core.simulate import baseline
from tests.solvers.random_training import chain_training


def test_nothing_is_held_where_no_shape_is_known() -> None:
    plan = baseline(chain_training(4))
    count = len(plan.instances)
    assert held_for_later(plan, [1] * count, [None] * count) == [0] * len(plan.schedule.steps)


def test_a_dead_buffer_is_held_until_the_next_of_its_kind() -> None:
    plan = baseline(chain_training(4))
    deaths = {value: instance.death for value, instance in enumerate(plan.instances)}
    early = min(deaths, key=lambda value: deaths[value])
    late = max(range(len(plan.instances)), key=lambda value: plan.instances[value].birth)
    kinds = ["same" if value in (early, late) else None for value in range(len(plan.instances))]
    held = held_for_later(plan, [7] * len(kinds), kinds)
    between = range(deaths[early] + 1, plan.instances[late].birth)
    assert between
    assert held == [7 if step in between else 0 for step in range(len(plan.schedule.steps))]
