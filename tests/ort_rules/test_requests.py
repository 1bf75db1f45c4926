"""Requests that follow from a plan: results, then workspace, then what died."""

import msgspec
import pytest

from remat_cli.core.schedule.graph import Graph, Op, Tensor
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import OpCost, Profile, Provenance
from remat_cli.ort_rules.records import RULES_1_32 as RULES
from remat_cli.ort_rules.requests import InKernels, Request, outputs_of, run_requests
from remat_cli.ort_rules.reuse import KeptBuffers, kept_buffers
from remat_cli.ort_rules.workspaces import workspace_parts

PROVENANCE = Provenance("", "", "", "", "", 0, "", 0, 0)


def judged(*ops: tuple[tuple[int, ...], int, int], view: int | None = None, kept: tuple[int, ...] = ()):
    """A graph of ops (inputs, bytes made, workspace); tensor 0 is the model's input, op i makes tensor i + 1."""
    tensors = [Tensor("x", "float", (4,), 16)]
    for number, (_, size, _) in enumerate(ops):
        base = 0 if view == number + 1 else None
        tensors.append(Tensor(f"t{number}", "float", (size,), size, number, base, number + 1 in kept))
    graph_ops = tuple(Op(f"o{n}", "Relu", inputs, (n + 1,)) for n, (inputs, _, _) in enumerate(ops))
    graph = Graph(graph_ops, tuple(tensors), ())
    costs = tuple(OpCost(f"o{n}", 1, workspace) for n, (_, _, workspace) in enumerate(ops))
    return graph, baseline(make_problem(graph, Profile("cpu", "", PROVENANCE, costs, 0, 16)))


NOTHING_KEPT = KeptBuffers((), ())


def plain(requests: tuple[Request, ...]) -> list[tuple[int, bool, bool]]:
    return [(each.bytes, each.takes, each.in_block) for each in requests]


def test_results_then_workspace_then_what_died():
    graph, plan = judged(((0,), 100, 0), ((1,), 200, 7), ((2,), 300, 0), kept=(3,))
    assert plain(run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces)) == [
        (100, True, True),
        (200, True, True),
        (7, True, False),
        (7, False, False),
        (100, False, True),
        (300, True, False),
        (200, False, True),
    ]


def test_workspace_that_is_reserved_is_of_the_heap():
    graph, plan = judged(((0,), 100, 0), ((1,), 200, 2**20), kept=(2,))
    (first, product), name = graph.ops, "MatMulNBits"
    product = msgspec.structs.replace(product, op_type=name, domain="com.microsoft")
    reserved = msgspec.structs.replace(graph, ops=(first, product))
    found = run_requests(reserved, plan, NOTHING_KEPT, RULES.workspaces)
    assert [(each.bytes, each.takes) for each in found if each.heap is not None] == [(2**20, True), (2**20, False)]
    plainly = run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces)
    assert [(each.bytes, each.takes) for each in found] == [(each.bytes, each.takes) for each in plainly]
    assert all(each.heap is None for each in plainly)


def test_outputs_stay():
    graph, plan = judged(((0,), 100, 0), ((1,), 200, 0), kept=(2,))
    assert [each.bytes for each in outputs_of(run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces))] == [200]


def test_a_view_of_an_input_asks_for_nothing():
    graph, plan = judged(((0,), 16, 0), ((1,), 200, 0), view=1, kept=(2,))
    assert plain(run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces)) == [(200, True, False)]


def test_a_kept_buffer_is_given_back_by_who_had_it_last():
    graph, plan = judged(((0,), 100, 0), ((1,), 50, 0), ((2,), 100, 0), ((3,), 10, 0), kept=(4,))
    kinds = ["a", "b", "a", "c"]
    kept = kept_buffers(plan, [100, 50, 100, 10], kinds)
    assert len(kept.takes_over) == 1
    assert plain(run_requests(graph, plan, kept, RULES.workspaces)) == [
        (100, True, True),
        (50, True, True),
        (50, False, True),
        (10, True, False),
        (100, False, True),
    ]


def test_every_workspace_has_a_number_of_its_own_under_which_it_is_given_back():
    graph, plan = judged(((0,), 100, 5), ((1,), 200, 7), kept=(2,))
    found = [each for each in run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces) if each.bytes in (5, 7)]
    assert [(each.number, each.takes) for each in found] == [(-1, True), (-1, False), (-2, True), (-2, False)]


