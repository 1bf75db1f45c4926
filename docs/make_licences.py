"""Write docs/licences.md, the licences of what remat needs, from what is installed: `python -m docs.make_licences`."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TARGET = Path(__file__).with_name("licences.md")
PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
EXTRAS = ("", "cpu", "svg", "html")
HEAD = """# Licences of what remat needs

Made by `make licences` from what is installed, as each package says of itself. remat itself is under Apache 2.0
([LICENSE](../LICENSE)) and contains none of them, but for the script of Vega-Lite (BSD-3-Clause) in pages that
`remat report` writes. Other extras bring more: `pip-licenses` lists what is in an environment.

| package | licence | for |
| --- | --- | --- |
"""


def page() -> str:
    """The page as Markdown."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    found: dict[str, tuple[str, str]] = {}
    for extra in EXTRAS:
        ahead = [*(project["optional-dependencies"][extra] if extra else project["dependencies"])]
        while ahead:
            needed = Requirement(ahead.pop())
            name = canonicalize_name(needed.name)
            is_needed = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if is_needed and name not in found and (licence := _licence(name)):
                found[name] = licence, extra or "all"
                ahead += requires(name) or ()
    rows = "".join(f"| {name} | {licence} | {extra} |\n" for name, (licence, extra) in sorted(found.items()))
    return HEAD + rows


def _licence(name: str) -> str:
    """What a package says; empty where it is not installed, as on this system it is not needed."""
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return ""
    if expression := about.get("License-Expression"):
        return str(expression)
    classes = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License")]
    text = (about.get("License") or "").strip()
    return ", ".join(classes) or (text if "\n" not in text else "") or "see its file"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
