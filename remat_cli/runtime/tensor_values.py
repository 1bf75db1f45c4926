"""Values that tensors inside a model take in one run, kept as files: inputs for measuring single ops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from remat_cli.core.interface import InputSpec
from remat_cli.runtime._arrays import Array, PackedArray, pack, pack_all, run_session, unpack
from remat_cli.runtime._ort import runtime_errors
from remat_cli.runtime._process import Advance, run_fresh
from remat_cli.runtime.feeds import make_feeds
from remat_cli.runtime.session import SessionSettings, open_session

FILES = "value_"


class ValuesJob(msgspec.Struct, frozen=True):
    """Run a model on the CPU and write some of its outputs and inputs to files in a folder."""

    model: str
    feeds: tuple[PackedArray, ...]
    names: tuple[str, ...]
    folder: str


def record_values(model: Path, feeds: Mapping[str, Array], names: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Files with the values of these outputs or inputs of a model in one run, by name; run in a fresh process.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
    """
    job = ValuesJob(str(model.resolve()), pack_all(feeds), names, str(folder.resolve()))
    return run_fresh(record_values_here, job)


def record_values_here(job: ValuesJob, advance: Advance) -> dict[str, str]:
    """Record in this process."""
    values = {packed.name: unpack(packed) for packed in job.feeds}
    if not values.keys() >= set(job.names):
        session = open_session(Path(job.model), SessionSettings())
        with runtime_errors(f"ONNX Runtime fails to run {Path(job.model).name}"):
            values |= run_session(session, values)
    files = {}
    for number, name in enumerate(job.names):
        path = Path(job.folder) / f"{FILES}{number}"
        path.write_bytes(msgspec.msgpack.encode(pack(name, values[name])))
        files[name] = str(path)
        advance(number + 1, len(job.names))
    return files


def read_value(spec: InputSpec, file: str | None, seed: int) -> Array:
    """The recorded value of a tensor, or a seeded random one where none was recorded."""
    if file is None:
        return make_feeds([spec], seed)[spec.name]
    return unpack(msgspec.msgpack.decode(Path(file).read_bytes(), type=PackedArray))
