"""Results that had several readers and now have one: the runtime may fuse maker and reader where it could not before.

Convolution and activation, MatMul and Add, and many longer patterns are fused when the first result has no other
reader. The optimised model has none of these left, but recomputation makes new ones: a copy of an op often serves a
single reader. A fused op would run elsewhere in the order and might give other bits, so the two are kept apart.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from remat_cli.onnx_io.default_order import captured_values
from remat_cli.onnx_io.draft import Draft
from remat_cli.onnx_io.op_facts import NCHWC


def newly_lone_reads(model: ir.Model, steps: tuple[Draft, ...]) -> dict[int, tuple[str, ...]]:
    """For each step, by position, the values that it alone reads although their tensor had several readers before.

    Ops in the blocked layout are left out: they are written by the last fusion there is.
    """
    before = _uses_before(model)
    maker: dict[str, Draft] = {}
    uses: Counter[str] = Counter()
    for step in steps:
        maker.update(dict.fromkeys(step.makes, step))
        uses.update(step.reads)
        uses.update(name for _, name in step.captured)
    outputs = {value.name for value in model.graph.outputs}
    found: dict[int, tuple[str, ...]] = {}
    for number, step in enumerate(steps):
        names = [n for n in dict.fromkeys(step.reads) if n in maker and uses[n] == 1 and n not in outputs]
        lone = tuple(name for name in names if before[_tensor(maker[name], name)] > 1 and _may_fuse(maker[name], step))
        if lone:
            found[number] = lone
    return found


def _uses_before(model: ir.Model) -> Counter[str]:
    """How often each tensor is read in the reference model; being a model output counts as well."""
    uses: Counter[str] = Counter(value.name or "" for value in model.graph.outputs)
    for node in model.graph:
        uses.update(v.name or "" for v in (*node.inputs, *captured_values(node)) if v is not None)
    return uses


def _tensor(maker: Draft, name: str) -> str:
    """The tensor of which a value is an instance."""
    assert maker.source is not None
    return maker.source.outputs[maker.makes.index(name)].name or ""


def _may_fuse(maker: Draft, reader: Draft) -> bool:
    return NCHWC not in (maker.domain, reader.domain)
