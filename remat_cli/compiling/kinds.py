"""Which kind of plan it is that devices ask for."""

from collections.abc import Sequence

from remat_cli.core.values.profile import DeviceSpec, Kind
from remat_cli.devices.provider_table import PROVIDERS, is_plain


def kind_of(specs: Sequence[DeviceSpec], *, is_spilled: bool) -> Kind:
    """The kind of plan for these devices, with a memory to page to if `is_spilled`."""
    if is_spilled:
        return "paged"
    return "sessions" if are_run_apart(specs) else "one_model"


def are_run_apart(specs: Sequence[DeviceSpec]) -> bool:
    """Whether plans for these devices say where ops run, or cannot be written as one model: remat then runs them."""
    return len(specs) > 1 or any(not is_plain(spec) or PROVIDERS[spec.provider].needs_sessions for spec in specs)
