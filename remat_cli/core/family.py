"""What running a model compiled for many sizes showed at some of them."""

from collections.abc import Mapping

import msgspec

NO_RATCHET = 1.10
"""Of what the largest size leaves resident: what any sequence of sizes may leave, with RATCHET_ROOM_BYTES more."""
RATCHET_ROOM_BYTES = 4 * 2**20
KEPT_BYTES = 4096
"""What a session may hold more when it has run other sizes before: kernels keep small buffers."""


class SizeSeen(msgspec.Struct, frozen=True):
    """One run at some sizes: whether outputs are those of the user's model, and the most that either held, in bytes.

    Bytes are those of a default session above what it held before its first run; `order_honoured`: ops ran in the order
    in which they run at the largest sizes.
    """

    sizes: dict[str, int]
    outputs_identical: bool
    peak_bytes: int
    original_peak_bytes: int
    order_honoured: bool = True


class FamilySeen(msgspec.Struct, frozen=True):
    """Runs at several sizes in one session, the largest first, the others in an order that neither rises nor falls.

    `promised_bytes` is what the plan holds at most, for any size. `resident_bytes` is what a process that ran small and
    large sizes in turn, and `resident_at_largest_bytes` what one that only ran the largest came to hold of its own for
    runs (None: not measured here).
    """

    promised_bytes: int
    runs: tuple[SizeSeen, ...]
    resident_bytes: int | None = None
    resident_at_largest_bytes: int | None = None

    @property
    def largest(self) -> SizeSeen:
        """The run that held most."""
        return max(self.runs, key=lambda run: run.peak_bytes)

    @property
    def excess_bytes(self) -> int:
        """How much more than promised runs held; 0 where that is only what kernels keep."""
        more = self.largest.peak_bytes - self.promised_bytes
        return more if more > KEPT_BYTES else 0

    @property
    def outputs_identical(self) -> bool:
        """Whether outputs were the same bits at every size."""
        return all(run.outputs_identical for run in self.runs)

    @property
    def checks(self) -> tuple[tuple[bool, str], ...]:
        """What is promised of all sizes, and a line for each that is broken."""
        most, other = self.largest, next((run for run in self.runs if not run.outputs_identical), self.runs[0])
        moved = next((run for run in self.runs if not run.order_honoured), None)
        ratchet = (
            self.resident_bytes is None
            or self.resident_at_largest_bytes is None
            or self.resident_bytes
            <= max(NO_RATCHET * self.resident_at_largest_bytes, self.resident_at_largest_bytes + RATCHET_ROOM_BYTES)
        )
        return (
            (self.outputs_identical, f"at {told(other.sizes)} the outputs differ from the original's"),
            (moved is None, f"at {told({} if moved is None else moved.sizes)} ops run in another order"),
            (
                most.peak_bytes <= self.promised_bytes + KEPT_BYTES,
                f"at {told(most.sizes)} runs held {most.peak_bytes:,} bytes, more than the promised "
                f"{self.promised_bytes:,}",
            ),
            (
                ratchet,
                f"after runs of many sizes a process held {self.resident_bytes or 0:,} bytes for them, and after the "
                f"largest alone {self.resident_at_largest_bytes or 0:,}",
            ),
        )


def told(sizes: Mapping[str, int]) -> str:
    """Sizes as a user writes them."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
