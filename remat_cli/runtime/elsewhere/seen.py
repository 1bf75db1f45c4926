"""What `there.py` saw, as the values that looks of our own give too."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from remat_cli.base.files import WORK_FOLDER
from remat_cli.runtime.measure.turns import OutputPrint
from remat_cli.runtime.observe._events import read_runs
from remat_cli.runtime.observe.resident import ResidentBytes, ResidentFigures
from remat_cli.runtime.verify.file_runs import FileRuns, SessionSeen, session_seen


class Came(msgspec.Struct, frozen=True):
    """How far a model came, and what the runtime says if it did not come to the end."""

    stage: Literal["load", "run", "died", "done"]
    message: str | None = None


@dataclass(frozen=True)
class ElsewhereSeen:
    """How far both models came, and what they showed; None where one of them did not run, or was not watched.

    `difference` is the largest of their outputs, relative to the largest magnitude. `resident` and `seconds` (the least
    of a run) are those of the original and the file.
    """

    original: Came
    file: Came
    runs: FileRuns | None = None
    difference: float | None = None
    resident: tuple[ResidentFigures, ResidentFigures] | None = None
    seconds: tuple[float, float] | None = None


def seen_from(found: Mapping[str, Any], version: str) -> ElsewhereSeen:
    """The values that an answer stands for, of a runtime of some version."""
    original, file = (msgspec.convert({**found[key]}, Came) for key in ("original", "file"))
    exact = found.get("exact")
    if exact is None or exact["stage"] != "done":
        return ElsewhereSeen(original, file if exact is None else msgspec.convert({**exact}, Came))
    runs = FileRuns(_session(found["original"]), _session(found["file"]), _session(exact), version)
    pair, seconds = found.get("resident") or (None, None), found.get("seconds")
    first, second = (
        None
        if each is None or "stage" in each
        else ResidentFigures(
            load_peak_bytes=ResidentBytes(*each["load_peak"]),
            loaded_bytes=ResidentBytes(*each["loaded"]),
            run_peak_bytes=tuple(ResidentBytes(*peak) for peak in each["run_peaks"]),
            after_bytes=ResidentBytes(*each["after"]),
            load_seconds=each["load_seconds"],
            run_seconds=tuple(each["run_seconds"]),
            data_bytes=tuple(each["data_bytes"]),
            peak_by="hwm",
        )
        for each in pair
    )
    return ElsewhereSeen(
        original,
        file,
        runs,
        found.get("difference"),
        None if first is None or second is None else (first, second),
        None if not isinstance(seconds, list) else (seconds[0], seconds[1]),
    )


def _session(found: Mapping[str, Any]) -> SessionSeen:
    prints = [tuple(msgspec.convert(each, OutputPrint) for each in group) for group in found["prints"]]
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER) as folder:
        profile = Path(folder) / "profile.json"
        profile.write_text(json.dumps(found["events"]))
        return session_seen(prints, read_runs(profile)[0])
