"""The published JSON Schema of schedules, from the types: `python -m remat_cli.pipelines.plan.schema`."""

from typing import Any

from remat_cli.base.files import atomic_write
from remat_cli.core.files.plan_schema import SCHEMA_PATH, schema_of, schema_text
from remat_cli.pipelines.plan.schedule_file import VERSION, PipelineFile

PIPELINE_SCHEMA_PATH = SCHEMA_PATH.with_name("pipeline.schema.json")


def pipeline_schema() -> dict[str, Any]:
    """The schema of `PipelineFile`."""
    about = "A model in stages for several devices, and when each runs; sizes in bytes, times in nanoseconds."
    return schema_of(PipelineFile, f"remat pipeline, version {VERSION}", about, VERSION)


if __name__ == "__main__":
    atomic_write(PIPELINE_SCHEMA_PATH, schema_text(pipeline_schema()).encode())
