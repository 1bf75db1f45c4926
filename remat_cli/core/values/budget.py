"""A memory budget as people write it, and the value that it is resolved to once a baseline is known.

On its way a budget has three names: `asked`, as written; `budget`, resolved; `budget_bytes`, in force in a problem.
"""

from __future__ import annotations

import difflib
import math
import re
from fractions import Fraction
from typing import Final, Literal

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.units import UNITS, format_bytes, parse_bytes

Scope = Literal["live", "activations", "process"]
"""What bytes of a budget bound: everything that is live at once, that without weights and inputs, or a process."""
Origin = Literal["typed", "share", "min", "process"]
"""Where a number of bytes came from: written so, a share of a baseline, to be searched for, or what is left to live
tensors by a budget on the process."""

FORMS = "write 512MiB, 2GB, a number of bytes, 80%, 0.8 or min"


class AskedBudget(msgspec.Struct, frozen=True):
    """One budget for every device, or with kind `per_device` one for each of `devices`.

    `bytes` belongs to kinds `bytes` and `left`; `fraction`, in (0, 1], to kind `fraction`. `left` are bytes that a
    budget on the process leaves to live tensors. `bounds` is what it speaks of; `text` is what the user wrote.
    """

    text: str
    kind: Literal["bytes", "fraction", "min", "per_device", "left"]
    bytes: int = 0
    fraction: Fraction = Fraction(0)
    devices: tuple[tuple[str, AskedBudget], ...] = ()
    bounds: Scope = "live"

    @property
    def parts(self) -> tuple[AskedBudget, ...]:
        """The budgets of single devices: those of each, or the one that is every device's."""
        return tuple(part for _, part in self.devices) if self.kind == "per_device" else (self,)

    @property
    def process_bytes(self) -> int | None:
        """What a process may hold; None where the budget bounds what is live."""
        return self.parts[0].bytes if self.bounds == "process" else None

    def bounding(self, scope: Scope) -> AskedBudget:
        """The same budget on something else."""
        devices = tuple((name, part.bounding(scope)) for name, part in self.devices)
        return msgspec.structs.replace(self, devices=devices, bounds=scope)

    def at_most(self, bytes_: int) -> AskedBudget:
        """The same budget, with these bytes in place of a share."""
        is_share = self.kind == "fraction" and self.bounds == "live"
        return msgspec.structs.replace(self, kind="bytes", bytes=bytes_) if is_share else self

    def leaving(self, live_bytes: int) -> AskedBudget:
        """So many bytes of live tensors in place of the budget on the process that leaves them."""
        bounds = "live" if self.bounds == "process" else self.bounds
        return AskedBudget(self.text, "left", live_bytes, bounds=bounds)

    def for_device(self, device: str) -> AskedBudget:
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


WHOLE: Final = AskedBudget("100%", "fraction", fraction=Fraction(1))
"""What the model needs as it is."""


class Budget(msgspec.Struct, frozen=True):
    """What a memory may hold in all, weights and inputs included; what that bounds, and where the number came from."""

    bytes: int
    bounds: Literal["live", "process"]
    origin: Origin


def meant_share(text: str) -> str | None:
    """The percentage that a whole number without a unit was probably meant as, since nothing fits in so few bytes."""
    return f"{text}%" if re.fullmatch(r"[1-9][0-9]?|100", text) else None


def parse_budget(text: str) -> AskedBudget:
    """Read `512MiB`, `4096`, `80%`, `0.8`, `min` or `cpu=2GiB,cuda:0=512MiB`.

    An integer is a number of bytes; a number with a point and no unit is a fraction in (0, 1].

    Raises:
        ConfigError: the text is no budget, or one that nothing could fit in.
    """
    text = text.strip()
    if "=" in text:
        parts: dict[str, AskedBudget] = {}
        for part in text.split(","):
            device, separator, amount = (piece.strip() for piece in part.partition("="))
            if not device or not separator or "=" in amount or device in parts:
                raise ConfigError(f"budget '{text}' is not DEVICE=SIZE,...: write cpu=2GiB,cuda:0=512MiB")
            parts[device] = parse_budget(amount)
        return AskedBudget(text, "per_device", devices=tuple(parts.items()))
    if text.lower() == "min":
        return AskedBudget(text, "min")
    if re.fullmatch(r"[0-9]*\.?[0-9]+\s*%|[0-9]*\.[0-9]+", text):
        fraction = parse_share(text, "budget")
        if not 0 < fraction <= 1:
            raise ConfigError(f"budget '{text}' is not above 0 and at most 100 %: {FORMS}")
        return AskedBudget(text, "fraction", fraction=fraction)
    try:
        size_bytes = parse_bytes(text)
    except ConfigError:
        raise ConfigError(f"budget '{text}' is not a budget: {FORMS}{_meant(text)}") from None
    if size_bytes <= 0:
        raise ConfigError(f"budget '{text}' is no memory at all: {FORMS}")
    return AskedBudget(text, "bytes", bytes=size_bytes)


def parse_share(text: str, what: str) -> Fraction:
    """An exact share from `20%` or `0.2`; `what` names it in the message.

    Raises:
        ConfigError: neither a percentage nor a plain decimal number.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    if match is None:
        raise ConfigError(f"{what} '{text}' is not a share: write 20% or 0.2")
    return Fraction(match[1]) / (100 if match[2] else 1)


def resolve(asked: AskedBudget, fixed_bytes: int, baseline_peak_bytes: int) -> Budget:
    """The budget of one memory, given what is fixed there and the peak of the model as it is.

    A fraction bounds the part that planning can change: `fixed + p x (baseline - fixed)`, rounded up, whatever it
    bounds. Bytes bound the total, or where they bound activations what comes on top of the fixed part; those that come
    to the baseline's peak are a share, of 100 %. `min` begins at that peak, and only a search finds its bytes.

    Raises:
        ConfigError: a budget per device (take `for_device` first).
    """
    if asked.kind == "per_device":
        raise ConfigError(f"budget '{asked.text}' is not one number of bytes here")
    if asked.kind == "min":
        return Budget(baseline_peak_bytes, "live", "min")
    if asked.kind == "fraction":
        changeable_bytes = math.ceil(asked.fraction * (baseline_peak_bytes - fixed_bytes))
        return Budget(fixed_bytes + changeable_bytes, "live", "share")
    if asked.bounds == "process":
        return Budget(asked.bytes, "process", "typed")
    total_bytes = asked.bytes + (fixed_bytes if asked.bounds == "activations" else 0)
    if asked.kind == "left":
        return Budget(total_bytes, "live", "process")
    return Budget(total_bytes, "live", "share" if total_bytes == baseline_peak_bytes else "typed")


def _meant(text: str) -> str:
    """What a number with an ending that is none was probably meant to be; nothing where that is a guess."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z%]+)", text.strip())
    endings = {"percent": "%", "pct": "%", "megabyte": "MB", "gigabyte": "GB", **{unit: unit for unit in UNITS if unit}}
    near = [] if match is None else difflib.get_close_matches(match[2].lower().removesuffix("s"), endings, 1, 0.75)
    if match is None or not near:
        return ""
    unit = endings[near[0]]
    written = next(
        (name for name in ("KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB") if name.lower() == unit), unit
    )
    return f"; did you mean {match[1]}{written}?"


def describe_bytes(count: int) -> str:
    """Exact bytes and a readable size: `41,943,040 bytes (40.00 MiB)`."""
    return f"{count:,} bytes ({format_bytes(count)})"
