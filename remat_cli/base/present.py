"""Values that must be there, by what was checked before, where a type cannot say so."""

from typing import TypeVar

from remat_cli.base.errors import RematError

T = TypeVar("T")


def present(value: T | None, what: str) -> T:
    """Give the value back; where there is none, one line names what is missing.

    Raises:
        RematError: there is none, which is a bug in remat.
    """
    if value is None:
        raise RematError(f"{what} is missing: a bug in remat, please report it")
    return value
