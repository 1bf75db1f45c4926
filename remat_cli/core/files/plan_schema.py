"""The published JSON Schema of plans, from the types: `python -m remat_cli.core.files.plan_schema`."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.files import atomic_write
from remat_cli.core.files.plan_file import VERSION, PlanFile
from remat_cli.core.values.verification import KINDS_SEEN

VERIFICATION = "#/$defs/Verification"
SCHEMA_PATH = Path(__file__).resolve().parents[2] / "plan.schema.json"


def plan_schema() -> dict[str, Any]:
    """The schema of `PlanFile`."""
    about = "A judged recomputation plan for an ONNX model; sizes in bytes, times in nanoseconds."
    return schema_of(PlanFile, f"remat plan, version {VERSION}", about, VERSION)


def schema_of(kind: type, title: str, about: str, version: int) -> dict[str, Any]:
    """The schema of a file's type, as draft 2020-12; format and version are required of every file."""
    (_,), parts = msgspec.json.schema_components((kind,), schema_hook=lambda _: {"$ref": VERIFICATION})
    if any(VERIFICATION in str(part) for part in parts.values()):
        seen, more = msgspec.json.schema_components(KINDS_SEEN)
        parts |= more | {"Verification": _either([more.pop(each["$ref"].rpartition("/")[2]) for each in seen])}
    schema: dict[str, Any] = _tidy({"$ref": f"#/$defs/{kind.__name__}", "$defs": parts})
    plan = schema["$defs"][kind.__name__]
    plan["required"] = ["format", "version", *plan["required"]]
    plan["properties"]["version"] = {"const": version}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": about,
        **schema,
    }


def _either(kinds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One object for several: the fields of all of them, required where each has it so; no default for what is not."""
    properties: dict[str, list[Any]] = defaultdict(list)
    for kind in kinds:
        for name, value in kind["properties"].items():
            if any(name not in other["properties"] for other in kinds):
                value.pop("default", None)
            if value not in properties[name]:
                properties[name].append(value)
    return {
        "title": "Verification",
        "description": " ".join(kind["description"] for kind in kinds),
        "type": "object",
        "properties": {name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in properties.items()},
        "required": [name for name in kinds[0]["properties"] if all(name in kind["required"] for kind in kinds)],
    }


def _tidy(value: Any) -> Any:
    """Descriptions on one line: Python versions differ in how they indent docstrings."""
    if isinstance(value, dict):
        return {key: " ".join(v.split()) if key == "description" else _tidy(v) for key, v in value.items()}
    return [_tidy(item) for item in value] if isinstance(value, list) else value


def schema_text(schema: dict[str, Any]) -> str:
    """A schema file's text."""
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    atomic_write(SCHEMA_PATH, schema_text(plan_schema()).encode())
