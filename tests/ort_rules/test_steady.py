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
