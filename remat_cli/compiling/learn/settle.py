"""A plan with what verification showed of it, and how plans of one compile are verified and mended."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import Answered, PlannedModel
from remat_cli.core.values.resident import WeightFiles
from remat_cli.core.values.verification import Verification

P_co = TypeVar("P_co", bound=Answered, covariant=True)
V_co = TypeVar("V_co", bound="Verification | None", covariant=True)


@dataclass(frozen=True)
class Settled(Generic[P_co, V_co]):
    """A plan with what verification showed of it; None: it was not verified, or is none.

    `uncounted_bytes` of its budget are for mapped weights, beside a budget on the process. `files` is how its weights
    are to be written, where that is not as it was asked for.
    """

    planned: P_co
    seen: V_co
    uncounted_bytes: int = 0
    files: WeightFiles | None = None

    def files_for(self, request: CompileRequest) -> CompileRequest:
        """The request, with weights written as was settled."""
        return request if self.files is None else replace(request, files=self.files)


AnySettled = Settled[PlannedModel, Verification | None]
"""Whatever was found, verified or not."""


@dataclass(frozen=True)
class Settling:
    """How plans of one compile are verified and mended."""

    request: CompileRequest
    work: Path
    progress: Progress

    def new_path(self) -> Path:
        """Where a model is written to be verified."""
        return Path(tempfile.mkdtemp(prefix="settle_", dir=self.work)) / "rewritten.onnx"
