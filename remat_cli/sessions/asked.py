"""What asks for plans for several devices."""

from collections.abc import Sequence

from remat_cli.compiling.kinds import are_run_apart
from remat_cli.core.values.profile import DeviceSpec


def is_asked(specs: Sequence[DeviceSpec], *, is_spilled: bool) -> bool:
    """Whether there are several devices, or one whose sessions only remat can open, and nothing to page to."""
    return not is_spilled and are_run_apart(specs)
