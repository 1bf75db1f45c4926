"""The published JSON Schema of plan files, generated from the types by `python -m remat_cli.core.plan_schema`."""

import json
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.files import atomic_write
from remat_cli.core.plan_file import VERSION, PlanFile

SCHEMA_PATH = Path(__file__).resolve().parent.parent / "plan.schema.json"


def plan_schema() -> dict[str, Any]:
    """The schema of `PlanFile` with a title, as draft 2020-12; format and version are required of every file."""
    schema: dict[str, Any] = _tidy(msgspec.json.schema(PlanFile))
    plan = schema["$defs"]["PlanFile"]
    plan["required"] = ["format", "version", *plan["required"]]
    plan["properties"]["version"] = {"const": VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"remat plan, version {VERSION}",
        "description": "A judged recomputation plan for an ONNX model; sizes in bytes, times in nanoseconds.",
        **schema,
    }


def _tidy(value: Any) -> Any:
    """Descriptions on one line: Python versions differ in how they indent docstrings."""
    if isinstance(value, dict):
        return {key: " ".join(v.split()) if key == "description" else _tidy(v) for key, v in value.items()}
    return [_tidy(item) for item in value] if isinstance(value, list) else value


def schema_text() -> str:
    """The schema file's text."""
    return json.dumps(plan_schema(), indent=2) + "\n"


if __name__ == "__main__":
    atomic_write(SCHEMA_PATH, schema_text().encode())
