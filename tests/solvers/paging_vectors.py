"""The shared test vectors of paging: chains, chains with recomputation, and graphs in a given order."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from remat_cli.core.paging.paging import Link, PagedProblem, PagedTensor
from remat_cli.solvers.chains.actions import Action, Chain
from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from tests.solvers.vectors import SHARED

PATH = SHARED / "algorithms" / "offloading_vectors.json"
KINDS = {"Fall": "all", "Fck": "keep", "Fn": "move", "B": "back"}


@cache
def paging_vectors() -> dict[str, Any]:
    """All of them, by kind; skips the test when they are not there."""
    if not PATH.exists():
        pytest.skip(f"no test vectors beside the checkout ({PATH.name})")
    return json.loads(PATH.read_text())


def paged_chain(entry: dict[str, Any], budget: int, is_duplex: bool = False) -> PagedChain:
    """A chain of either kind; values nobody asks for (outputs of whole stages, the loss) are 0."""
    stages = len(entry["uF"])
    values = [*entry.get("a", entry["abar"][:1]), *[0] * (stages + 1)][: stages + 1]
    forward = (0, *entry["oF"])
    chain = Chain(
        forward_ns=(0, *entry["uF"]),
        backward_ns=(0, *entry["uB"]),
        value_bytes=tuple(values),
        saved_bytes=tuple(entry["abar"]),
        gradient_bytes=tuple(entry["delta"]),
        forward_extra_bytes=forward,
        saving_extra_bytes=forward,
        backward_extra_bytes=(0, *entry["oB"]),
    )
    return PagedChain(chain, budget, Link.of(Fraction(entry["beta"]), is_duplex))


def graph_problem(entry: dict[str, Any], budget: int, is_duplex: bool) -> PagedProblem:
    """A graph in a given order, every gap open."""
    tensors = (
        PagedTensor(size, tuple(uses), number in entry["hosted"], number in entry["outputs"])
        for number, (size, uses) in enumerate(zip(entry["size"], entry["uses"], strict=True))
    )
    link = Link.of(Fraction(entry["bandwidth"]), is_duplex)
    return PagedProblem(tuple(entry["dur"]), tuple(entry["workspace"]), tuple(tensors), budget, link)


def figure(text: int | str | None) -> Fraction | None:
    """A number of the vectors: an integer, a string "p/q", or none."""
    return None if text is None else Fraction(text)


def time_of(ticks: int | None, link: Link) -> Fraction | None:
    """Ticks as the time of the vectors."""
    return None if ticks is None else Fraction(ticks, link.ticks)


def actions_of(names: list[str]) -> list[Action]:
    """`Fall2`, `B1` and the like."""
    return [Action(KINDS[name.rstrip("0123456789")], int(name.lstrip("FalckBn"))) for name in names]