def test_what_nobody_reads_is_given_back_by_the_op_that_made_it():
    graph, plan = judged(((0,), 100, 0), ((0,), 200, 0), kept=(2,))
    assert plain(run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces)) == [
        (100, True, True),
        (100, False, True),
        (200, True, False),
    ]


def test_a_body_asks_step_by_step_and_its_result_where_it_makes_it():
    """A block of 9, then the result of 5 beside it; 7 that the body leaves goes when the op has ended."""
    graph, plan = judged(((0,), 5, 16), kept=(1,))
    bodies = {graph.ops[0].name: (9, 5, -1, 7)}
    found = run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces, InKernels(bodies))
    assert [(each.bytes, each.takes) for each in found] == [(9, True), (5, True), (9, False), (7, True), (7, False)]
    assert [each.bytes for each in outputs_of(found)] == [5]


def test_results_that_the_body_does_not_make_are_there_before_it():
    graph, plan = judged(((0,), 5, 16), kept=(1,))
    found = run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces, InKernels({graph.ops[0].name: (9, -1)}))
    assert [(each.bytes, each.takes) for each in found] == [(5, True), (9, True), (9, False)]


def test_views_are_noted_only_where_that_is_asked_for():
    graph, plan = judged(((0,), 16, 0), ((1,), 16, 0), ((2,), 200, 0), ((3,), 40, 0), view=1, kept=(4,))
    assert all(each.bytes for each in run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces))


def test_views_come_and_go_under_numbers_of_their_own():
    """Every second result is a view of the one before; one that lives to the end of a run goes with its buffer."""
    tensors = [Tensor("x", "float", (4,), 16)]
    for number, view_of in enumerate((None, 1, None, 3, None, 5, None)):
        tensors.append(Tensor(f"t{number}", "float", (25,), 100, number, view_of, number == 6))
    graph = Graph(tuple(Op(f"o{n}", "Relu", (n,), (n + 1,)) for n in range(7)), tuple(tensors), ())
    costs = tuple(OpCost(f"o{n}", 1, 0) for n in range(7))
    plan = baseline(make_problem(graph, Profile("cpu", "", PROVENANCE, costs, 0, 16)))
    found = run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces, with_views=True)
    told = [each.bytes if each.takes else -each.bytes for each in found]
    assert told == [100, 0, 100, -100, 0, 0, 100, -100, 0, 100, -100]
    views = [each for each in found if not each.bytes]
    assert [each.takes for each in views] == [True, False] * 2
    assert views[0].number == views[1].number != views[2].number == views[3].number
    assert {each.number for each in views}.isdisjoint({each.number for each in found if each.bytes})


def test_blocks_of_a_body_have_no_place_in_the_block_of_later_runs():
    graph, plan = judged(((0,), 5, 16), ((1,), 8, 0), kept=(2,))
    found = run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces, InKernels({"o0": (1, 5, -1)}))
    assert [(each.bytes, each.in_block) for each in found if each.takes] == [(1, False), (5, True), (8, False)]


@pytest.mark.parametrize(("domain", "op_type"), [("com.microsoft", "MultiHeadAttention"), ("", "Attention")])
def test_a_mask_is_not_taken_for_keys_that_are_weights(domain, op_type):
    shapes = {"q": (2, 128, 256), "mask": (2,), "y": (2, 128, 256)}
    tensors = tuple(Tensor(name, "float", shape, 4, at - 2) for at, (name, shape) in enumerate(shapes.items()))
    op = Op("o", op_type, (0, 1), (2,), domain=domain)
    assert workspace_parts(Graph((op,), tensors, ()), op, 5000, RULES.workspaces) == (5000,)


def test_a_model_without_ops_asks_for_nothing():
    graph = Graph((), (Tensor("x", "float", (4,), 16),), ())
    plan = baseline(make_problem(graph, Profile("cpu", "", PROVENANCE, (), 0, 16)))
    for with_views in (False, True):
        assert run_requests(graph, plan, NOTHING_KEPT, RULES.workspaces, with_views=with_views) == ()
