"""The front page is short, and what it names is there."""

from __future__ import annotations

import re

from remat_cli.cli import main
from tests.docs_text import ROOT, blocks, page, shell_commands

README = page("README.md")
SCREENS, LINES = 2, 50


def test_it_is_two_screens_with_one_picture_one_table_of_figures_and_three_examples():
    assert len(README.splitlines()) <= SCREENS * LINES
    assert len(re.findall(r"!\[", README)) == 1
    assert len(re.findall(r"^\| --- \|", README, flags=re.MULTILINE)) == 2  # figures, and what to read
    assert [line.split("#")[0].strip() for line in shell_commands(README)[:2]] == ["make demo", "make test"]
    assert len(blocks(README)) <= 5


def test_there_are_commands():
    assert {line.split()[0] for line in shell_commands(README)} == {"make", "remat"}


def test_make_targets_that_pages_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), flags=re.MULTILINE))
    for path in ["README.md", "CONTRIBUTING.md", *(f"docs/{each.name}" for each in ROOT.glob("docs/*.md"))]:
        named = set(re.findall(r"`make ([a-z]+(?:-[a-z]+)*)", page(path)))
        assert named <= targets, path
    assert {"demo", "test", "docs"} <= targets


def test_the_exit_codes_are_those_of_the_command_line():
    words = {0: "done", 2: "usage", 3: "budget proved impossible", 4: "no plan found", 5: "verification"}
    for name in ("README.md", "docs/verdict.md"):
        for code, word in words.items():
            assert re.search(rf"{code} {word}", page(name)), (name, word)
    assert main(["inspect", "none.onnx"]) == 2


def test_facts_that_left_the_front_page_are_on_others():
    """Promises, limits and what people have asked for have one page each, linked from the front page."""
    for name, words in {
        "docs/promises.md": ("bit for bit", "twelve times", "Outputs that you keep for longer"),
        "docs/verdict.md": ("NOT KEPT", "DEAR", "143 SIGTERM"),
        "docs/verify.md": ("--on COMMAND", "verified_on"),
        "docs/budgets.md": ("--budget-scope live", "--executor ray"),
        "docs/sizes.md": ("past_sequence_length + 1", "--custom-ops"),
        "docs/start.md": ("REMAT_CACHE_DIR", "_REMAT_COMPLETE=bash_source"),
    }.items():
        assert f"({name})" in README
        assert all(word in page(name) for word in words), name
