"""What tests read from pages for people: their code, by language, and the commands in it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)


def page(name: str) -> str:
    """The text of a page of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and code of each block, in their order."""
    return BLOCK.findall(text)


def commands(code: str) -> list[str]:
    """The lines of shell code, comments cut off."""
    found = (line.split(" #")[0].strip() for line in code.splitlines())
    return [line for line in found if line and not line.startswith("#")]


def shell_commands(text: str) -> list[str]:
    """The commands of all shell blocks of a page."""
    return [line for language, code in blocks(text) if language == "sh" for line in commands(code)]
