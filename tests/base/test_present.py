"""What must be there is given back, or named where it is not."""

import pytest

from remat_cli.base.errors import RematError
from remat_cli.base.present import present


def test_what_is_there_is_given_back_even_where_it_is_nothing_much():
    assert present(0, "a number") == 0


def test_what_is_missing_is_named():
    with pytest.raises(RematError, match="the shape of 'x' is missing"):
        present(None, "the shape of 'x'")
