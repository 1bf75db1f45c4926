"""How a command speaks to whoever runs it, whatever its work is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from remat_cli.settings.settings import Settings


class Printing(msgspec.Struct, frozen=True):
    """The form of the result on stdout, and how much progress stderr gets."""

    format: Literal["text", "json"] = "text"
    quiet: bool = False
    verbose: bool = False
    color: bool = True


def printing_of(config: Settings) -> Printing:
    """What flags, configuration file and NO_COLOR ask for."""
    return Printing(config.format, config.quiet, config.verbose, config.color)
