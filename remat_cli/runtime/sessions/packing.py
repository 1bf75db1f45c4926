"""Let the runtime save a model together with the weights as its kernels pack them."""

from pathlib import Path

import msgspec

from remat_cli.runtime.sessions._ort import Advance, import_ort, run_fresh
from remat_cli.runtime.sessions.apart import is_heavy
from remat_cli.runtime.sessions.heap import give_blocks_back
from remat_cli.runtime.sessions.session import (
    SMALLEST_EXTERNAL_BYTES,
    SessionSettings,
    open_session,
    session_options,
)


class PackingJob(msgspec.Struct, frozen=True):
    """A model, where to save it, and weights of how many bytes go into the file beside it."""

    model: str
    target: str
    least_bytes: int
    settings: SessionSettings = SessionSettings(intra_op_threads=1)


def save_packed(job: PackingJob) -> None:
    """Save a model with packed weights in `TARGET.data`, in a process of its own; nothing else of it changes.

    Raises:
        RuntimeFailure: the runtime refuses the model, or cannot write.
    """
    run_fresh(save_packed_here, job)


def lean_form(model: Path, settings: SessionSettings) -> Path:
    """A file of the same model, of which several sessions hold few pages of their own; itself where it is not heavy.

    Each of them would have packed copies of all weights; from this file it maps them. It stays beside the model.

    Raises:
        RuntimeFailure: the runtime refuses the model, or cannot write.
    """
    if not is_heavy(model) or settings.device != "cpu":
        return model
    target = model.with_name(f"{model.stem}.packed.onnx")
    if not target.exists() or target.stat().st_mtime_ns <= model.stat().st_mtime_ns:
        plain = SessionSettings(intra_op_threads=1, custom_ops=settings.custom_ops)
        save_packed(PackingJob(str(model), str(target), SMALLEST_EXTERNAL_BYTES, plain))
    return target


def save_packed_here(job: PackingJob, advance: Advance) -> bool:
    """Save in this process, which is for this alone."""
    give_blocks_back()  # the copies that further readers of a weight make are dropped, and the heap would keep them
    options = session_options(job.settings)
    options.graph_optimization_level = import_ort().GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = job.target
    for key, value in (
        ("optimized_model_external_initializers_file_name", f"{Path(job.target).name}.data"),
        ("optimized_model_external_initializers_min_size_in_bytes", str(job.least_bytes)),
        ("save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    open_session(Path(job.model), job.settings, options)
    advance(1, 1)
    return True
