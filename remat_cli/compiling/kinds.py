"""The kinds of plan: the class of each, and what asks for it. A kind is a wing and its row here."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from remat_cli.base.errors import ConfigError
from remat_cli.base.named import named
from remat_cli.core.values.profile import DeviceSpec, Kind
from remat_cli.devices.provider_table import PROVIDERS, is_plain


class WayRow(NamedTuple):
    """A kind of plan, as `module:name`, imported when it is first asked for.

    `way` is its class. `asked` says of devices, and whether there is a memory to page to, if they ask for such plans.
    """

    way: str
    asked: str


WAYS: Final[Mapping[Kind, WayRow]] = MappingProxyType(
    {
        "one_model": WayRow("remat_cli.compiling.one_model.way:OneModelWay", "remat_cli.compiling.kinds:is_one_model"),
        "sessions": WayRow("remat_cli.sessions.way:SessionsWay", "remat_cli.sessions.asked:is_asked"),
        "paged": WayRow("remat_cli.paging.way:PagedWay", "remat_cli.paging.asked:is_asked"),
    }
)
"""What each kind is; the first whose devices ask for it is planned."""


def kind_of(specs: Sequence[DeviceSpec], *, is_spilled: bool) -> Kind:
    """The kind of plan for these devices, with a memory to page to if `is_spilled`.

    Raises:
        ConfigError: there is none, as its wing is not here.
    """
    for kind, row in WAYS.items():
        if named(row.asked)(specs, is_spilled=is_spilled):
            return kind
    where = ", ".join(spec.name for spec in specs) + (" with --spill" if is_spilled else "")
    raise ConfigError(f"no kind of plan is known here for {where}: there are {', '.join(WAYS)}")


def is_one_model(specs: Sequence[DeviceSpec], *, is_spilled: bool) -> bool:
    """Whether a plan that is one model is asked for: for one plain device."""
    return not is_spilled and not are_run_apart(specs)


def are_run_apart(specs: Sequence[DeviceSpec]) -> bool:
    """Whether plans for these devices say where ops run, or cannot be written as one model: remat then runs them."""
    return len(specs) > 1 or any(not is_plain(spec) or PROVIDERS[spec.provider].needs_sessions for spec in specs)
