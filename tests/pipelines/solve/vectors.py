"""The shared test vectors on pipelines, and random chains."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

from remat_cli.pipelines.plan.chain import MemoryModel, PipelineChain
from tests.solvers.vectors import SHARED

MEMORY_MODELS: tuple[MemoryModel, ...] = get_args(MemoryModel)
PATH = SHARED / "algorithms" / "pipeline_vectors.json"


@cache
def of_kind(kind: str) -> list[dict[str, Any]]:
    """All of a kind; none where they are not beside the checkout."""
    if not PATH.exists():
        return []
    return [entry for entry in json.loads(PATH.read_text())["vectors"] if entry["kind"] == kind]


def inferring(training: PipelineChain) -> PipelineChain:
    """The same layers without a way back: one copy of the weights, nothing saved."""
    none = (0,) * training.layers
    return msgspec.structs.replace(
        training, backward=none, copies=1, saved=none, backward_work=none, has_gradients=False
    )


def chain_of(entry: dict[str, Any]) -> PipelineChain:
    return msgspec.convert(entry["instance"], PipelineChain)


@st.composite
def chains(draw: st.DrawFn, most_layers: int = 6, most: int = 4) -> PipelineChain:
    """Random small chains; every layer takes time."""
    n = draw(st.integers(1, most_layers))

    def row(length: int, least: int = 0) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=length, max_size=length)))

    return PipelineChain(row(n, 1), row(n, 1), row(n), (*row(n), 0), row(n - 1), draw(st.integers(1, 3)))
