"""Finds the oldest version of the runtime that a file needs, by its ops, its opset and its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from remat_cli.onnx_io.read.default_order import subgraphs
from remat_cli.ort_rules import versions


def loads_from(model: ir.Model, made_with: str, *, is_packed: bool = False) -> str:
    """The oldest runtime that has all that a file contains; of ops in no table, the one that it was `made_with`."""
    return versions.newest((versions.OLDEST, *(first for first, _ in needs_of(model, made_with, is_packed=is_packed))))


def needs_of(model: ir.Model, made_with: str, *, is_packed: bool = False) -> Iterator[tuple[str, str]]:
    """What a file contains that not every runtime has, each behind the first version that has it."""
    imports = model.graph.opset_imports
    opset, of_ml = imports.get("", imports.get("ai.onnx", 0)), imports.get("ai.onnx.ml", 0)
    yield _first_with(versions.OPSETS, opset, made_with), f"operator set {opset}"
    yield _first_with(versions.FORMATS, model.ir_version, made_with), f"version {model.ir_version} of the file format"
    yield _first_with(versions.ML_OPSETS, of_ml, made_with), f"operator set {of_ml} of ai.onnx.ml"
    # The first version that has each kernel; ops of the user's own come with their library.
    for node in all_nodes(model):
        if node.domain == versions.CONTRIB:
            yield versions.SINCE.get(node.op_type, made_with), f"op {node.op_type} of {versions.CONTRIB}"
        elif node.domain in ("", "ai.onnx"):
            for (op, since), first in versions.LATE_KERNELS.items():
                if op == node.op_type and opset >= since:
                    yield first, f"op {op} of operator set {opset}"
    if is_packed:
        yield versions.PACKED_FROM, "weights as kernels pack them"


def _first_with(table: Mapping[str, int], number: int, made_with: str) -> str:
    return next((version for version, most in table.items() if number <= most), made_with)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Nodes of a model, of its functions, and of all graphs inside them."""
    for owner in (model.graph, *model.functions.values()):
        for node in owner:
            yield from _with_inner(node)


def _with_inner(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for body in subgraphs(node):
        for inner in body:
            yield from _with_inner(inner)
