"""What shape inference is shown proves exactly the dimensions that the runtime proves of its own ops."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.onnx_io.assemble import Draft
from remat_cli.onnx_io.free_shapes import STAND_INS, stand_in
from remat_cli.onnx_io.op_facts import CONTRIB, NCHWC

Dims = list[int | str]
BATCH: Dims = ["n", 16, "h", 32]
SEQUENCE: Dims = ["n", "s", 32]
CASES: list[tuple[str, str, list[Dims], dict[str, Any], int]] = [
    (NCHWC, "Conv", [BATCH, [32, 16, 3, 3]], {"pads": [1, 1, 1, 1]}, 4),
    (NCHWC, "MaxPool", [BATCH], {"kernel_shape": [2, 2], "strides": [2, 2]}, 4),
    (NCHWC, "AveragePool", [BATCH], {"kernel_shape": [2, 2], "strides": [2, 2]}, 4),
    (NCHWC, "GlobalMaxPool", [BATCH], {}, 4),
    (NCHWC, "GlobalAveragePool", [BATCH], {}, 4),
    (NCHWC, "Upsample", [BATCH], {"scales": [1, 1, 2, 2]}, 4),
    (NCHWC, "Upsample", [["n", 16, 8, "w"]], {"scales": [1, 1, 3, 2], "mode": "nearest"}, 4),
    (NCHWC, "ReorderInput", [BATCH], {}, 4),
    (NCHWC, "ReorderInput", [["n", "h", 32, 16]], {"channels_last": 1}, 4),
    (NCHWC, "ReorderOutput", [BATCH], {"channels": 3}, 4),
    (NCHWC, "ReorderOutput", [BATCH], {"channels": 3, "channels_last": 1}, 4),
    (CONTRIB, "FusedConv", [BATCH, [32, 16, 3, 3]], {"pads": [1, 1, 1, 1], "activation": "Relu"}, 4),
    (CONTRIB, "FusedGemm", [["n", 16], [16, 32], [32]], {"activation": "Relu"}, 2),
    (CONTRIB, "FusedMatMul", [BATCH, ["n", 16, 32, "q"]], {"alpha": 0.5}, 4),
    (CONTRIB, "FusedMatMul", [["n", 16, 32, "h"], ["n", 16, 64, 32]], {"transA": 1, "transB": 1}, 4),
    (CONTRIB, "FusedMatMul", [["a", 7, "b", 32], [32, "a", 7, 64]], {"transBatchB": 1}, 4),
    (CONTRIB, "Gelu", [SEQUENCE], {}, 3),
    (CONTRIB, "BiasGelu", [SEQUENCE, [32]], {}, 3),
    (CONTRIB, "FastGelu", [SEQUENCE], {}, 3),
    (CONTRIB, "QuickGelu", [SEQUENCE], {}, 3),
    (CONTRIB, "SkipLayerNormalization", [SEQUENCE, SEQUENCE, [32], [32]], {}, 3),
    (CONTRIB, "SkipSimplifiedLayerNormalization", [SEQUENCE, SEQUENCE, [32]], {}, 3),
    ("", "SimplifiedLayerNormalization", [SEQUENCE, [32]], {"axis": -1}, 3),
]


def test_every_row_is_tried() -> None:
    assert {(domain, op_type) for domain, op_type, *_ in CASES} == set(STAND_INS)


@pytest.mark.parametrize(("domain", "op_type", "dims", "attributes", "rank"), CASES)
def test_what_the_runtime_proves_is_proved(
    domain: str, op_type: str, dims: list[Dims], attributes: dict[str, Any], rank: int
) -> None:
    node = helper.make_node(op_type, [f"x{i}" for i in range(len(dims))], ["y"], "op", domain=domain, **attributes)
    runtime = _proved_by_runtime(node, dims)
    draft = Draft("op", op_type, tuple(node.input), ("y",), domain, source=ir.from_proto(node))
    ours = _proved_by_inference(stand_in(draft, rank), dims)
    hidden = node.domain == CONTRIB and any(a.name.startswith("transBatch") for a in node.attribute)
    assert ours == (None if hidden else runtime)


def _inputs(dims: list[Dims]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, dim) for i, dim in enumerate(dims)]


def _model(nodes: list[onnx.NodeProto], dims: list[Dims]) -> onnx.ModelProto:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", _inputs(dims), [output])
    domains = (("", 21), (NCHWC, 1), (CONTRIB, 1), ("remat.unknown", 1))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*pair) for pair in domains], ir_version=10)


def _proved_by_runtime(node: onnx.NodeProto, dims: list[Dims]) -> list[int | None]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    model = _model([node], dims)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [dim if isinstance(dim, int) else None for dim in session.get_outputs()[0].shape]


def _proved_by_inference(nodes: list[onnx.NodeProto], dims: list[Dims]) -> list[int | None] | None:
    inferred = onnx.shape_inference.infer_shapes(_model(nodes, dims)).graph.output[0].type.tensor_type
    if not inferred.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in inferred.shape.dim]
