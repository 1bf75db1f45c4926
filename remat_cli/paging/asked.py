"""What asks for plans that page."""

from collections.abc import Sequence

from remat_cli.core.values.profile import DeviceSpec


def is_asked(specs: Sequence[DeviceSpec], *, is_spilled: bool) -> bool:
    """Whether there is a memory to page to, whatever the devices are."""
    return is_spilled
