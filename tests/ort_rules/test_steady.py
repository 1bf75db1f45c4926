"""What the steady form adds to the requests of a run."""

import math

import pytest

from remat_cli.ort_rules.requests import Request, outputs_of
from remat_cli.ort_rules.steady import Ballast, SteadyBranch, SteadyForm, steady_requests

TENSOR, OUTPUT = 3, 5
RUN = (
    Request(TENSOR, 4096, True),
    Request(OUTPUT, 1024, True, in_block=False),
    Request(TENSOR, 4096, False),
)


def test_nothing_of_the_graph_has_a_place_in_a_block():
    found = steady_requests(RUN, SteadyBranch(2), SteadyForm())
    assert all(not request.in_block for request in found if request.number in (TENSOR, OUTPUT))
    assert sum(request.bytes for request in found if request.in_block and request.takes) == 9  # a number and a flag


def test_all_but_outputs_is_given_back():
    for form in (SteadyForm(), SteadyForm((2**20,))):
        found = steady_requests(RUN, SteadyBranch(2, (64, 32)), form)
        assert [request.bytes for request in outputs_of(found)] == [64, 32, 1024]


@pytest.mark.parametrize("ballast_bytes", [1, 300, 2**20, 2**24 + 256, 2**31 + 256])
def test_a_ballast_is_as_large_as_it_was_asked_for_and_little_is_written_for_it(ballast_bytes):
    ballast = Ballast.of(ballast_bytes)
    assert ballast_bytes <= ballast.workspace_bytes <= ballast_bytes + 2**14
    read = sum(4 * math.prod(shape) for shape in ballast.shapes)
    assert read <= max(256, ballast_bytes / 50)


def test_a_ballast_is_freed_before_the_graph_begins_and_has_no_pages():
    found = steady_requests(RUN, SteadyBranch(0), SteadyForm((2**20,)))
    ballast = [request for request in found if not request.is_written]
    assert [(request.takes, request.bytes >= 2**20) for request in ballast] == [(True, True), (False, True)]
    assert found.index(ballast[1]) < next(at for at, request in enumerate(found) if request.number == TENSOR)


def test_what_is_held_meanwhile_is_a_flag_and_early_outputs():
    assert SteadyBranch(4).held_bytes == 1
    assert SteadyBranch(4, (100, 20)).held_bytes == 121


def told(request: Request) -> str:
    """Whether memory is taken or given back, its bytes, and what is special about it."""
    sign = "+" if request.takes else "-"
    return f"{sign}{request.bytes}{' in block' * request.in_block}{' unwritten' * (not request.is_written)}"


SQUARE, LINE = "+4", "+16"
STATES_AFTER = ["-4"] * 5
PROLOGUE = [
    *("+8 in block", "+1 in block", "-8 in block", "+8 in block", "+8", "+24"),  # the number, the flag, the token
    *(LINE, LINE, "-8", SQUARE, *["+4"] * 7, "+16 unwritten", *STATES_AFTER, "-16 unwritten", "-4", "-4", "-16", "-16"),
    *("+8", "-4"),  # what the next ballast waits for
    *(LINE, LINE, "-8", "+76", "-24", *["+4"] * 7, "+304 unwritten"),
    *(*STATES_AFTER, "-304 unwritten", "-4", "-76", "-16", "-16", "-4"),
    *("-1 in block", "+1 in block", "-8 in block", "+64", "+8", "+16", "-8", "-16"),
]
"""Of a form with two ballasts, as the runtime's log shows it (tests/runtime/test_arena.py compares them)."""


def test_the_requests_of_the_form_are_these_in_this_order():
    found = steady_requests(RUN, SteadyBranch(2, (64,)), SteadyForm((1, 300)))
    assert list(map(told, found)) == [*PROLOGUE, "+4096", "+1024", "-4096", "-1 in block"]


def test_what_is_given_back_was_taken_before_under_a_number_of_its_own():
    found = steady_requests(RUN, SteadyBranch(2, (64,)), SteadyForm((1, 300)))
    taken = {request.number: request for request in found if request.takes}
    assert len(taken) == sum(request.takes for request in found)
    given = [request for request in found if not request.takes]
    assert len({request.number for request in given}) == len(given)
    assert all(taken[request.number].bytes == request.bytes for request in given)


def test_states_are_given_back_in_the_order_of_the_runtime():
    found = [each for each in steady_requests((), SteadyBranch(0), SteadyForm((1,))) if each.bytes == 4]
    numbers = [each.number for each in found if each.takes]
    assert [numbers.index(each.number) for each in found if not each.takes] == [7, 6, 4, 5, 3, 2, 0, 1]
