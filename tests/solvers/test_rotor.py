"""Rotor: published values at every budget, exhaustive search, simulated plans, slots, and the solver as a whole."""

from __future__ import annotations

import random

import msgspec
import pytest

from remat_cli.base.errors import ConfigError, InvalidSchedule
from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers import make_solver, solve
from remat_cli.solvers._warmup import is_compiled
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.chains import rotor_tables
from remat_cli.solvers.chains.actions import Action, Chain, periodic
from remat_cli.solvers.chains.rotor_slots import Slots, make_slots
from remat_cli.solvers.chains.rotor_tables import ALLOWED, build_table, plans, size_table, spread, table_bytes
from remat_cli.solvers.chains.rotor_warmup import ENTRIES, warm_up
from tests.seeds import few
from tests.solvers.chain_oracle import optimum
from tests.solvers.chain_vectors import chain_of, chain_vectors
from tests.solvers.chain_walk import follow
from tests.solvers.random_graphs import at_fraction
from tests.solvers.random_training import chain_training, random_chain_step
from tests.solvers.vectors import INSTANCES

METHODS = {"persistent": "persistent", "no_fall": "no-fall", "floating": "floating", "persistent_drop": "drop"}
KINDS = {"Fall": "all", "Fck": "keep", "Fn": "move", "B": "back"}
RANDOM_CHAINS = range(60)
TRAININGS = ("linear16_unit_train", "vgg19_bs256_224_train", "mobilenet_bs512_224_train")


def exact_table(chain: Chain, variant: str, most_bytes: int):
    table = build_table(chain, variant, make_slots(chain, most_bytes, most_bytes, 10**6), lambda: False)
    assert table is not None
    assert table.slots.is_exact
    return table


def random_chain(rng: random.Random, stages: int, largest: int = 6) -> Chain:
    """Small sizes and times, zeros among them; saving may take more than making the output, or less."""

    def row(most: int) -> tuple[int, ...]:
        return (0, *(rng.choice([0, rng.randint(0, most)]) for _ in range(stages)))

    values = tuple(rng.randint(0, largest) for _ in range(stages + 1))
    saved = tuple(value + rng.randint(0, largest) for value in values)
    gradients = values if rng.random() < 0.5 else tuple(rng.randint(0, largest) for _ in values)
    return Chain(row(9), row(9), values, saved, gradients, row(3), row(3), row(3))


def store_all_peak(chain: Chain) -> int:
    run = follow(chain, periodic(chain.stages, 1))
    assert chain.keep_all() == (run.time_ns, run.peak_bytes)
    return run.peak_bytes


def check_plan(chain: Chain, table, budget: int) -> None:
    time_ns, actions = table.least_ns(budget), table.actions(budget)
    assert (time_ns is None) == (actions is None)
    if actions is not None:
        run = follow(chain, actions)
        assert run.time_ns == time_ns
        assert run.peak_bytes <= budget


@pytest.mark.parametrize("method", METHODS)
def test_published_values_hold_at_every_budget(method):
    checked = 0
    for entry in chain_vectors()["heterogeneous"]:
        if method not in entry.get("results", {}):
            continue
        chain, top = chain_of(entry), entry["store_all"]["peak"]
        table = exact_table(chain, METHODS[method], top)
        steps = entry["results"][method]
        for (begin, value), end in zip(steps, [*(budget for budget, _ in steps[1:]), top + 1], strict=True):
            for budget in range(begin, end):
                assert table.least_ns(budget) == value, (entry["name"], budget)
                check_plan(chain, table, budget)
                checked += 1
        wanted = [(budget, value) for budget, value in steps if value is not None]
        assert table.steps() == wanted, entry["name"]
    assert checked > 500


def test_the_counter_examples_hold():
    entries = [entry for entry in chain_vectors()["heterogeneous"] if "at_budget" in entry]
    assert entries
    for entry in entries:
        chain, values = chain_of(entry), entry["at_budget"]
        for method, variant in METHODS.items():
            if method in values:
                assert exact_table(chain, variant, values["M"]).least_ns(values["M"]) == values[method]


def test_periodic_checkpoints_take_what_is_published():
    for entry in chain_vectors()["heterogeneous"]:
        for row in entry.get("segments", []):
            run = follow(chain_of(entry), periodic(entry["N"], row["segments"]))
            assert (run.time_ns, run.peak_bytes) == (row["time"], row["peak"])


