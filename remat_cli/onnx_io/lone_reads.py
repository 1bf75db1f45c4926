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
    """For each step, by position, the values from which a gate must separate it.

    Those are values that it alone reads although their tensor had several readers before, and results of Transpose
    that lost a reader: the runtime weighs all readers when it decides where to move a Transpose. Ops in the blocked
    layout are left out: they are written by the last fusion there is.
    """
    before = _readers_before(model)
    maker = {name: step for step in steps for name in step.makes if name}
    now: Counter[str] = Counter(name for step in steps for name in step.all_reads)
    outputs = {value.name for value in model.graph.outputs}
    found: dict[int, tuple[str, ...]] = {}
    for number, step in enumerate(steps):
        names = [name for name in step.all_reads if name in maker and name not in outputs and name in step.reads]
        apart = tuple(name for name in names if _may_fuse(maker[name], step, now[name], before[_tensor(maker, name)]))
        if apart:
            found[number] = apart
    return found


def _readers_before(model: ir.Model) -> Counter[str]:
    """How many ops read each tensor in the reference model; being a model output counts as one more."""
    readers: Counter[str] = Counter(value.name or "" for value in model.graph.outputs)
    for node in model.graph:
        readers.update({v.name or "" for v in (*node.inputs, *captured_values(node)) if v is not None})
    return readers


def _tensor(maker: dict[str, Draft], name: str) -> str:
    """The tensor of which a value is an instance."""
    draft = maker[name]
    assert draft.source is not None
    return draft.source.outputs[draft.makes.index(name)].name or ""


def _may_fuse(maker: Draft, reader: Draft, now: int, before: int) -> bool:
    if NCHWC in (maker.domain, reader.domain) or now >= before:
        return False
    return now == 1 or maker.op_type == "Transpose"
