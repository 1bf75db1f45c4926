"""Makes what is fed to a model, seeded or the user's own, and records the values of tensors inside it in one run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from remat_cli.base.errors import ModelError
from remat_cli.base.processes import total_memory_bytes
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.sessions._ort import (
    EXTENDED_NAMES,
    SMALL_BITS,
    Advance,
    Array,
    PackedArray,
    numpy_dtype,
    pack,
    pack_all,
    run_fresh,
    run_session,
    running,
    runtime_dtype,
    runtime_errors,
    unpack,
    unpack_all,
)
from remat_cli.runtime.sessions.array_file import read_arrays
from remat_cli.runtime.sessions.session import SessionSettings, open_session


class GivenFeeds(msgspec.Struct, frozen=True):
    """What a model is fed, for the way to another process."""

    packed: tuple[PackedArray, ...]

    def arrays(self) -> dict[str, Array]:
        """The arrays by name."""
        return unpack_all(self.packed)


class MadeFeeds(msgspec.Struct, frozen=True):
    """Seeded random inputs, made only where and when they are fed: those of many sizes together take much memory."""

    inputs: tuple[InputSpec, ...]
    seed: int

    def arrays(self) -> dict[str, Array]:
        """The arrays by name."""
        return make_feeds(self.inputs, self.seed)


Feeds: TypeAlias = GivenFeeds | MadeFeeds


def feeds_of(
    inputs: Sequence[InputSpec], state: Path | None, given: Path | None, seed: int, told: Mapping[str, Array]
) -> dict[str, Array]:
    """What to run with: the user's inputs, or seeded ones; a training step begins with its own state.

    `told` are values of inputs for which random ones will not do, such as shapes.

    Raises:
        ModelError: a file does not fit, or an input's element type cannot be fed.
    """
    first = load_state(state, inputs)
    if given is not None:
        return {**first, **load_feeds(given, [spec for spec in inputs if spec.name not in first])}
    return {**make_feeds(inputs, seed), **told, **first}


def make_feeds(inputs: Sequence[InputSpec], seed: int) -> dict[str, Array]:
    """Seeded random values for every input.

    Floats are normal. Integers are 0 or 1, since most are indices, token ids, masks or lengths, for which larger
    ones may be out of range; a single integer is 1, so that a length or a count is not zero; so are masks that the
    model counts. Strings are digits.

    Raises:
        ModelError: an input's element type cannot be fed, or the inputs are larger than this machine's memory.
    """
    # Inputs that no memory holds are a mistake in a shape.
    memory = total_memory_bytes()
    for spec in inputs:
        wanted = math.prod(spec.shape) * numpy_dtype(spec.dtype).itemsize
        if wanted > memory:
            raise ModelError(
                f"input '{spec.name}' of shape {list(spec.shape)} takes {wanted} bytes, and this machine has {memory}: "
                "give it a smaller shape with --dim or --input-shape"
            )
    generator, feeds = np.random.default_rng(seed), dict[str, Array]()
    for spec in inputs:
        dtype = numpy_dtype(spec.dtype)
        if dtype.kind == "f" or (spec.dtype in EXTENDED_NAMES and spec.dtype not in SMALL_BITS):
            feeds[spec.name] = np.asarray(generator.standard_normal(spec.shape)).astype(dtype)
            continue
        bits = np.asarray(generator.integers(0, 2, spec.shape))
        if spec.is_counted or (spec.dtype not in {"bool", "string"} and bits.size == 1):
            bits = np.ones(spec.shape, np.int64)
        feeds[spec.name] = bits.astype(str).astype(object) if spec.dtype == "string" else bits.astype(dtype)
    return feeds


def load_state(path: Path | None, inputs: Sequence[InputSpec]) -> dict[str, Array]:
    """What a training step begins with, from its .npz file; nothing for other models.

    Raises:
        ModelError: the file does not fit; one line.
    """
    if path is None:
        return {}
    arrays = read_arrays(path)
    return {spec.name: checked(path, spec, arrays[spec.name]) for spec in inputs if spec.name in arrays}


def load_feeds(path: Path, inputs: Sequence[InputSpec]) -> dict[str, Array]:
    """The user's inputs from an .npz file, checked against the model's.

    Arrays are named after the inputs. Types numpy lacks (bfloat16, ...) may also come as unsigned integers of the
    same size, which is how .npz files hold them.

    Raises:
        ModelError: the file is missing or no .npz, or a name, element type or shape does not fit; one line.
    """
    arrays = read_arrays(path)
    wanted = {spec.name: spec for spec in inputs}
    for name in wanted:
        if name not in arrays:
            raise ModelError(f"inputs file {path} lacks input '{name}'; it holds: {_listed(arrays)}")
    for name in arrays:
        if name not in wanted:
            raise ModelError(
                f"inputs file {path} holds '{name}', which is no input; the model's are: {_listed(wanted)}"
            )
    return {name: checked(path, spec, arrays[name]) for name, spec in wanted.items()}


def checked(path: Path, spec: InputSpec, array: Array) -> Array:
    """An array of a file as an input takes it.

    Raises:
        ModelError: element type or shape does not fit.
    """
    dtype = numpy_dtype(spec.dtype)
    if tuple(array.shape) != spec.shape:
        raise ModelError(
            f"inputs file {path}: '{spec.name}' has shape {list(array.shape)}, the model takes {list(spec.shape)}"
        )
    if spec.dtype in EXTENDED_NAMES and array.dtype.kind in "uV" and array.itemsize == dtype.itemsize:
        return array.view(dtype)
    if spec.dtype == "string" and array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype != dtype:
        raise ModelError(
            f"inputs file {path}: '{spec.name}' is of type {runtime_dtype(array)}, the model takes {spec.dtype}"
        )
    return np.ascontiguousarray(array).reshape(spec.shape)


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "nothing"


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
    values = unpack_all(job.feeds)
    if not values.keys() >= set(job.names):
        session = open_session(Path(job.model), SessionSettings())
        with runtime_errors(running(Path(job.model))):
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
