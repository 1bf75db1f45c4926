"""What measuring ops by themselves finds, and who is to blame where the device is lost meanwhile."""

from collections.abc import Callable

import msgspec

from remat_cli.base.errors import DeviceLost, RuntimeFailure


class OpFinding(msgspec.Struct, frozen=True):
    """What an op costs on the device, or why it cannot be used there (`time_ns` is None then)."""

    name: str
    time_ns: int | None = None
    noise_percent: float = 0.0
    reason: str = ""


class Losing:
    """Whether an op is to blame for the loss of its device: twice in a row, and not the next op as well."""

    def __init__(self, keep: Callable[[OpFinding], None]) -> None:
        """Findings are handed to `keep` when they are sure."""
        self._keep, self._suspect, self._is_blamed = keep, OpFinding(""), False

    def is_back(self, ops: int) -> None:
        """So many ops ran on the device since."""
        if ops and self._is_blamed:
            self._keep(self._suspect)
            self._is_blamed = False

    def blames(self, found: OpFinding, crash: RuntimeFailure, device: str) -> bool:
        """Whether an op is given up after a crash; else it is to be tried once more.

        Raises:
            DeviceLost: the device does not come back.
        """
        if not isinstance(crash, DeviceLost):
            self._keep(found)
            return True
        if found.name != self._suspect.name:
            if self._is_blamed:
                raise DeviceLost(f"device '{device}' fails at every op: {crash}")
            self._suspect = found
            return False
        self._is_blamed = True
        return True
