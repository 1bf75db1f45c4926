"""Writing the model of a plan: its weights inside, or in a file beside it, with copies as kernels pack them."""

import tempfile
from pathlib import Path
from typing import Any

from remat_cli.core.resident import WeightFiles
from remat_cli.core.runs_on import RunsOn
from remat_cli.onnx_io.packed import PackedWeights, packed_weights, packing_signature
from remat_cli.onnx_io.rewrite import set_model_metadata
from remat_cli.onnx_io.save import SMALL_BYTES, has_data_file, save
from remat_cli.onnx_io.seeds import without_seeds
from remat_cli.runtime.packing import PackingJob, save_packed
from remat_cli.runtime.session import SessionSettings
from remat_cli.stages.planned import PlannedModel
from remat_cli.stages.prepare import Prepared
from remat_cli.stages.record import model_to_write
from remat_cli.stages.resident import saves_packed
from remat_cli.stages.runs_on import runs_on_of


def save_written(planned: PlannedModel, path: Path, files: WeightFiles) -> RunsOn:
    """Write the model; with its weights in a file beside it where that was asked for, or they are many.

    Copies as kernels pack them go there too where they are large. The model says where it runs, which is given back.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    model = without_seeds(model_to_write(planned))
    is_packed = planned.written is not None and saves_packed(planned.written, planned.prepared, files)
    runs_on = runs_on_of(model, planned.prepared, is_packed=is_packed, is_cut=planned.written is None)
    for key, text in runs_on.metadata.items():
        set_model_metadata(model, key, text)
    if not is_packed:
        save(model, path, external=has_data_file(model, files.external))
    else:
        save(model, path, external=True, packed=_packed(model, planned.prepared))
    return runs_on


def _packed(model: Any, prepared: Prepared) -> PackedWeights:
    """The weights as kernels pack them; kept among the work, since plans of one compile read most of them alike."""
    folder = prepared.reference_path.parent
    target = folder / f"packed_{packing_signature(model)}.onnx"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="pack_", dir=folder) as work:
            whole = Path(work) / "whole.onnx"
            save(model, whole, external=True)
            settings = SessionSettings(intra_op_threads=1, custom_ops=prepared.conditions.custom_ops)
            save_packed(PackingJob(str(whole), str(target), SMALL_BYTES, settings))
    return packed_weights(target)
