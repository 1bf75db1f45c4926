"""What decides how the runtime behaves: which version it is, on which processor, with which options."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}
)
"""What people call a processor family, by what systems call it."""
WIDE_BLOCK: Final = 16
"""Channels in a block of the runtime's layout where x86-64 has AVX-512; elsewhere there are 8, or no blocks."""


def processor_of(machine: str, block: int) -> str:
    """The kind of a processor as people know it, by what the system calls it and the runtime's block on it."""
    family = FAMILIES.get(machine.lower(), machine.lower())
    if family != "x86-64":
        return family
    return f"{family} with AVX-512" if block == WIDE_BLOCK else f"{family} without AVX-512"
