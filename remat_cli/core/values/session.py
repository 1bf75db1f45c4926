"""The session options that a file is made for: under these, and no others, what is promised of its process holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

from remat_cli.base.errors import ConfigError

Optimisation = Literal["all", "extended", "basic", "disabled"]
Mode = Literal["sequential", "parallel"]
MOST_AT_ONCE = 64
OPTIONS: Mapping[str, str] = {
    "arena": "on or off",
    "pattern": "on or off",
    "optimisation": ", ".join(get_args(Optimisation)),
    "threads": "a number of threads",
    "mode": ", ".join(get_args(Mode)),
    "concurrency": "a number of runs at once",
}
"""What may be said of a session, and how."""
APART = (("arena", "mode"), ("arena", "concurrency"), ("mode", "concurrency"))
"""Options of which no two are promised together: other threads take memory from heaps of their own."""

ANY_THREADS = "any number of threads"
"""What a session must be like as to threads where that is all the same."""


class AskedSession(msgspec.Struct, frozen=True, kw_only=True):
    """How callers open and run the session of a file; the defaults are the runtime's own.

    `arena` is the CPU memory arena, `pattern` the memory pattern, `optimisation` the level of graph optimisation,
    `threads` those of an op (0: the runtime's own default), `mode` the executor's, `concurrency` how many runs may be
    under way at once in one session.
    """

    arena: bool = True
    pattern: bool = True
    optimisation: Optimisation = "all"
    threads: int = 0
    mode: Mode = "sequential"
    concurrency: int = 1

    @property
    def contradiction(self) -> str:
        """Two options that are not promised together; empty where there are none."""
        changed = self.changed
        found = (pair for pair in APART if all(name in changed for name in pair))
        return next((" and ".join(f"{name}={changed[name]}" for name in pair) for pair in found), "")

    @property
    def is_default(self) -> bool:
        """Whether nothing was said."""
        return self == AskedSession()

    @property
    def changed(self) -> dict[str, str]:
        """What is not the default, as it is written."""
        found = {}
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if value != getattr(DEFAULT, field.name):
                found[field.name] = ("on" if value else "off") if isinstance(value, bool) else str(value)
        return found

    @property
    def words(self) -> tuple[str, ...]:
        """The same as NAME=VALUE."""
        return tuple(f"{name}={value}" for name, value in self.changed.items())

    @property
    def has_pattern(self) -> bool:
        """Whether later runs take one block for all tensors; the parallel executor takes none."""
        return self.pattern and self.mode == "sequential"

    @property
    def lines(self) -> tuple[str, ...]:
        """What a session must be like, for people."""
        is_default_bits = "" if self.optimisation == "all" else ", with the bits of a default session"
        pattern = () if self.pattern else ("memory pattern off",)
        mode = () if self.mode == "sequential" else ("parallel execution mode",)
        runs = () if self.concurrency == 1 else (f"at most {self.concurrency} runs at once",)
        return (
            f"any graph optimisation level{is_default_bits}",
            f"{self.threads} threads" if self.threads else ANY_THREADS,
            "CPU memory arena on" if self.arena else "CPU memory arena off, memory from glibc's malloc",
            *pattern,
            *mode,
            *runs,
        )


DEFAULT = AskedSession()


def session_of(words: Iterable[str]) -> AskedSession:
    """The session of such words as `arena=off`, as a file has them; what is not known is left out."""
    pairs = (word.partition("=") for word in words)
    return AskedSession(**{name: session_value(name, value) for name, _, value in pairs if name in OPTIONS})  # type: ignore[arg-type]


def session_value(name: str, value: object) -> bool | int | str:
    """The value of one option; YAML and Python say true and false for on and off.

    Raises:
        ConfigError: there is no such option, or it has no such value.
    """
    if name not in OPTIONS:
        raise ConfigError(f"session option '{name}' is none of {', '.join(OPTIONS)}")
    text = {"True": "on", "False": "off"}.get(str(value), str(value))
    if name in ("arena", "pattern") and text in ("on", "off"):
        return text == "on"
    words = {"optimisation": get_args(Optimisation), "mode": get_args(Mode)}
    if text in words.get(name, ()):
        return text
    if name in ("threads", "concurrency") and text.isdigit() and 1 <= int(text) <= MOST_AT_ONCE:
        return int(text)
    raise ConfigError(f"session {name}={text}: write {OPTIONS[name]}, such as --session arena=off")
