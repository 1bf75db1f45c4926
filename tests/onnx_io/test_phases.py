"""Marks of forward and backward ops survive the runtime's optimiser."""

from __future__ import annotations

import onnx_ir as ir

from remat_cli.onnx_io.read.phases import PHASE_KEY, carry_phases


def model(*nodes: ir.Node) -> ir.Model:
    inputs = [ir.Value(name="x")]
    graph = ir.Graph(inputs, [nodes[-1].outputs[0]], nodes=nodes, opset_imports={"": 21}, name="g")
    return ir.Model(graph, ir_version=10)


def op(name: str, read: ir.Value | None, made: str, phase: str | None = None) -> ir.Node:
    node = ir.Node("", "Relu", [read], num_outputs=1, name=name)
    node.outputs[0].name = made
    if phase is not None:
        node.metadata_props[PHASE_KEY] = phase
    return node


def test_ops_get_the_mark_of_who_made_their_result_or_of_the_latest_they_read():
    first = op("a", ir.Value(name="x"), "h", "forward")
    second = op("b", first.outputs[0], "g", "backward")
    before = model(first, second)
    fused = op("fused", ir.Value(name="x"), "h")
    new = op("reorder", fused.outputs[0], "h_reordered")
    last = op("b2", new.outputs[0], "g")
    after = carry_phases(before, model(fused, new, last))
    assert [node.metadata_props.get(PHASE_KEY) for node in after.graph] == ["forward", "forward", "backward"]


def test_models_without_marks_are_left_alone():
    plain = op("a", ir.Value(name="x"), "h")
    after = carry_phases(model(plain), model(op("a", ir.Value(name="x"), "h")))
    assert PHASE_KEY not in after.graph[0].metadata_props
