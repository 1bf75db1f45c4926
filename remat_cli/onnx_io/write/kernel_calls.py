"""Reads from a model what its kernels take of the process's heap: by what they read and make, and by attributes."""

from collections.abc import Mapping

import msgspec
import onnx_ir as ir

from remat_cli.core.schedule.graph import Graph, TensorType
from remat_cli.onnx_io.read.interface import type_of
from remat_cli.ort_rules.heaps.heap import threshold_after
from remat_cli.ort_rules.heaps.kernel_heap import KERNELS, HeapUse, KernelCall, heap_uses
from remat_cli.ort_rules.loading import LoadRules

_KIND = ir.AttributeType
PLAIN_KINDS = frozenset({_KIND.INT, _KIND.STRING, _KIND.INTS, _KIND.STRINGS})


def heaps_of(model: ir.Model, graph: Graph, threads: int, rules: LoadRules) -> Mapping[str, tuple[HeapUse, ...]]:
    """What kernels of the model's own ops take of the heap, by op; those in bodies of ops are left out."""
    types = {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in graph.tensors}
    inputs = [graph.tensors[each].size_bytes for each in graph.model_inputs]
    weights = [weight.size_bytes for weight in graph.weights]
    before_bytes = max(rules.stream_bytes, threshold_after([*inputs, sum(inputs), *weights]))
    found: dict[str, tuple[HeapUse, ...]] = {}
    for node in model.graph:
        op = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        if op not in KERNELS:
            continue
        plain = {name: each.value for name, each in node.attributes.items() if each.type in PLAIN_KINDS}
        call = KernelCall(
            reads=tuple(_type_of(value, types) for value in node.inputs),
            makes=tuple(_type_of(value, types) for value in node.outputs),
            attributes=plain,
            threads=threads,
        )
        if uses := heap_uses(op, call):
            found[node.name or ""] = tuple(
                msgspec.structs.replace(use, is_large=use.bytes > before_bytes) for use in uses
            )
    return found


def _type_of(value: ir.Value | None, types: Mapping[str, TensorType]) -> TensorType | None:
    if value is None or not value.name:
        return None
    tensor = value.const_value
    return type_of(tensor) if value.name not in types and tensor is not None else types.get(value.name)
