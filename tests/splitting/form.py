"""What a split model keeps beside its bits: interface, weights, names, order, and what its tiles say of themselves."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from remat_cli.onnx_io.read.interface import interface_of
from remat_cli.onnx_io.read.layout_scene import SPLIT_OF
from remat_cli.splitting.tiles.build import TILE
from tests.splitting.split_case import Case

SMALL_CONSTANT_BYTES = 128  # bounds of a slice, the shape of a view, paddings
WITH_WEIGHTS = frozenset({"Gemm", "MatMul", "FusedMatMul"})


def check_form(case: Case, split: ir.Model, ops: Iterable[int]) -> None:
    """Same interface, shared weights, unique names, topological order, and every tile says what it is a slice of."""
    assert interface_of(split) == interface_of(case.reference)
    proto = ir.to_proto(split)
    onnx.checker.check_model(_without_contrib(proto))
    names = [node.name for node in proto.graph.node]
    made = [name for node in proto.graph.node for name in node.output if name]
    assert len(set(names)) == len(names)
    assert len(set(made)) == len(made)
    _check_weights(case, split)
    tiled = {case.view.graph.ops[op].name for op in ops}
    pieces = [node for node in split.graph if SPLIT_OF in node.metadata_props]
    assert {node.metadata_props[SPLIT_OF] for node in pieces} == tiled
    for node in pieces:
        assert (node.name or "").startswith(f"{node.metadata_props[SPLIT_OF]}/tile_{node.metadata_props[TILE]}")
    assert tiled.isdisjoint(names)
    assert {op.name for op in case.view.graph.ops} - tiled <= set(names)


def _without_contrib(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same wiring with ops that the checker knows: it checks order and names, not what a runtime's own op takes."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    for node in copy.graph.node:
        if node.domain not in ("", "ai.onnx"):
            node.domain, node.op_type = "any", "Any"
    copy.opset_import.append(onnx.helper.make_opsetid("any", 1))
    return copy


def _check_weights(case: Case, split: ir.Model) -> None:
    """Weights are shared; new constants are bounds, shapes, rows of what is added to or multiplied by position, or
    filters of some channels.
    """
    whole = {name: value.const_value for name, value in case.view.model.graph.initializers.items()}
    for name, value in split.graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        if name in whole:
            assert tensor is whole[name]
        elif tensor.nbytes > SMALL_CONSTANT_BYTES:
            source = whole[name.rpartition("/rows_")[0]]
            assert source is not None
            assert tensor.nbytes < source.nbytes
            assert WITH_WEIGHTS.isdisjoint(node.op_type for node, _ in value.uses())
