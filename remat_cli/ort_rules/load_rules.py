"""What versions of the runtime do differently when they load a file: one row for each change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec


class LoadRules(msgspec.Struct, frozen=True):
    """`reads_saved`: all packed copies in a data file are read while it is loaded, not in the first run."""

    reads_saved: bool = False


LOAD_RULES: Final[Sequence[tuple[tuple[int, int], LoadRules]]] = (
    ((0, 0), LoadRules()),
    ((1, 32), LoadRules(reads_saved=True)),
)
"""By the version from which on they hold, oldest first; measured on 1.24.4, 1.26, 1.30, 1.31.1 and 1.32.0."""


def load_rules(version: str) -> LoadRules:
    """The rules of a version such as "1.32.0"; those of the newest for a text that is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return LOAD_RULES[-1][1]
    number = int(found[1]), int(found[2])
    return [rules for since, rules in LOAD_RULES if since <= number][-1]
