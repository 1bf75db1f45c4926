"""What a body asks for, derived from what a run shows of its kernels and from what the model says of values."""

from __future__ import annotations

import pytest

from remat_cli.ort_rules.bodies import BodyKernel, KernelWiring, body_requests
from remat_cli.ort_rules.records import RULES_1_32

KIB = 1024


def kernel(name: str, begin: int, end: int, *results: int, workspace: int = 0, **kind: bool) -> BodyKernel:
    sizes = tuple(KIB * size for size in results)
    return BodyKernel(name, KIB * begin, KIB * end, sizes, KIB * workspace, **kind)


def asked(op: BodyKernel, kernels: list[BodyKernel], wiring: dict[str, KernelWiring]) -> list[float]:
    """Requests in KiB; what is given back by its place."""
    return [number / KIB if number > 0 else number for number in body_requests(op, kernels, wiring)]


def test_what_nothing_reads_any_more_is_given_back():
    """Of two buffers of one size the model says which one dies."""
    wiring = {
        "a": KernelWiring((), (1,), ()),
        "b": KernelWiring((1,), (2,), ()),
        "c": KernelWiring((1, 2), (3,), (2,)),
        "d": KernelWiring((1, 3), (4,), (1, 3)),
    }
    kernels = [kernel("a", 5, 9, 4), kernel("b", 9, 13, 4), kernel("c", 13, 14, 1), kernel("d", 10, 12, 2)]
    assert asked(kernel("if", 5, 7, 2), kernels, wiring) == [4, 4, 1, -2, 2, -1, -1]


def test_a_result_in_place_takes_nothing_and_holds_what_it_lies_in():
    wiring = {
        "a": KernelWiring((), (1,), ()),
        "relu": KernelWiring((1,), (2,), (1,)),
        "b": KernelWiring((2,), (3,), (2,)),
    }
    kernels = [kernel("a", 0, 4, 4), kernel("relu", 4, 4, 4), kernel("b", 4, 6, 2)]
    assert asked(kernel("if", 0, 2, 2), kernels, wiring) == [4, 2, -1]


def test_workspace_comes_and_goes_with_its_kernel():
    wiring = {"a": KernelWiring((), (1,), ())}
    kernels = [kernel("a", 0, 4, 4, workspace=3)]
    assert asked(kernel("if", 0, 4, 4), kernels, wiring) == [4, 3, -2]


def test_results_that_a_loop_copies_are_there_beside_what_its_rounds_made():
    """What the last round was handed is there too."""
    wiring = {"add": KernelWiring((), (1,), (), is_first=True)}
    kernels = [kernel("add", 0, 4, 4), kernel("add", 4, 10, 6)]
    assert asked(kernel("loop", 0, 6, 6, copies=True), kernels, wiring) == [4, 6, 6, -1, -1]


def test_parts_of_a_sequence_are_held_until_it_is_joined():
    wiring = {
        "make": KernelWiring((), (1,), (1,), is_first=True),
        "insert": KernelWiring((0, 1), (2,), (1,)),
        "loop": KernelWiring((), (3,), (), passes=((2,),)),
        "join": KernelWiring((3,), (4,), (3,)),
    }
    rounds = [[kernel("make", at, at + 4, 4), kernel("insert", at + 4, at + 8, lists=True)] for at in (0, 4)]
    kernels = [*rounds[0], *rounds[1], kernel("loop", 0, 8, copies=True, has_body=True), kernel("join", 8, 16, 8)]
    assert asked(kernel("if", 0, 8, 8), kernels, wiring) == [4, 4, -1, 4, 4, -2, 8, -1, -1]


def test_what_a_branch_in_a_body_made_is_what_its_op_gives():
    wiring = {
        "inner": KernelWiring((), (1,), ()),
        "if": KernelWiring((), (2,), (), passes=((1,),)),
        "last": KernelWiring((2,), (3,), (2,)),
    }
    kernels = [kernel("inner", 0, 4, 4), kernel("if", 0, 4, 4, has_body=True), kernel("last", 4, 5, 1)]
    assert asked(kernel("outer", 0, 1, 1), kernels, wiring) == [4, 1, -1]


