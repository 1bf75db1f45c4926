"""The published schema of schedules of stages."""

from __future__ import annotations

from remat_cli.core.files.plan_schema import schema_text
from remat_cli.pipelines.plan.schedule_file import METHODS, VERSION, PipelineFile
from remat_cli.pipelines.plan.schema import PIPELINE_SCHEMA_PATH, pipeline_schema
from remat_cli.pipelines.solve import planner


def test_published_schema_is_up_to_date():
    written = PIPELINE_SCHEMA_PATH.read_text(encoding="utf-8")
    assert written == schema_text(pipeline_schema()), "run python -m remat_cli.pipelines.plan.schema"


def test_schema_speaks_of_every_field_and_fixes_the_version():
    schema = pipeline_schema()["$defs"]["PipelineFile"]
    names = {"uF", "uB"} | set(PipelineFile.__struct_fields__)
    assert set(schema["properties"]) <= names
    assert schema["properties"]["version"] == {"const": VERSION}


def test_every_method_has_a_planner():
    assert tuple(planner.METHODS) == METHODS
