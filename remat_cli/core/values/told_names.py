"""What ops and tensors of an optimised model are called for people: by what the user's file calls them."""

from collections.abc import Mapping
from typing import Final

import msgspec


class ToldNames(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names of the optimised model -> names that the user knows, where these differ.

    An op is told by the node that it was made of, or by the module of a network and a type: `enc.1 (Conv)`.
    """

    ops: dict[str, str] = {}
    tensors: dict[str, str] = {}

    def op(self, name: str) -> str:
        """An op, or a tile of one: `OP/tile_3`."""
        return _told(self.ops, name)

    def tensor(self, name: str) -> str:
        """A tensor, or a part of one."""
        return _told(self.tensors, name)


OWN_NAMES: Final = ToldNames()
"""As the optimised model calls them."""


def _told(names: Mapping[str, str], name: str) -> str:
    whole, part = name, ""
    while whole not in names and "/" in whole:
        whole, _, last = whole.rpartition("/")
        part = f"{last} {part}".replace("_", " ").strip()
    if whole not in names:
        op, tile, number = name.rpartition("/tile_")
        return f"{op}, tile {number}" if tile and number.isdigit() else name
    return f"{names[whole]}, {part}" if part else names[whole]
