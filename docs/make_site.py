"""Build the documentation as a site in build/site, from the pages as they lie in the repository: `make docs`.

Links in pages lead from file to file, so that they work where the repository is shown. Here each page is copied to its
place in the site, and its links with it: a page becomes a page, any other file one to download. A link that leads
nowhere, a page that is in no list, and whatever Sphinx warns of, ends the build.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "build" / "site"
FRONT = "README.md"
NAVIGATION: Mapping[str, Sequence[str]] = {
    "Begin": ("docs/start.md", "docs/fit.md", "docs/memory.md", "docs/see.md"),
    "Compile": ("docs/budgets.md", "docs/splitting.md", "docs/sizes.md", "docs/quantised.md", "docs/training.md"),
    "Run": ("docs/verdict.md", "docs/deploy.md", "docs/verify.md", "docs/compile-last.md", "examples/docker.md"),
    "More than one memory": ("docs/devices.md", "docs/paging.md", "docs/pipelines.md"),
    "Look up": (
        *("docs/promises.md", "docs/options.md", "docs/python.md", "docs/solvers.md", "docs/files.md"),
        *("docs/sample_models.md", "docs/benchmarks.md", "SECURITY.md", "CHANGELOG.md"),
        "docs/licences.md",
    ),
    "Change it": ("docs/how.md", "docs/architecture.md", "CONTRIBUTING.md"),
}
UNDER: Mapping[str, str] = {"docs/benchmarks.md": "bench/results/*.md", "docs/architecture.md": "docs/decisions/*.md"}
"""Pages that stand below another one."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE = re.compile(r"(^ *```.*?^ *```|`[^`]+`)", re.MULTILINE | re.DOTALL)
OPTIONS: Mapping[str, object] = {
    "project": "remat",
    "extensions": ["myst_parser"],
    "root_doc": "index",
    "html_theme": "furo",
    "html_title": "remat",
    "html_theme_options": {"navigation_with_keys": True},
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "html_use_opensearch": "",
    "myst_heading_anchors": 4,
    "myst_enable_extensions": [],
    "suppress_warnings": ["myst.header"],  # pages of benches begin some tables below their title
}


def pages() -> dict[str, str]:
    """Where each page of the repository lies in the site, without its ending."""
    below = (path for pattern in UNDER.values() for path in _found(pattern))
    listed = [FRONT, *(name for names in NAVIGATION.values() for name in names), *below]
    return {path: _place(path).removesuffix(".md") for path in listed}


def _found(pattern: str) -> list[str]:
    """Pages that a line of the navigation names."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
    if not found:
        raise ValueError(f"the navigation names {pattern}, which is not there")
    return found


def _place(path: str) -> str:
    return "index.md" if path == FRONT else path.removeprefix("docs/")


def links(path: str, text: str) -> Iterator[tuple[str, str]]:
    """The links of a page to files of the repository: as they are written, and to which file they lead."""
    outside_code = "".join(CODE.split(text)[::2])
    for _, link, _ in LINK.findall(outside_code):
        if not re.match(r"[a-z]+:|#", link):
            yield link, posixpath.normpath(posixpath.join(posixpath.dirname(path), link.partition("#")[0]))


def moved(path: str, text: str, known: Mapping[str, str]) -> str:
    """The text of a page with links as they are in the site.

    Raises:
        ValueError: a link leads nowhere.
    """
    here = posixpath.dirname(_place(path))
    for link, target in set(links(path, text)):
        if not (ROOT / target).is_file():
            raise ValueError(f"{path}: the link {link} leads to no file")
        anchor = "#" + link.partition("#")[2] if "#" in link else ""
        there = posixpath.relpath(_place(target), here or ".")
        text = text.replace(f"]({link})", f"]({there}{anchor})")
    return text


def assemble(folder: Path) -> None:
    """Copy all pages, and the files that they show or link to, into a folder that Sphinx reads."""
    shutil.rmtree(folder, ignore_errors=True)
    known = pages()
    for path in known:
        text = (ROOT / path).read_text(encoding="utf-8")
        for _, target in links(path, text):
            if target not in known:
                _copy(ROOT / target, folder / _place(target))
        contents = "".join(_contents(path, known))
        place = folder / _place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(moved(path, text, known) + contents, encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _contents(path: str, known: Mapping[str, str]) -> Iterator[str]:
    """What stands below a page, as Sphinx wants it at its end; below the front page all of the navigation."""
    lists = NAVIGATION if path == FRONT else {"": _found(UNDER[path])} if path in UNDER else {}
    for caption, names in lists.items():
        listed = "\n".join(f"/{known[name]}" for name in names)
        title = f":caption: {caption}\n" if caption else ""
        yield f"\n```{{toctree}}\n:hidden:\n{title}\n{listed}\n```\n"


def build(folder: Path = BUILT) -> int:
    """Assemble and build; Sphinx's exit code."""
    from sphinx.application import Sphinx

    source = folder.with_name(f"{folder.name}-source")
    assemble(source)
    shutil.rmtree(folder, ignore_errors=True)
    application = Sphinx(
        str(source), None, str(folder), str(folder.with_name(f"{folder.name}-known")), "html", dict(OPTIONS),
        status=None, warningiserror=True, keep_going=True,
    )  # fmt: skip
    application.build(force_all=True)
    return int(application.statuscode)


if __name__ == "__main__":
    sys.exit(build())