def test_published_sequences_take_what_they_should_or_are_refused():
    chain = chain_of(chain_vectors()["simulator"]["chain"])
    for sequence in chain_vectors()["simulator"]["sequences"]:
        actions = [Action(KINDS[kind], stage) for kind, stage in sequence["ops"]]
        if sequence["valid"]:
            run = follow(chain, actions)
            assert (run.time_ns, run.peak_bytes) == (sequence["time"], sequence["peak"])
        else:
            with pytest.raises(InvalidSchedule):
                follow(chain, actions)


def test_the_oracle_finds_what_is_published():
    for entry in chain_vectors()["heterogeneous"]:
        if entry["N"] > 4:
            continue
        chain = chain_of(entry)
        for method, mode in (("persistent", "persistent"), ("floating", "table"), ("optimal_free", "free")):
            for budget, value in entry["results"][method]:
                assert optimum(chain, budget, mode) == value, (entry["name"], method, budget)


@pytest.mark.parametrize("seed", few(RANDOM_CHAINS, 8))
def test_tables_agree_with_exhaustive_search_and_come_in_order(seed):
    rng = random.Random(seed)
    chain = random_chain(rng, rng.randint(1, 4))
    top = store_all_peak(chain)
    tables = {variant: exact_table(chain, variant, top) for variant in ALLOWED}
    for budget in sorted({0, top, *(rng.randint(0, top) for _ in range(6))}):
        found = {variant: never(table.least_ns(budget)) for variant, table in tables.items()}
        assert found["persistent"] == never(optimum(chain, budget, "persistent"))
        assert found["floating"] == never(optimum(chain, budget, "table"))
        free = never(optimum(chain, budget, "free"))
        assert free <= found["drop"] <= found["persistent"] <= found["no-fall"]
        assert free <= found["floating"] <= found["persistent"]
        for segments in range(1, chain.stages + 1):
            run = follow(chain, periodic(chain.stages, segments))
            assert run.peak_bytes > budget or found["persistent"] <= run.time_ns
        for table in tables.values():
            check_plan(chain, table, budget)


def never(time_ns: int | None) -> float:
    return float("inf") if time_ns is None else time_ns


