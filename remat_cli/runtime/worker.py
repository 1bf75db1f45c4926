"""The other side of `_process`: runs one function on one job and writes what it returns."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import get_type_hints

import msgspec

from remat_cli.base.errors import RematError
from remat_cli.runtime._process import ANSWER, FAILURE, JOB, PROGRESS, Failure


def main(target: str, folder_name: str) -> int:
    """Run `module:function` on the job in the folder; returns the exit code."""
    folder = Path(folder_name)
    tempfile.tempdir = folder_name  # what a killed worker leaves behind goes with the folder
    threading.Thread(target=_exit_when_orphaned, daemon=True).start()
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    hints = get_type_hints(function)
    job = msgspec.msgpack.decode((folder / JOB).read_bytes(), type=hints["job"])
    try:
        answer = function(job, _tell)
    except RematError as error:
        (folder / FAILURE).write_bytes(msgspec.msgpack.encode(Failure(type(error).__name__, str(error))))
        return 1
    (folder / ANSWER).write_bytes(msgspec.msgpack.encode(answer))
    return 0


def _tell(done: int, total: int) -> None:
    sys.stdout.write(f"{PROGRESS} {done} {total}\n")
    sys.stdout.flush()


def _exit_when_orphaned() -> None:
    """Standard input closes when the parent is gone, even if it was killed."""
    while os.read(0, 1):
        pass
    os._exit(1)
