"""What the steady form adds to the requests of a run."""

from remat_cli.core.requests import Request, outputs_of
from remat_cli.core.steady import SteadyBranch, SteadyForm, steady_requests

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
    for form in (SteadyForm(), SteadyForm(2**20)):
        found = steady_requests(RUN, SteadyBranch(2, (64, 32)), form)
        assert [request.bytes for request in outputs_of(found)] == [64, 32, 1024]


def test_a_ballast_is_freed_before_the_graph_begins():
    found = steady_requests(RUN, SteadyBranch(0), SteadyForm(2**20))
    events = [(request.bytes, request.takes) for request in found]
    assert events.index((2**20, False)) < events.index((4096, True))
    assert [bytes_ for bytes_, takes in events if bytes_ == 2**20 and takes] == [2**20]


def test_what_is_held_meanwhile_is_a_flag_and_early_outputs():
    assert SteadyBranch(4).held_bytes == 1
    assert SteadyBranch(4, (100, 20)).held_bytes == 121
