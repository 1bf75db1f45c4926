"""What running a model compiled for many sizes showed at some of them."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from remat_cli.core.values.promises import Check, is_kept, judged

ComparedWith = Literal["original", "twin"]
"""The user's model, or the same model split in other tiles where the machine cannot run that."""


class SizeSeen(msgspec.Struct, frozen=True):
    """One run at some sizes: whether outputs are those of the user's model, and the most that either held, in bytes.

    Bytes are those of a default session above what it held before its first run; `order_honoured`: ops ran in the order
    in which they run at the largest sizes. Where the machine cannot run the user's model, `original_peak_bytes` is
    None, and `compared_with` says whose outputs they were compared with, if there was anything (None: nothing, and
    `outputs_identical` is None too).
    """

    sizes: dict[str, int]
    outputs_identical: bool | None
    peak_bytes: int
    original_peak_bytes: int | None
    order_honoured: bool = True
    compared_with: ComparedWith | None = "original"


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
        held = self.largest.peak_bytes
        return 0 if is_kept("runs_at_sizes", self.promised_bytes, held) else held - self.promised_bytes

    @property
    def outputs_identical(self) -> bool:
        """Whether outputs were the same bits at every size at which they were compared."""
        return all(run.outputs_identical is not False for run in self.runs)

    @property
    def checks(self) -> tuple[Check, ...]:
        """What is promised of all sizes, each with a line for people where it is broken."""
        most, other = self.largest, next((run for run in self.runs if run.outputs_identical is False), self.runs[0])
        moved = next((run for run in self.runs if not run.order_honoured), None)
        where = told({} if moved is None else moved.sizes)
        return (
            Check(
                judged("outputs_at_sizes", True, self.outputs_identical),
                f"at {told(other.sizes)} the outputs differ from the {other.compared_with}'s",
            ),
            Check(judged("order_at_sizes", True, moved is None), f"at {where} ops run in another order"),
            Check(
                judged("runs_at_sizes", self.promised_bytes, most.peak_bytes),
                f"at {told(most.sizes)} runs held {most.peak_bytes:,} bytes, more than the promised "
                f"{self.promised_bytes:,}",
            ),
            Check(
                judged("after_all_sizes", self.resident_at_largest_bytes, self.resident_bytes),
                f"after runs of many sizes a process held {self.resident_bytes or 0:,} bytes for them, and after the "
                f"largest alone {self.resident_at_largest_bytes or 0:,}",
            ),
        )


def told(sizes: Mapping[str, int]) -> str:
    """Sizes as a user writes them."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
