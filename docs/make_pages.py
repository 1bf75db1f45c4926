"""Write every page, schema, or part of one, that is made from something else: `python -m docs.make_pages`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench import readme
from docs import make_benchmarks_md, make_licences, make_options_md, make_python_md, make_solvers_md
from remat_cli.core.files.plan_schema import SCHEMA_PATH, plan_schema, schema_text
from remat_cli.pipelines.plan.schema import PIPELINE_SCHEMA_PATH, pipeline_schema

PAGES: Mapping[Path, Callable[[], str]] = {
    readme.README: lambda: readme.with_table(readme.README.read_text(encoding="utf-8")),
    make_options_md.TARGET: make_options_md.page,
    make_python_md.TARGET: make_python_md.page,
    make_solvers_md.TARGET: make_solvers_md.page,
    make_benchmarks_md.TARGET: make_benchmarks_md.page,
    make_licences.TARGET: make_licences.page,
    SCHEMA_PATH: lambda: schema_text(plan_schema()),
    PIPELINE_SCHEMA_PATH: lambda: schema_text(pipeline_schema()),
}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
