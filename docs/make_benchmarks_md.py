"""Write the list of docs/benchmarks.md, every page of bench/results with what makes it: `python -m docs.make_pages`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(__file__).with_name("benchmarks.md")
RESULTS = ROOT / "bench" / "results"
BEGIN = "<!-- made by `python -m docs.make_pages` from bench/results and the Makefile -->\n"
END = "<!-- end of all pages -->\n"


def page() -> str:
    """The page with the list of now."""
    before, begin, rest = TARGET.read_text(encoding="utf-8").partition(BEGIN)
    lines = ["", "| page | made by | what that does |", "| --- | --- | --- |", *_lines(), ""]
    return before + begin + "".join(f"{line}\n" for line in lines) + END + rest.partition(END)[2]


def _lines() -> Iterator[str]:
    makes = _targets()
    for path in sorted(RESULTS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        title = text.partition("\n")[0]
        if not title.startswith("# "):
            raise ValueError(f"{path.name} begins with no title")
        of_recipes = [name for name, (_, recipe) in makes.items() if _makes(recipe, path.stem)]
        named = next(iter([*re.findall(r"`make ([a-z-]+)`", text), *of_recipes]), "")
        if named not in makes:
            raise ValueError(f"no target of the Makefile makes {path.name}")
        yield f"| [{title[2:]}](../bench/results/{path.name}) | `make {named}` | {makes[named][0]} |"


def _makes(recipe: str, stem: str) -> bool:
    """Whether a recipe writes this page, by the file or by the module of its name."""
    return f"/{stem}.md" in recipe or re.search(rf"-m bench\.{stem}\b(?!\.)", recipe) is not None


def _targets() -> dict[str, tuple[str, str]]:
    """What each target of the Makefile is for, and its recipe."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.findall(r"^([a-z-]+):[^\n]*## ([^\n]+)\n((?:\t[^\n]*\n)*)", text, flags=re.MULTILINE)
    return {name: (about, recipe) for name, about, recipe in found}
