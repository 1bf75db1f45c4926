"""A small training step, compiled to page to a folder whose bandwidths are given, so that nothing is measured of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import remat_cli
from remat_cli.runtime.sessions.feeds import feeds_of

RATE = 2e9


def fed(plan_path: Path) -> dict[str, Any]:
    """Random inputs of a plan that is run in sessions."""
    with remat_cli.load(plan_path) as plan:
        return feeds_of(plan.program.inputs, None, None, 0, {})


def paged(step: Path, name: str = "paged", **words: Any) -> Any:
    """The report of a compile with `--spill` to a folder beside the step; unverified unless asked for."""
    asked = {"budget": "50%", "solver": "paging", "time_limit": "2s", "verify": False, **words}
    folder = step.parent / "pages"
    folder.mkdir(exist_ok=True)
    spill = {"folder": str(folder), "write_bytes_per_second": RATE, "read_bytes_per_second": RATE}
    return remat_cli.compile(step, spill=spill, output=step.with_name(f"{name}.onnx"), **asked)
