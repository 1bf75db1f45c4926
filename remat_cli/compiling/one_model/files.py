"""Writing the model of a plan: its weights inside, or in a file beside it, with copies as kernels pack them."""

import tempfile
from pathlib import Path
from typing import Any

from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.forecast import forecast_of, saves_packed, wants_primers
from remat_cli.compiling.runs_on import bits_of, runs_on_of
from remat_cli.core.values.process_promise import ProcessPromise
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.onnx_io.read.compiled import BUDGET_KEY, DIMS_KEY, PEAK_KEY
from remat_cli.onnx_io.read.seeds import without_seeds
from remat_cli.onnx_io.write.as_written import signed
from remat_cli.onnx_io.write.least_imports import asking_least
from remat_cli.onnx_io.write.packed import NOTHING_PACKED, PackedWeights, packed_weights, packing_signature
from remat_cli.onnx_io.write.primers import primed
from remat_cli.onnx_io.write.rewrite import set_model_metadata
from remat_cli.onnx_io.write.save import SMALL_BYTES, has_data_file, save
from remat_cli.runtime.sessions.packing import PackingJob, save_packed
from remat_cli.runtime.sessions.session import SessionSettings


def save_model(planned: OneModel, path: Path, request: CompileRequest, *, outlasts: bool = True) -> RunsOn:
    """Write the model; with its weights in a file beside it where that was asked for, or they are many.

    Copies as kernels pack them go there too where they are large, with primers where the heap would keep some of those
    that a session makes. The model says where it runs, which is given back. What need not outlast this command is not
    waited for until the disk has it.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    files, written = request.files, planned.written
    model = asking_least(without_seeds(written.rewritten.model))
    is_packed = saves_packed(written, planned.prepared, files)
    runs_on = runs_on_of(model, planned.prepared, is_packed=is_packed, is_cut=False, bits=bits_of(planned))
    # The file says what its plan came to: its sizes and its bytes, live and of a process.
    process = ProcessPromise(
        budget_bytes=request.process_budget_bytes,
        with_mapped=request.count_mapped,
        predicted=forecast_of(planned.written, planned.prepared, request.files).process,
    )
    live = {PEAK_KEY: planned.written.promised_bytes, BUDGET_KEY: planned.answer.question.budget_bytes}
    family = request.conditions.family
    sizes = {} if family is None else {DIMS_KEY: str(family)}
    promises = {key: str(count) for key, count in live.items()} | sizes | process.metadata
    for key, text in (runs_on.metadata | promises).items():
        set_model_metadata(model, key, text)
    if is_packed and wants_primers(written, planned.prepared, files):
        model = primed(model)
    packed = _packed(model, planned.prepared) if is_packed else NOTHING_PACKED
    model = signed(model, len(packed.copies))
    save(model, path, external=is_packed or has_data_file(model, files.external), packed=packed, outlasts=outlasts)
    return runs_on


def _packed(model: Any, prepared: Prepared) -> PackedWeights:
    """The weights as kernels pack them; kept among the work, since plans of one compile read most of them alike."""
    folder = prepared.reference_path.parent
    target = folder / f"packed_{packing_signature(model)}.onnx"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="pack_", dir=folder) as work:
            whole = Path(work) / "whole.onnx"
            save(model, whole, external=True, outlasts=False)
            settings = SessionSettings(intra_op_threads=1, custom_ops=prepared.conditions.custom_ops)
            save_packed(PackingJob(str(whole), str(target), SMALL_BYTES, settings))
    return packed_weights(target)