@pytest.mark.parametrize("rounds", [4, 50])
def test_of_rounds_that_are_alike_few_are_told(rounds):
    wiring = {"a": KernelWiring((), (1,), (), is_first=True), "b": KernelWiring((1,), (2,), (1,))}
    once = [kernel("a", 0, 4, 4), kernel("b", 4, 6, 2)]
    again = [kernel("a", 2, 6, 4), kernel("b", 6, 8, 2)]
    found = asked(kernel("loop", 0, 2, 2), [*once, *again * rounds], wiring)
    assert found == asked(kernel("loop", 0, 2, 2), [*once, *again * 3], wiring)
    assert found[:4] == [4, 2, -1, 4]
    assert len(found) < 5 * 4


def test_small_requests_are_one_block():
    wiring = {"a": KernelWiring((), (1,), (1,)), "b": KernelWiring((), (2,), (2,)), "c": KernelWiring((), (3,), ())}
    kernels = [BodyKernel("a", 0, 8, (8,)), BodyKernel("b", 0, 16, (16,)), kernel("c", 0, 1024, 1024)]
    assert body_requests(kernel("if", 0, 1024, 1024), kernels, wiring) == (16, KIB * KIB)


def events(kernels: list[BodyKernel], wiring: dict[str, KernelWiring], end: int, begin: int = 0) -> list[int]:
    """Requests in bytes of an op whose body ran these kernels, and in which so much is in use when it ends."""
    return list(body_requests(BodyKernel("if", begin, end, ()), kernels, wiring))


def made(name: str, begin: int, *results: int, **kind: bool) -> BodyKernel:
    """A kernel that takes just its results, of so many bytes."""
    return BodyKernel(name, begin, begin + sum(results), results, **kind)


TWO = [made("a", 0, 400), made("b", 400, 400)]
MAKE_TWO = {"a": KernelWiring((), (1,), ()), "b": KernelWiring((), (2,), ())}
RELU = BodyKernel("relu", 800, 800, (400,))


@pytest.mark.parametrize(
    ("dies", "first_freed"),
    [((2,), -1), ((), -2)],  # it lies in what dies with it, else in what it reads first
)
def test_a_result_in_place_lies_in_what_dies_before_others(dies, first_freed):
    wiring = MAKE_TWO | {
        "relu": KernelWiring((1, 2), (3,), dies),
        "c": KernelWiring((1, 3), (4,), (1, 2)),
    }
    kernels = [*TWO, RELU, made("c", 800, 100), made("d", 500, 50)]
    assert events(kernels, wiring, 550) == [400, 400, 100, first_freed, 50]


def test_a_result_of_another_size_lies_in_nothing_that_the_kernel_reads():
    wiring = MAKE_TWO | {"view": KernelWiring((1, 2), (3,), (1,)), "c": KernelWiring((3,), (4,), (3,))}
    kernels = [*TWO, BodyKernel("view", 800, 800, (200,)), made("c", 400, 100)]
    # What the view lay in went with what it was of: when it dies, only what was made behind it may go.
    assert events(kernels, wiring, 400) == [400, 400, -1, 100, -2]


def test_results_of_no_bytes_and_ones_that_the_model_does_not_name():
    wiring = {"a": KernelWiring((), (1, 2), (1,)), "b": KernelWiring((2,), (), (2,))}
    kernels = [BodyKernel("a", 0, 401, (0, 401)), BodyKernel("b", 401, 402, (401, 1))]
    assert events(kernels, wiring, 1) == [401, 1, -1]


def test_what_a_kernel_leaves_beyond_its_results_is_held_without_a_value():
    kernels = [BodyKernel("a", 0, 401, (400,)), made("b", 401, 50)]
    assert events(kernels, {"a": KernelWiring((), (1,), (1,))}, 51) == [400, 1, 50, -1]


def test_what_came_between_kernels_is_taken_where_the_next_one_begins():
    kernels = [made("a", 10, 400), made("b", 411, 50)]
    assert events(kernels, {}, 461, begin=10) == [400, 1, 50]


