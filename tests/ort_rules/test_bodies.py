"""What a body asks for, derived from what a run shows of its kernels and from what the model says of values."""

from __future__ import annotations

import pytest

from remat_cli.ort_rules.bodies import BodyKernel, KernelWiring, body_requests

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
