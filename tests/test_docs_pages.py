"""Pages that are made are those of now, links lead somewhere, and the site builds and asks nobody for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs import make_licences
from docs.make_pages import PAGES
from docs.make_site import NAVIGATION, ROOT, UNDER, links, moved, pages

ASKS = re.compile(r"""(?:src|srcset|action|poster|data)=["']?\s*(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//""")
STYLE_ASKS = re.compile(r"@import|url\(\s*[\"']?(?:https?:)?//")
SCRIPT_ASKS = re.compile(r"""(?:fetch|import|XMLHttpRequest|WebSocket)\s*\(\s*["'`](?:https?:)?//""")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_that_is_made_is_that_of_now(path):
    if path == make_licences.TARGET:
        for library in ("matplotlib", "vl_convert"):
            pytest.importorskip(library, reason="the page says what the extras `svg` and `html` bring")
    assert PAGES[path]() == path.read_text(encoding="utf-8"), "`make pages` renews it"


def test_every_page_is_in_the_navigation_once():
    listed = [name for names in (*NAVIGATION.values(), UNDER.values()) for name in names]
    assert len(listed) == len(set(listed))
    there = {
        each.relative_to(ROOT).as_posix()
        for folder in ("docs", "docs/decisions", "bench/results")
        for each in (ROOT / folder).glob("*.md")
    }
    assert there <= pages().keys()


@pytest.mark.parametrize("path", pages())
def test_links_lead_to_files_and_their_headings(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    for link, target in links(path, text):
        assert (ROOT / target).is_file(), link
        if "#" in link and target.endswith(".md"):
            assert link.partition("#")[2] in anchors((ROOT / target).read_text(encoding="utf-8")), link


def anchors(text: str) -> set[str]:
    """Headings as GitHub and the site name them."""
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_are_moved_with_their_pages():
    known = pages()
    assert moved("README.md", "[a](docs/see.md) `[b](docs/none.md)`", known) == "[a](see.md) `[b](docs/none.md)`"
    assert moved("docs/see.md", "[a](../bench/results/real.md#x)", known) == "[a](bench/results/real.md#x)"
    assert moved("bench/results/real.md", "[a](../../docs/see.md)", known) == "[a](../../see.md)"
    with pytest.raises(ValueError, match="leads to no file"):
        moved("docs/see.md", "[a](none.md)", known)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(find_spec, ("sphinx", "furo", "myst_parser"))), reason="the extra `docs` is not installed"
)
def test_the_site_builds_without_a_warning_and_asks_nobody(tmp_path):
    code = (
        f"import sys, pathlib, docs.make_site as site; sys.exit(site.build(pathlib.Path({str(tmp_path / 'site')!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for name in pages().values():
        assert (tmp_path / "site" / f"{name}.html").is_file()
    assert_asks_nobody(tmp_path / "site")


def assert_asks_nobody(site: Path) -> None:
    for path in site.rglob("*"):
        if path.suffix in {".html", ".css", ".js"}:
            rules = {".html": (ASKS, STYLE_ASKS), ".css": (STYLE_ASKS,), ".js": (SCRIPT_ASKS,)}[path.suffix]
            text = path.read_text(encoding="utf-8")
            assert not any(rule.search(text) for rule in rules), path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://elsewhere.org/a.js"></script>'),
        ("a.html", "<link rel=stylesheet href=//elsewhere.org/a.css>"),
        ("a.css", "@font-face {src: url(https://elsewhere.org/a.woff)}"),
        ("a.js", 'fetch("https://elsewhere.org")'),
    ],
)
def test_a_page_that_asks_somebody_is_seen(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(AssertionError):
        assert_asks_nobody(tmp_path)
