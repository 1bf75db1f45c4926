"""Fields that do not apply: a report of one device has none about several, and the other way round."""

from __future__ import annotations

from typing import Any, Final

import msgspec

LEFT_OUT: Final[Any] = msgspec.UNSET
"""Default of a field that may not apply: JSON leaves it out, and only code that knows that it applies reads it."""


def applies(value: object) -> bool:
    """Whether a field that may be left out was given."""
    return value is not LEFT_OUT
