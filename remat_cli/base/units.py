"""Bytes and percentages as people write them."""

import re

from remat_cli.base.errors import ConfigError

UNITS = {
    "": 1,
    "b": 1,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


def format_bytes(count: int) -> str:
    """Bytes in the largest binary unit that keeps the number above one, with two decimals."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def parse_bytes(text: str) -> int:
    """Bytes from `512MiB`, `2GB`, `1.5G`, `4096`; `K M G T` alone are base 2.

    Raises:
        ConfigError: the text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in UNITS:
        raise ConfigError(f"'{text}' is not a size; write 512MiB, 2GB or a number of bytes")
    return (
        int(float(match[1]) * UNITS[match[2].lower()]) if "." in match[1] else int(match[1]) * UNITS[match[2].lower()]
    )
