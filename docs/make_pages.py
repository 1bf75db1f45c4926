"""Write every page, or part of one, that is made from something else: `python -m docs.make_pages`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench import readme
from docs import make_benchmarks_md, make_options_md, make_python_md, make_solvers_md

PAGES: Mapping[Path, Callable[[], str]] = {
    readme.README: lambda: readme.with_table(readme.README.read_text(encoding="utf-8")),
    make_options_md.TARGET: make_options_md.page,
    make_python_md.TARGET: make_python_md.page,
    make_solvers_md.TARGET: make_solvers_md.page,
    make_benchmarks_md.TARGET: make_benchmarks_md.page,
}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