@pytest.mark.parametrize(
    ("end", "freed"),
    [
        (1500, [-3]),  # it is just so large
        (1000, [-1]),  # the largest explains it
        (400, [-1, -1]),  # and the next
        (450, [-1, -1]),  # what seems to be freed may be 512 bytes off
        (1412, [-1]),
        (1413, [-2]),
        (0, [-1, -1, -1]),
        (1900, []),
    ],
)
def test_of_buffers_of_which_nothing_is_known_the_one_that_explains_most_goes(end, freed):
    kernels = [made("a", 0, 1000), made("b", 1000, 500), made("c", 1500, 400)]
    assert events(kernels, {}, end) == [1000, 500, 400, *freed]


def test_what_is_dead_goes_first_and_then_what_is_just_as_large_as_the_rest():
    kernels = [made("a", 0, 900), made("b", 900, 400), made("c", 1300, 700)]
    wiring = {"c": KernelWiring((), (1,), (1,))}
    assert events(kernels, wiring, 900) == [900, 400, 700, -3, -2]


def test_what_dies_with_a_kernel_goes_before_what_was_made_anew():
    """The first buffer holds a value that the next round made again elsewhere, and which is still read."""
    wiring = {"a": KernelWiring((), (1,), (), is_first=True), "b": KernelWiring((), (2,), (2,))}
    kernels = [made("a", 0, 400), made("a", 400, 400), made("b", 800, 400)]
    assert events(kernels, wiring, 800) == [400, 400, 400, -3]
    assert events(kernels, wiring, 400) == [400, 400, 400, -3, -1]


def test_a_value_that_is_made_again_is_not_dead_any_more():
    wiring = {
        "k": KernelWiring((), (1,), (), is_first=True),
        "a": KernelWiring((), (2,), ()),
        "d": KernelWiring((2,), (), (2,)),
    }
    again = [made("k", 0, 400), made("a", 400, 400), BodyKernel("d", 800, 800, ())]
    later = [made("k", 400, 400), made("a", 800, 400), BodyKernel("e", 1200, 1200, ())]
    assert events([*again, *later], wiring, 800) == [400, 400, -2, 400, 400, -1]


def loop(begin: int, *results: int, end: int) -> BodyKernel:
    return BodyKernel("loop", begin, end, results, has_body=True, copies=True)


def test_copies_that_a_loop_in_a_body_made_die_like_other_results():
    wiring = {
        "step": KernelWiring((), (1,), ()),
        "loop": KernelWiring((), (5, 6), (6,), passes=((1,), (2,))),
        "last": KernelWiring((5,), (7,), (5,)),
    }
    kernels = [made("step", 0, 400), loop(0, 400, 400, end=800), made("last", 400, 50)]
    # The round's own goes once its copy is there; of the copies the second dies at once, the first behind its reader.
    assert events(kernels, wiring, 50) == [400, 400, 400, -1, -2, 50, -1]


@pytest.mark.parametrize("candidates", [(1, 2), (2, 1)])
def test_what_a_branch_gives_lies_where_its_body_made_it_last(candidates):
    wiring = MAKE_TWO | {
        "if": KernelWiring((), (3,), (), passes=(candidates,)),
        "next": KernelWiring((), (4,), ()),
        "last": KernelWiring((3,), (5,), (3,)),
    }
    branch = BodyKernel("if", 0, 800, (400,), has_body=True)
    kernels = [*TWO, branch, made("next", 400, 400), made("last", 800, 50)]
    assert events(kernels, wiring, 450) == [400, 400, -1, 400, 50, -1]


def test_what_a_branch_gives_is_there_though_what_else_it_made_is_dead():
    wiring = {
        "a": KernelWiring((), (1,), ()),
        "b": KernelWiring((), (2,), (2,)),
        "if": KernelWiring((), (3,), (), passes=((1,),)),
    }
    kernels = [*TWO, BodyKernel("if", 0, 800, (400,), has_body=True), made("next", 400, 50)]
    assert events(kernels, wiring, 450) == [400, 400, -2, 50]


def test_parts_of_a_sequence_stay_while_others_go():
    wiring = {"insert": KernelWiring((), (2,), ()), "b": KernelWiring((), (3,), ())}
    kernels = [BodyKernel("insert", 0, 400, (), lists=True), made("b", 400, 400)]
    assert events(kernels, wiring, 400) == [400, 400, -2]


