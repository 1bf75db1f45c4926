"""What decides how the runtime behaves: which version it is, on which processor, with which options."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of a session's options decides what it holds: the runtime's own default, where nothing else is said.

    `is_priority_based`: of the ops that are ready the one of least rank runs next, else in the order of a depth-first
    search. `reuses_dead_buffers`: for later tensors of the same shape. `has_memory_pattern`: later runs take one block
    for all tensors. `has_arena`: tensors come from the session's arena, else from the system's malloc. `runs_at_once`
    are under way in one session at most.
    """

    is_optimised: bool = True
    is_priority_based: bool = False
    reuses_dead_buffers: bool = True
    has_memory_pattern: bool = True
    has_arena: bool = True
    runs_at_once: int = 1


DEFAULT: Final = SessionOptions()


class Runtime(msgspec.Struct, frozen=True):
    """A runtime as it is installed: its version, the `machine` as the system calls it, and how sessions are opened.

    `layout_block` is how many channels its blocked layout keeps together on this processor; 1 where it has no blocks.
    `judged_as` are the oldest and the newest version that files are for (empty: this one): they are judged by the rules
    of all between.
    """

    version: str
    machine: str
    layout_block: int
    options: SessionOptions = DEFAULT
    judged_as: tuple[str, ...] = ()

    @property
    def processor(self) -> str:
        """The kind of the processor as people know it."""
        return processor_of(self.machine, self.layout_block)

    @property
    def kind(self) -> str:
        """The name of the target that is this processor."""
        family = family_of(self.machine)
        if family != "x86-64":
            return family
        return f"{family}-avx512" if self.layout_block == WIDE_BLOCK else f"{family}-avx2"


FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}
)
"""What people call a processor family, by what systems call it."""
WIDE_BLOCK: Final = 16
"""Channels in a block of the runtime's layout where x86-64 has AVX-512; elsewhere there are 8, or no blocks."""


def family_of(machine: str) -> str:
    """The family of a processor as people know it, by what the system calls it."""
    return FAMILIES.get(machine.lower(), machine.lower())


def processor_of(machine: str, block: int) -> str:
    """The kind of a processor as people know it, by what the system calls it and the runtime's block on it."""
    family = family_of(machine)
    if family != "x86-64":
        return family
    return f"{family} with AVX-512" if block == WIDE_BLOCK else f"{family} without AVX-512"
