"""The page on how remat is built names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(name for name in set(re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE)) if "NAME" not in name)


@pytest.mark.parametrize("name", NAMED)
def test_every_file_that_it_names_is_there(name):
    places = (ROOT / "remat_cli" / name, ROOT / name, ROOT / "remat_cli" / "compiling" / name)
    assert any(place.is_file() for place in (*places, ROOT / "remat_cli" / "commands" / name))


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
