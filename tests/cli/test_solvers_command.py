from __future__ import annotations

import json
from typing import ClassVar, Literal

import msgspec
import pytest

import remat_cli.solvers


class Toy(msgspec.Struct, frozen=True):
    """A solver with one option of each kind."""

    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "plays"
    takes: ClassVar[str] = "Everything."
    proves: ClassVar[str] = "nothing"
    copies: int = 2
    mode: Literal["a", "b"] = "a"
    limit: float | None = None
    weights: list[int] = []

    def supports(self, problem):
        """Everything.

        More is not shown.
        """


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(remat_cli.solvers, "SOLVERS", {"toy": "tests.cli.test_solvers_command:Toy"})
    monkeypatch.setattr(remat_cli.solvers, "PAGERS", {})


def test_lists_options_with_defaults(remat, toy):
    outcome = remat("solvers")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "toy  plays",
        "  supports: Everything.",
        "  proves: nothing",
        "  --option copies=2    int",
        "  --option mode=a      one of a, b",
        "  --option limit=None  float, none",
        "  --option weights=[]  list[int]",
    ]


def test_json(remat, toy):
    (entry,) = json.loads(remat("solvers", "--format", "json").out)["solvers"]
    assert entry["name"] == "toy"
    assert entry["options"][0] == {"name": "copies", "type": "int", "default": 2}
    assert entry["options"][3]["default"] == []


def test_those_that_page_come_after_the_others(remat, toy, monkeypatch):
    monkeypatch.setattr(remat_cli.solvers, "PAGERS", {"toy": "tests.cli.test_solvers_command:Toy"})
    lines = remat("solvers").out.splitlines()
    assert lines.index("with --spill disk:DIR:") == len(lines) // 2
    assert lines.count("toy  plays") == 2
