"""Calls what opens a session in a process of its own where the model's weights are many.

A session takes its weights two or three times over while it loads, and the heap keeps most of that when it is closed.
In a process of its own that goes with the process; where weights are few it is not worth the start of one.
"""

import functools
import os
import re
import threading
from collections.abc import Callable, Iterable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from remat_cli.base.processes import WORTH_A_PROCESS_BYTES
from remat_cli.runtime.sessions._ort import Advance, run_fresh

LOCATION = re.compile(rb"\x0a\x08location\x12(?:([\x00-\x7f])|([\x80-\xff])([\x00-\x7f]))")
"""Protobuf for: field 1 (key), 8 bytes, "location", field 2 (value) follows, and its length in one byte or two."""
P = ParamSpec("P")
Answer = TypeVar("Answer")


def files_beside(model: Path) -> frozenset[str]:
    """The files of external data that a model file names; they are found without parsing it, once for each file.

    Raises:
        OSError: the file cannot be read.
    """
    known = model.stat()
    return _named_in(model.absolute(), (known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _named_in(model: Path, state: tuple[int, ...]) -> frozenset[str]:
    """The same of a file that has not changed since; `state` says so."""
    found: set[str] = set()
    if not state[2]:
        return frozenset()
    with model.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        for match in LOCATION.finditer(data):
            short, low, high = match.groups()
            count = short[0] if short else low[0] & 0x7F | high[0] << 7
            found.add(data[match.end() : match.end() + count].decode(errors="replace"))
    return frozenset(found)


def weighs_bytes(model: Path, beside: Iterable[str]) -> int:
    """What a model's file and those beside it take.

    Raises:
        OSError: a file cannot be read.
    """
    files = (model, *(model.parent / name for name in beside if "\0" not in name))
    return sum(file.stat().st_size for file in files if os.path.isfile(file))


def is_heavy(model: Path) -> bool:
    """Whether a model's weights, in its file and beside it, are worth a process of their own."""
    try:
        is_known = model.stat().st_size >= WORTH_A_PROCESS_BYTES
        return is_known or weighs_bytes(model, files_beside(model)) >= WORTH_A_PROCESS_BYTES
    except OSError:
        return False  # the runtime says why


def apart_if_heavy(function: Callable[Concatenate[Path, P], Answer]) -> Callable[Concatenate[Path, P], Answer]:
    """A function of a module whose first argument is a model, called in a fresh process where that is heavy."""

    @functools.wraps(function)
    def called(model: Path, /, *arguments: P.args, **named: P.kwargs) -> Answer:
        if not is_heavy(model):
            return function(model, *arguments, **named)
        paths = tuple(each.absolute() if isinstance(each, Path) else each for each in arguments)
        job = (called, model.absolute(), paths, named)
        answer: Answer = run_fresh(_call, job, seconds=threading.TIMEOUT_MAX)  # it keeps to limits of its own
        return answer

    return called


def _call(job: tuple[Any, Path, tuple[Any, ...], dict[str, Any]], advance: Advance) -> Any:
    function, model, arguments, named = job
    return function.__wrapped__(model, *arguments, **named)