@pytest.mark.parametrize("variant", ALLOWED)
def test_plans_in_coarse_slots_are_safe_and_never_better_than_exact(variant):
    for seed in range(15):
        rng = random.Random(seed)
        chain = random_chain(rng, rng.randint(2, 9), largest=1000)
        top = store_all_peak(chain)
        exact = exact_table(chain, variant, top)
        for slots in (7, 40):
            table = build_table(chain, variant, make_slots(chain, 2 * top, top, slots), lambda: False)
            assert not table.slots.is_exact
            for budget in range(0, 2 * top, max(1, top // 23)):
                check_plan(chain, table, budget)
                assert never(table.least_ns(budget)) >= never(exact.least_ns(min(budget, top)))


@pytest.mark.parametrize("variant", ALLOWED)
def test_steps_name_the_first_bytes_of_each_value(variant):
    chain = random_chain(random.Random(3), 8, largest=1000)
    top = store_all_peak(chain)
    table = build_table(chain, variant, make_slots(chain, 2 * top, top, 60), lambda: False)
    values = [value for _, value in table.steps()]
    assert values == sorted(set(values), reverse=True)
    for budget, value in table.steps():
        assert table.least_ns(budget) == value
        assert never(table.least_ns(budget - 1)) > value


def test_slots_are_exact_where_a_common_divisor_allows():
    chain = random_chain(random.Random(0), 5)
    large = Chain(chain.forward_ns, chain.backward_ns, *(tuple(1024 * size for size in row) for row in sizes_of(chain)))
    top = store_all_peak(large)
    found = make_slots(large, top, top, 500)
    assert found.is_exact
    assert top // found.most >= 1024
    small = exact_table(chain, "persistent", store_all_peak(chain))
    table = build_table(large, "persistent", found, lambda: False)
    assert table.steps() == [(1024 * budget, value) for budget, value in small.steps()]


def sizes_of(chain: Chain):
    return (
        chain.value_bytes,
        chain.saved_bytes,
        chain.gradient_bytes,
        chain.forward_extra_bytes,
        chain.saving_extra_bytes,
        chain.backward_extra_bytes,
    )


def test_slots_round_so_that_nothing_is_forgotten():
    slots = Slots(count=500, bytes_=10_007, most=500, is_exact=False)
    for bytes_ in range(0, 10_007, 13):
        assert slots.given(bytes_) <= slots.needed(bytes_) <= slots.given(bytes_) + 1
        assert slots.first_bytes(slots.needed(bytes_)) >= bytes_
        assert slots.given(slots.first_bytes(slots.given(bytes_))) == slots.given(bytes_)


def test_sizes_of_petabytes_do_not_overflow():
    chain = random_chain(random.Random(5), 6, largest=2**52 + 1)
    top = store_all_peak(chain)
    table = build_table(chain, "drop", make_slots(chain, 2 * top, top, 500), lambda: False)
    assert table.steps()
    for budget, _ in table.steps():
        check_plan(chain, table, budget)


def test_one_stage_and_no_memory_at_all():
    chain = Chain((0, 3), (0, 4), (2, 1), (0, 5), (2, 1), (0, 0), (0, 0), (0, 1))
    for variant in ALLOWED:
        table = exact_table(chain, variant, 20)
        assert table.steps() == [(11, 7)]
        assert table.least_ns(-5) is None
        assert table.actions(10) is None
        assert table.actions(11) == (Action("all", 1), Action("back", 1))
    assert exact_table(chain, "persistent", 1).steps() == []
    free = Chain((0, 3, 1), (0, 4, 1), *(((0,) * 3,) * 6))
    assert exact_table(free, "persistent", 0).least_ns(0) == 9


def test_a_table_stops_when_time_is_over():
    chain = random_chain(random.Random(1), 30)
    answers = iter([False, False, True])
    assert build_table(chain, "persistent", make_slots(chain, 50, 50, 100), lambda: next(answers)) is None


def test_a_table_that_is_too_large_is_refused_in_a_line(monkeypatch):
    chain = random_chain(random.Random(2), 40, largest=2**20)
    top = store_all_peak(chain)
    monkeypatch.setattr(rotor_tables, "LARGEST_TABLE", table_bytes(40, "floating", 100))
    narrow = size_table(chain, "floating", top // 2, 100, inflate=True)
    assert narrow.given(top // 2) == 100
    assert table_bytes(40, "floating", narrow.most) <= table_bytes(40, "floating", 100)
    refused = size_table(chain, "floating", top // 2, 101, inflate=True)
    assert "40 stages and 101 slots" in str(refused)
    assert "\n" not in str(refused)


def test_times_that_do_not_add_up_are_refused_in_a_line():
    problem = chain_training(8, forward_ns=2**56).with_budget(9)
    with pytest.raises(ConfigError, match="cannot add up times of 648518346341351432 ns for 8 stages"):
        solve(problem, "rotor", Limits(seconds=5.0))
    assert solve(problem, "rotor", Limits(seconds=5.0), {"variant": "periodic"}).plan is not None


def test_larger_budgets_are_searched_for_the_last_that_fits():
    rng = random.Random(11)
    chain = random_chain(rng, 40, largest=2**20)
    top = store_all_peak(chain)
    budget = top // 3
    sizing = size_table(chain, "persistent", budget, 500, inflate=True)
    table = build_table(chain, "persistent", sizing, lambda: False)
    real = int(budget * 1.2)  # as if a plan took a sixth less than the table thinks
    peaks = []

    def fits(actions) -> bool:
        peaks.append(follow(chain, actions).peak_bytes)
        return peaks[-1] <= real

    tried = list(plans(table, budget, list, fits))
    assert len(tried) < len(table.steps())
    best = min(follow(chain, actions).time_ns for actions in tried if follow(chain, actions).peak_bytes <= real)
    assert best <= table.least_ns(real)
    assert best < table.least_ns(budget)


def test_spread_takes_the_ends():
    assert spread(3, 6, 4) == [3, 4, 5]
    assert spread(0, 101, 3) == [0, 50, 100]


def test_kernels_say_when_they_are_compiled():
    warm_up()
    assert is_compiled(ENTRIES)


@pytest.mark.parametrize("variant", [*ALLOWED, "periodic"])
@pytest.mark.parametrize("name", TRAININGS)
def test_plans_of_networks_are_within_their_budgets(name, variant):
    path = INSTANCES / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no instance beside the checkout ({path.name})")
    problem = instance_problem(load_instance(path))
    peak, fixed = baseline(problem).peak, problem.memories[0].fixed_bytes
    slots = 500 if variant != "floating" else 100
    limited = problem.with_budget(fixed + int(0.9 * (peak - fixed)))
    result = solve(limited, "rotor", Limits(seconds=60.0), {"variant": variant, "slots": slots})
    assert result.plan is not None
    assert result.plan.peak <= limited.memories[0].budget_bytes
    assert problem.baseline_time_ns <= result.plan.time_ns < 2 * problem.baseline_time_ns
    assert result.facts["stages"] > 2


def test_more_budget_is_never_slower_on_a_chain():
    problem = chain_training(16)
    peak = baseline(problem).peak
    times = []
    for budget in range(5, peak + 1):
        result = solve(problem.with_budget(budget), "rotor", Limits(seconds=20.0))
        times.append(never(None if result.plan is None else result.plan.time_ns))
    assert times == sorted(times, reverse=True)
    assert times[-1] == problem.baseline_time_ns
    assert len(set(times)) > 5


def test_where_no_plan_of_the_table_fits_those_that_hold_least_are_judged():
    found = 0
    for seed in range(20):
        problem = at_fraction(random_chain_step(seed), 0.8)
        result = solve(problem, "rotor", Limits(seconds=20.0))
        if "also" in result.facts:
            assert solve(problem, "rotor", Limits(seconds=20.0), {"inflate": False}).plan is None
            found += result.plan is not None
    assert found > 3


@pytest.mark.parametrize("budget", [-100, 0, 1, 7, 10**6])
def test_tables_reach_what_keeping_all_takes_however_small_the_budget(budget):
    for seed in range(20):
        chain = random_chain(random.Random(seed), 4)
        sizing = size_table(chain, "persistent", budget, 500, inflate=True)
        table = build_table(chain, "persistent", sizing, lambda: False)
        assert table.least_ns(store_all_peak(chain)) == sum(chain.forward_ns) + sum(chain.backward_ns)


def test_closing_gaps_and_larger_budgets_only_help():
    problem = chain_training(16)
    limited = problem.with_budget(baseline(problem).peak // 2)
    times = {}
    for close in (False, True):
        for inflate in (False, True):
            options = {"close_gaps": close, "inflate": inflate}
            result = solve(limited, "rotor", Limits(seconds=20.0), options)
            times[close, inflate] = result.plan.time_ns
    assert times[False, False] >= times[True, False] >= times[True, True]
    assert times[False, False] >= times[False, True] >= times[True, True]


def test_what_is_no_chain_is_refused_by_the_first_op_that_breaks_it():
    reads = [(), (), (0, 1), (0, 1, 2), (0, 1, 2), (0, 3), (1, 4)]
    ops = tuple(
        OpSpec(inputs, (op,), (1,), (0,), phase="backward" if op > 2 else "forward") for op, inputs in enumerate(reads)
    )
    join = Problem(ops, tuple(TensorSpec(1, op) for op in range(7)), (Memory("cpu", 9),), (Device("cpu", 0),))
    with pytest.raises(ConfigError, match="op 0 is still read by op 2"):
        solve(join, "rotor", Limits(seconds=5.0))


def test_what_has_no_backward_part_is_refused():
    problem = chain_training(4)
    unmarked = tuple(msgspec.structs.replace(op, phase="none") for op in problem.ops)
    with pytest.raises(ConfigError, match="no op is marked backward"):
        solve(msgspec.structs.replace(problem, ops=unmarked), "rotor", Limits(seconds=5.0))


@pytest.mark.parametrize("budget", [0, 1, 3, 2**60])
def test_absurd_budgets_get_an_answer(budget):
    result = solve(chain_training(6).with_budget(budget), "rotor", Limits(seconds=20.0))
    assert (result.status is Status.OPTIMAL) == (budget == 2**60)
    assert (result.plan is None) == (budget < 2**60)


@pytest.mark.parametrize("options", [{"slots": 0}, {"variant": "quick"}, {"gaps": True}])
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError):
        make_solver("rotor", options)
