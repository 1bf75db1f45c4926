"""Files that a checker refuses and the runtime runs are compiled, not only read."""

from __future__ import annotations

from pathlib import Path

import pytest

import remat_cli
from tests.onnx_io.file_forms import FORMS, SHAPE

FAST = "an output without a type"


@pytest.mark.parametrize(
    "form", [FAST, *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS if form != FAST)]
)
def test_what_the_runtime_runs_is_compiled(tmp_path: Path, form: str) -> None:
    (tmp_path / "model.onnx").write_bytes(FORMS[form]().SerializeToString())
    report = remat_cli.compile(
        tmp_path / "model.onnx", budget="100%", verify="fast", time_limit="2s", input_shape={"x": SHAPE}
    )
    assert report.exit_code == 0
    assert report.verification is not None
    assert report.verification.outputs_identical
