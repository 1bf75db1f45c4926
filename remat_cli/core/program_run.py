"""What runs of a program took: when each action ran, and what each memory held."""

from __future__ import annotations

import msgspec


class ActionRecord(msgspec.Struct, frozen=True):
    """When an action ran, in nanoseconds since the run began, and what was held by memory, in bytes.

    `before_bytes` is what was held when it began, `after_bytes` when it ended and nothing was dropped yet; what a
    session holds within is not in it.
    """

    start_ns: int
    end_ns: int
    before_bytes: tuple[int, ...]
    after_bytes: tuple[int, ...]


class RunRecord(msgspec.Struct, frozen=True):
    """What one run took: a record per action of the program, and the time of all."""

    actions: tuple[ActionRecord, ...]
    total_ns: int


class SeenMemory(msgspec.Struct, frozen=True):
    """What each memory held.

    `fixed_bytes` are weights in the form the runtime keeps and what the caller feeds, `packed_bytes` of these what
    sessions packed, each for itself. `action_bytes` is, by action and memory, the most that was held beyond: live
    tensors and the workspace that was measured when ops were profiled. `is_hidden` marks a memory with a device that
    does not tell what its sessions hold inside: there it is what passes between sessions.
    """

    fixed_bytes: tuple[int, ...]
    packed_bytes: tuple[int, ...]
    action_bytes: tuple[tuple[int, ...], ...]
    is_hidden: tuple[bool, ...]

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most that each memory held, fixed part included."""
        return tuple(
            fixed + max((held[memory] for held in self.action_bytes), default=0)
            for memory, fixed in enumerate(self.fixed_bytes)
        )