def test_what_a_branch_gives_of_its_outside_lies_in_no_buffer_of_its_body():
    wiring = MAKE_TWO | {
        "if": KernelWiring((), (3,), (), passes=((9,),)),
        "last": KernelWiring((3,), (4,), (3,)),
        "b": KernelWiring((), (2,), (2,)),
    }
    kernels = [*TWO, BodyKernel("if", 0, 800, (400,), has_body=True), made("last", 800, 50)]
    assert events(kernels, wiring, 450) == [400, 400, 50, -2]


def test_loops_copy_what_their_last_round_made_and_branches_do_not():
    rules = RULES_1_32.bodies
    assert rules.end_bytes("Loop", 1000, 300) == 1300
    assert rules.end_bytes("If", 1000, 300) == 1000


@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_rounds_that_leave_more_each_time_are_all_told(rounds):
    wiring = {"a": KernelWiring((), (1,), (), is_first=True)}
    kernels = [made("a", 300 * at, 300) for at in range(rounds)]
    assert events(kernels, wiring, 300 * rounds) == [300] * rounds


def test_rounds_that_differ_are_told():
    wiring = {"a": KernelWiring((), (1,), (1,), is_first=True)}
    sizes = [300, 300, 300, 300, 700, 300]
    kernels = [made("a", 0, size) for size in sizes]
    assert events(kernels, wiring, 0)[:6] == [300, -1, 300, -1, 300, -1]
    assert events(kernels, wiring, 0)[6:] == [700, -1, 300, -1]


@pytest.mark.parametrize(("small", "is_told"), [(2046, True), (2047, False)])
def test_of_very_many_requests_the_largest_are_told(small, is_told):
    wiring = {name: KernelWiring((), (1,), (1,)) for name in "ab"}
    kernels = [made("a", 0, 30 + at % 3) for at in range(small)] + [made("b", 0, 90)] * 2
    found = events(kernels, wiring, 0)
    assert found[-4:] == [90, -1 - (not is_told), 90, -1 - (not is_told)]
    if is_told:
        assert len(found) == 4096
    else:
        assert found[0] == 30  # one block for the smallest, and all larger ones
        assert sorted(set(found[1:])) == [-2, 31, 32, 90]


def test_what_is_a_little_part_of_the_most_in_use_is_small():
    """The 1,024th part."""
    kernels = [[made("a", 0, size), made("b", size, 2**20 - size)] for size in (1023, 1024)]
    assert events(kernels[0], {}, 0) == [1023, 2**20 - 1023, -2]
    assert events(kernels[1], {}, 0) == [1024, 2**20 - 1024, -2, -1]
    between = [made("a", 0, 1024), made("b", 1024, 2**20 - 512)]  # of which 1,024.5 bytes are that part
    assert events(between, {}, 0) == [1024, 2**20 - 512, -2, -1]


def test_what_lies_in_place_goes_when_it_dies_and_not_another_as_large():
    wiring = MAKE_TWO | {"relu": KernelWiring((2,), (3,), (2,)), "c": KernelWiring((3,), (4,), (3,))}
    assert events([*TWO, RELU, made("c", 800, 100)], wiring, 500) == [400, 400, 100, -2]


def test_where_a_value_was_made_in_an_earlier_round_is_free_once_it_lies_elsewhere():
    wiring = {"u": KernelWiring((), (4,), ()), "v": KernelWiring((), (3,), (), is_first=True)}
    kernels = [made("u", 0, 400), made("v", 400, 400), BodyKernel("v", 800, 800, (200,)), made("w", 400, 50)]
    assert events(kernels, wiring, 450) == [400, 400, -2, 50]


def test_what_a_kernel_leaves_is_there_beside_its_workspace():
    assert events([BodyKernel("a", 0, 401, (400,), 50)], {}, 401) == [400, 1, 50, -3]


def test_rounds_of_single_bytes_are_alike_too():
    wiring = {"a": KernelWiring((), (1,), (1,), is_first=True)}
    assert events([made("a", 0, 1)] * 9, wiring, 0) == [1, -1] * 3
