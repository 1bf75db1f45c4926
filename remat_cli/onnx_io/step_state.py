"""The first state of a training step: a file beside it that holds its parameters."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.load import SourceModel

STATE_FILE_KEY = "remat.state_file"  # model metadata: name of an .npz file in the same folder


def state_file(source: SourceModel) -> Path | None:
    """Where the first state of a training step lies; None for other models.

    Raises:
        ModelError: it is gone.
    """
    return state_beside(source.ir, source.path)


def state_beside(model: ir.Model, source: Path) -> Path | None:
    """The same for a model that was read from `source`.

    Raises:
        ModelError: it is gone.
    """
    name = model.metadata_props.get(STATE_FILE_KEY)
    if name is None:
        return None
    path = source.parent / name
    if not path.is_file():
        raise ModelError(
            f"training step {source} begins with the parameters in {path}, which does not exist: "
            "put it back, or write the step anew with `remat train`"
        )
    return path
