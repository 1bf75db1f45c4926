"""A compiled file beside the model that it was made from, wherever a command starts a Python with the runtime."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from remat_cli.base import progress as stages
from remat_cli.base.errors import ModelError
from remat_cli.base.files import sha256
from remat_cli.base.progress import Progress
from remat_cli.compiling.one_model.verify_file import FilePair, file_verification
from remat_cli.compiling.process.resident import worst_of
from remat_cli.core.values.elsewhere import Place, VerifiedOn
from remat_cli.core.values.file_check import ProcessPair
from remat_cli.core.values.verification import Checks
from remat_cli.onnx_io.read.load import SourceModel
from remat_cli.ort_rules.records import rules_of
from remat_cli.runtime.elsewhere.link import Errand, Sent, see_elsewhere
from remat_cli.runtime.elsewhere.seen import seen_from
from remat_cli.runtime.sessions.array_file import write_arrays

EMULATOR = "qemu-"  # with what the names of programs begin that play another processor
NUMPY_KINDS = "fiubU"
NO_FEED = (
    "input '{}' has element type {}, which numpy does not know, so that it cannot be fed elsewhere: verify it here, "
    "without --on"
)


@dataclass(frozen=True)
class Places:
    """Commands, each of which starts a Python somewhere, and whether files stay there."""

    commands: tuple[str, ...]
    keeps_files: bool = False


def verify_elsewhere(
    pair: FilePair, places: Places, checks: Checks, run_seconds: float, progress: Progress
) -> tuple[VerifiedOn, ...]:
    """Run both in fresh processes there, in ordinary sessions; broken promises are in what it returns.

    Nothing may be heard of a place for `run_seconds` at most. Memory and time are not looked at where a command is an
    emulator's: they would be the emulator's own.

    Raises:
        ConfigError: a command is no program of this machine.
        RematError: one ended early, was silent, or cannot go on there.
        ModelError: the inputs cannot be sent.
    """
    progress.stage(stages.VERIFYING)
    with tempfile.TemporaryDirectory(prefix="on_") as folder:
        feeds = tuple(_feed_files(pair, Path(folder), is_fast=checks.mode == "fast"))
        errand = Errand(
            (
                *_sent("original", pair.run_original, pair.original),
                *_sent("file", pair.run_file, pair.file.source),
                *(_one(f"feeds/{path.name}", path) for path in feeds),
            ),
            f"original/{pair.run_original.name}",
            f"file/{pair.run_file.name}",
            tuple(f"feeds/{path.name}" for path in feeds),
            watches=checks.mode != "fast",
            keeps=places.keeps_files,
            session=msgspec.structs.asdict(pair.session),
        )
        return tuple(_verified_on(pair, command, errand, run_seconds, progress) for command in places.commands)


def _verified_on(pair: FilePair, command: str, errand: Errand, run_seconds: float, progress: Progress) -> VerifiedOn:
    """What one place shows."""
    is_emulated = any(Path(word).name.startswith(EMULATOR) for word in command.split())
    errand = replace(errand, watches=errand.watches and not is_emulated)
    told, found = see_elsewhere(
        command,
        lambda place: (errand, msgspec.to_builtins(rules_of(str(place["onnxruntime"])).exact)),
        progress.advance,
        run_seconds,
    )
    place = msgspec.convert(told, Place)
    seen = seen_from(found, place.onnxruntime)
    verification = None
    if seen.runs is not None:
        overhead = None if seen.seconds is None else 100.0 * (seen.seconds[1] / seen.seconds[0] - 1.0)
        process: ProcessPair | None = None
        if seen.resident is not None:
            models: Sequence[SourceModel] = (pair.original, pair.file.source)
            figures = zip(seen.resident, models, strict=True)
            process = ProcessPair(*(worst_of([each], is_mapped=bool(model.data_files)) for each, model in figures))
        verification = file_verification(pair, seen.runs, overhead, process, rules_of(place.onnxruntime), place.machine)
    failed = next((each for each in (seen.original, seen.file) if each.message is not None), None)
    return VerifiedOn(
        on=command,
        place=place,
        loads=seen.file.stage != "load",
        runs=seen.file.stage == "done",
        original_runs=seen.original.stage == "done",
        message=None if failed is None else failed.message,
        difference=seen.difference,
        verification=verification,
    )


def _feed_files(pair: FilePair, folder: Path, *, is_fast: bool) -> Iterator[Path]:
    """A file with each of the feeds.

    Raises:
        ModelError: numpy's files cannot have them.
    """
    for number, feeds in enumerate(pair.feeds[:1] if is_fast else pair.feeds):
        plain = {name: np.asarray(array) for name, array in feeds.items()}
        plain = {name: array.astype(str) if array.dtype.kind == "O" else array for name, array in plain.items()}
        odd = next((name for name, array in plain.items() if array.dtype.kind not in NUMPY_KINDS), None)
        if odd is not None:
            raise ModelError(NO_FEED.format(odd, plain[odd].dtype))
        path = folder / f"feeds_{number}.npz"
        write_arrays(path, plain)
        yield path


def _sent(folder: str, path: Path, model: SourceModel) -> Iterator[Sent]:
    """A model file and those with its weights, in a folder."""
    yield _one(f"{folder}/{path.name}", path)
    for name in sorted(model.data_files):
        yield _one(f"{folder}/{name}", path.parent / name)


def _one(name: str, path: Path) -> Sent:
    return Sent(name, path, path.stat().st_size, sha256(path))
