"""A budget as people write it, and what it means in bytes."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Literal

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.units import format_bytes, parse_bytes

Scope = Literal["live", "activations", "process"]
"""What bytes of a budget bound: everything that is live at once, that without weights and inputs, or a process."""

FORMS = "write 512MiB, 2GB, a number of bytes, 80%, 0.8 or min"


class Budget(msgspec.Struct, frozen=True):
    """One budget for every device, or with kind `per_device` one for each of `devices`.

    `bytes` belongs to kind `bytes`; `fraction`, in (0, 1], to kind `fraction`. `text` is what the user wrote.
    """

    text: str
    kind: Literal["bytes", "fraction", "min", "per_device"]
    bytes: int = 0
    fraction: Fraction = Fraction(0)
    devices: tuple[tuple[str, Budget], ...] = ()

    def for_device(self, device: str) -> Budget:
        """The part that concerns one device.

        Raises:
            ConfigError: a budget per device that does not name this one.
        """
        if self.kind != "per_device":
            return self
        parts = dict(self.devices)
        if device not in parts:
            raise ConfigError(f"budget '{self.text}' names no device '{device}': add {device}=SIZE")
        return parts[device]


def parse_budget(text: str) -> Budget:
    """Read `512MiB`, `4096`, `80%`, `0.8`, `min` or `cpu=2GiB,cuda:0=512MiB`.

    An integer is a number of bytes; a number with a point and no unit is a fraction in (0, 1].

    Raises:
        ConfigError: the text is no budget, or one that nothing could fit in.
    """
    text = text.strip()
    if "=" in text:
        return Budget(text, "per_device", devices=_parse_devices(text))
    if text.lower() == "min":
        return Budget(text, "min")
    if re.fullmatch(r"[0-9]*\.?[0-9]+\s*%|[0-9]*\.[0-9]+", text):
        return Budget(text, "fraction", fraction=_parse_fraction(text))
    return Budget(text, "bytes", bytes=_parse_size(text))


def _parse_fraction(text: str) -> Fraction:
    fraction = parse_share(text, "budget")
    if not 0 < fraction <= 1:
        raise ConfigError(f"budget '{text}' is not above 0 and at most 100 %: {FORMS}")
    return fraction


def parse_share(text: str, what: str) -> Fraction:
    """An exact share from `20%` or `0.2`; `what` names it in the message.

    Raises:
        ConfigError: neither a percentage nor a plain decimal number.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    if match is None:
        raise ConfigError(f"{what} '{text}' is not a share: write 20% or 0.2")
    return Fraction(match[1]) / (100 if match[2] else 1)


def _parse_size(text: str) -> int:
    try:
        size = parse_bytes(text)
    except ConfigError:
        raise ConfigError(f"budget '{text}' is not a budget: {FORMS}") from None
    if size <= 0:
        raise ConfigError(f"budget '{text}' is no memory at all: {FORMS}")
    return size


def _parse_devices(text: str) -> tuple[tuple[str, Budget], ...]:
    """The parts of `cpu=2GiB,cuda:0=512MiB`."""
    parts: dict[str, Budget] = {}
    for part in text.split(","):
        device, separator, amount = (piece.strip() for piece in part.partition("="))
        if not device or not separator or "=" in amount or device in parts:
            raise ConfigError(f"budget '{text}' is not DEVICE=SIZE,...: write cpu=2GiB,cuda:0=512MiB")
        parts[device] = parse_budget(amount)
    return tuple(parts.items())


def resolve(budget: Budget, fixed_bytes: int, baseline_peak_bytes: int, scope: Scope = "live") -> int:
    """The budget of one device as total bytes, fixed part included.

    A fraction bounds the part that planning can change: `fixed + p x (baseline - fixed)`, rounded up, in either
    scope. Bytes bound the total, or with scope `activations` what comes on top of the fixed part.

    Raises:
        ConfigError: `min` (its bytes come from solving) or a budget per device (take `for_device` first).
    """
    if budget.kind == "fraction":
        return fixed_bytes + math.ceil(budget.fraction * (baseline_peak_bytes - fixed_bytes))
    if budget.kind == "bytes":
        return budget.bytes + (fixed_bytes if scope == "activations" else 0)
    raise ConfigError(f"budget '{budget.text}' is not one number of bytes here")


def describe_bytes(count: int) -> str:
    """Exact bytes and a readable size: `41,943,040 bytes (40.00 MiB)`."""
    return f"{count:,} bytes ({format_bytes(count)})"
