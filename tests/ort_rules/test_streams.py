"""One session for two devices: the order of its queues, and a plan in that order, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from remat_cli.core.schedule.plan import Compute, Copy, Schedule
from remat_cli.core.schedule.shared_session import Shared, one_session_cut
from remat_cli.core.schedule.simulate import simulate
from remat_cli.ort_rules.streams import HostValues, OneSession, queued_order
from tests.core.test_device_plans import CHAIN, OVER_AND_BACK, op, two_memories


def names(plan):
    return [f"v{number}" for number in range(len(plan.instances))]


def session(problem, schedule, **rest):
    shared = Shared(problem, simulate(problem, schedule), 0, (0, 1))
    return replace(OneSession(shared, names, frozenset(), HostValues()), **rest)


def test_a_queue_runs_until_it_waits_for_the_other():
    """0 and 3 are on the host, 1 and 2 on the device; 3 waits for 1. The host's queue runs 0 and waits at 3; then the
    device's runs 1, the host goes on inside its turn with 3, and 2 is last.
    """
    assert queued_order([0, 1, 2, 3], [set(), set(), set(), {1}], {1, 2}) == [0, 1, 3, 2]


def test_a_queue_that_is_not_waited_for_runs_to_its_end():
    assert queued_order([0, 1, 2, 3], [set(), set(), set(), {0}], {1, 2}) == [0, 3, 1, 2]


def test_a_chain_keeps_its_order_and_is_copied_once_each_way():
    judged = session(two_memories(CHAIN, [5, 7, 1]), OVER_AND_BACK).in_its_order()
    assert judged is not None
    assert judged.schedule == OVER_AND_BACK


def test_a_value_is_copied_once_for_all_its_readers_and_late():
    """What is copied comes after all that is ready: op 2 needs no copy and is run before the one for op 1."""
    ops = [op([], [0], [1, 1]), op([0], [1], [1, 1]), op([0], [2], [1, 1]), op([0], [3], [1, 1])]
    problem = two_memories(ops, [4, 4, 4, 4])
    plan = Schedule((Compute(0, 0), Copy(0, 0, 1), Compute(1, 1), Compute(2, 0), Copy(0, 0, 1), Compute(3, 1)))
    judged = session(problem, plan).in_its_order()
    assert judged is not None
    assert judged.schedule.steps == (Compute(0, 0), Compute(2, 0), Copy(0, 0, 1), Compute(1, 1), Compute(3, 1))


def test_a_shape_that_the_device_reads_on_the_host_is_not_copied_by_the_runtime():
    """The judge wants it there; it is copied right before its reader, whatever the runtime has ready."""
    ops = [op([], [0], [1, 1]), op([0], [1], [1, 1]), op([0], [2], [1, 1])]
    problem = two_memories(ops, [4, 4, 4])
    plan = Schedule((Compute(0, 0), Copy(0, 0, 1), Compute(1, 1), Compute(2, 0)))
    judged = session(problem, plan, host_values=HostValues(inputs=frozenset({(1, 0)}))).in_its_order()
    assert judged is not None
    assert Copy(0, 0, 1) in judged.schedule.steps
    assert judged.schedule.steps.index(Copy(0, 0, 1)) + 1 == judged.schedule.steps.index(Compute(1, 1))


def test_both_memories_are_counted():
    """The host holds 5, then 7 and 1; the device 5 and 7, of which the 5 are counted until the copy back."""
    problem = two_memories(CHAIN, [5, 7, 1])
    shared = Shared(problem, simulate(problem, OVER_AND_BACK), 0, (0, 1))
    cut = one_session_cut(shared, [5, 7, 1], {})
    assert cut.segments == 1
    assert cut.peak_bytes == (8, 12)


def ordered(ops, schedule, given=0, **rest):
    """Steps of a plan in the order of one session, whose first ops stand for inputs."""
    problem = two_memories(ops, [4] * len(ops))
    shared = Shared(problem, simulate(problem, Schedule(tuple(schedule))), given, (0, 1))
    judged = replace(OneSession(shared, names, frozenset(), HostValues()), **rest).in_its_order()
    return None if judged is None else list(judged.schedule.steps)


TO_DEVICE = [Compute(0, 0), Compute(1, 0), Copy(0, 0, 1), Copy(1, 0, 1), Compute(2, 1)]
BOTH_READ = [op([], [0], [1, 1]), op([], [1], [1, 1]), op([0, 1], [2], [1, 1])]


def test_copies_of_one_kind_are_numbered_by_name():
    assert ordered(BOTH_READ, TO_DEVICE) == TO_DEVICE
    turned = ordered(BOTH_READ, TO_DEVICE, names=lambda plan: [f"v{9 - at}" for at in range(len(plan.instances))])
    assert turned == [*TO_DEVICE[:2], Copy(1, 0, 1), Copy(0, 0, 1), Compute(2, 1)]


def test_inputs_that_the_device_alone_reads_are_there_before_the_first_op():
    ops = [op([], [0], [1, 1]), op([], [1], [1, 1]), op([0, 1], [2], [1, 1])]
    plan = [Compute(0, 0), Compute(1, 0), Copy(0, 0, 1), Copy(1, 0, 1), Compute(2, 1)]
    found = ordered(ops, plan, given=1)
    assert found == [Compute(0, 0), Copy(0, 0, 1), Compute(1, 0), Copy(1, 0, 1), Compute(2, 1)]


def test_inputs_that_both_read_are_copied_by_an_op_before_other_values():
    ops = [op([], [0], [1, 1]), op([0], [1], [1, 1]), op([0, 1], [2], [1, 1])]
    plan = [Compute(0, 0), Compute(1, 0), Copy(1, 0, 1), Copy(0, 0, 1), Compute(2, 1)]
    for name in ("v{}".format, lambda number: f"v{9 - number}"):
        found = ordered(ops, plan, given=1, names=lambda plan, name=name: list(map(name, range(len(plan.instances)))))
        assert found == [Compute(0, 0), Compute(1, 0), Copy(0, 0, 1), Copy(1, 0, 1), Compute(2, 1)]


def test_shapes_are_read_as_soon_as_they_can_be():
    ops = [op([], [0], [1, 1]), op([0], [1], [1, 1]), op([0], [2], [1, 1])]
    plan = [Compute(0, 0), Compute(1, 0), Compute(2, 0)]
    assert ordered(ops, plan) == plan
    assert ordered(ops, plan, early=frozenset({2})) == [Compute(0, 0), Compute(2, 0), Compute(1, 0)]


def test_an_op_that_runs_again_for_a_reader_is_kept():
    ops = [op([], [0], [1, 1]), op([0], [1], [1, 1]), op([0, 1], [2], [1, 1])]
    plan = [Compute(0, 0), Compute(1, 0), Compute(0, 0), Compute(2, 0)]
    assert ordered(ops, plan) == plan


def test_there_is_no_order_in_which_an_op_would_run_again_for_nobody():
    """The last step makes what is there, and what nobody reads."""
    ops = [op([], [0], [1, 1]), op([0], [1], [1, 1]), op([0], [2], [1, 1])]
    plan = [Compute(0, 0), Compute(1, 0), Compute(2, 0), Compute(0, 0)]
    assert ordered(ops, plan) is None


def test_a_shape_that_the_device_makes_on_the_host_is_not_copied_back():
    ops = [op([], [0], [1, 1]), op([0], [1], [1, 1]), op([], [2], [1, 1]), op([1, 2], [3], [1, 1])]
    plan = [Compute(0, 1), Compute(1, 1), Compute(2, 0), Copy(1, 1, 0), Compute(3, 0)]
    to_host, last = Copy(1, 1, 0), Compute(3, 0)
    assert ordered(ops, plan) == [Compute(0, 1), Compute(1, 1), to_host, Compute(2, 0), last]
    # Where it is made there already, the judge has it copied right before its reader.
    there = ordered(ops, plan, host_values=HostValues(outputs=frozenset({1})))
    assert there == [Compute(0, 1), Compute(1, 1), Compute(2, 0), to_host, last]
