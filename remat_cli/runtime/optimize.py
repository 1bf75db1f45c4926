"""ONNX Runtime's own graph optimiser, run offline once, so that planning sees the graph that will run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from remat_cli.base.errors import RuntimeFailure
from remat_cli.runtime._ort import import_ort, new_options, runtime_errors

Level = Literal["all", "extended", "basic"]

LARGEST_SINGLE_FILE = 2**31 - 2**24
"""Weights above this go to a file beside the model, since a protobuf file ends at 2 GiB."""
EXTERNAL_DATA_ENTRY = b"\x0a\x08location\x12"
"""Protobuf for: field 1 (key), 8 bytes, "location", field 2 (value) follows."""
SMALLEST_EXTERNAL_BYTES = 1024
"""Smaller weights stay inside the model file."""


def optimize(
    source: Path, target: Path, level: Level, intra_op_threads: int = 0, custom_ops: tuple[str, ...] = ()
) -> None:
    """Write to `target` the graph that a session at this optimisation level would run.

    `all` includes the CPU's own memory layout (fastest, tied to this kind of CPU), `extended` runs on every CPU,
    `basic` has standard ops only, which other execution providers can run too.
    Models whose weights lie outside the file, or are too large for one, get `TARGET.data` beside the target. The
    weights of both models are in memory for the time of the call.

    Raises:
        RuntimeFailure: the runtime refuses the model or cannot write the file.
    """
    ort = import_ort()
    options = new_options(ort)
    levels = {
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    }
    options.graph_optimization_level = levels[level]
    options.optimized_model_filepath = str(target)
    options.intra_op_num_threads = intra_op_threads
    for library in custom_ops:
        with runtime_errors(f"custom operators {library} do not load"):
            options.register_custom_ops_library(library)
    if needs_data_file(source):
        _put_weights_beside(options, target)
    with runtime_errors(f"ONNX Runtime cannot optimise {source.name}"):
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    if not target.exists():
        raise RuntimeFailure(f"ONNX Runtime did not write the optimised {source.name} to {target}")


def needs_data_file(source: Path) -> bool:
    """Whether the optimised weights are kept in a file of their own.

    They are when the source's are, or when they are too large for one file. External data is recognised by the entry
    that every such tensor has in the protobuf file, without parsing it.

    Raises:
        RuntimeFailure: the file cannot be read.
    """
    try:
        return source.stat().st_size >= LARGEST_SINGLE_FILE or _mentions(source, EXTERNAL_DATA_ENTRY)
    except OSError as error:
        raise RuntimeFailure(f"{source} cannot be read: {error.strerror}") from None


def data_file(target: Path) -> Path:
    """Where the weights of an optimised model are when they do not lie inside it."""
    return target.with_name(f"{target.name}.data")


def _put_weights_beside(options: Any, target: Path) -> None:
    add = options.add_session_config_entry
    add("session.optimized_model_external_initializers_file_name", data_file(target).name)
    add("session.optimized_model_external_initializers_min_size_in_bytes", str(SMALLEST_EXTERNAL_BYTES))


def _mentions(path: Path, word: bytes) -> bool:
    """Whether a file contains a word, read in pieces."""
    tail = b""
    with path.open("rb") as stream:
        while piece := stream.read(2**24):
            if word in tail + piece:
                return True
            tail = piece[-len(word) :]
    return False
