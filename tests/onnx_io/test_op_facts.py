"""Every row of the table of storage facts is measured on the installed runtime, and plain ops are measured as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.onnx_io.read.op_facts import CONTRIB, FACTS, NCHWC, PLAIN, SEEDED, facts_of
from remat_cli.onnx_io.read.to_graph import to_graph
from tests.helpers import free_problem, observe, run_profiled, to_bytes

RNG = np.random.default_rng(0)
SHAPE = (2, 16, 4, 4)


def floats(*shape: int) -> np.ndarray:
    return (RNG.random(shape or SHAPE) + 0.5).astype(np.float32)


def ints(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2, shape or SHAPE).astype(np.int64)


def bytes_(*shape: int) -> np.ndarray:
    return RNG.integers(0, 9, shape or SHAPE).astype(np.uint8)


@dataclass(frozen=True)
class Const:
    value: np.ndarray


def const(values: Any, dtype: Any = None) -> Const:
    return Const(np.asarray(values, dtype))


SCALE, ZERO = const(0.1, np.float32), const(3, np.uint8)
CHANNELS = Const(floats(16))
KERNEL = Const(floats(16, 16, 1, 1))


@dataclass(frozen=True)
class Case:
    op_type: str
    inputs: Sequence[np.ndarray | Const | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int = 21
    outputs: int = 1

    def __str__(self) -> str:
        shapes = "x".join(str(i.ndim) for i in self.inputs if isinstance(i, np.ndarray))
        return f"{self.domain}.{self.op_type}-{self.opset}-{shapes}-{'-'.join(map(str, self.attributes.values()))}"


UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "ThresholdedRelu",
    "Softplus",
    "Softsign",
    "HardSigmoid",
    "Softmax",
    "LogSoftmax",
    "Clip",
    "Trilu",
    "Shrink",
    "Identity",
    "Flatten",
    "Exp",
    "Log",
    "Sqrt",
    "Neg",
    "Abs",
    "Erf",
    "Sin",
    "Cos",
    "Reciprocal",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Gelu",
    "Hardmax",
    "IsNaN",
    "Transpose",
    "Dropout",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "LpNormalization",
    "MeanVarianceNormalization",
    "Size",
    "Shape",
]
OLD_UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Softplus",
    "Softsign",
    "HardSigmoid",
    "Softmax",
    "LogSoftmax",
    "Clip",
    "Flatten",
]
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu", "Equal", "Less"]

CASES = [
    *(Case(op, [floats()]) for op in UNARY),
    *(Case(op, [floats()], opset=9) for op in OLD_UNARY),
    *(Case(op, [floats(), floats()]) for op in BINARY),
    *(Case("Cast", [floats()], {"to": to}) for to in (1, 6, 7, 10, 11)),
    Case("Cast", [ints()], {"to": int(TensorProto.DOUBLE)}),
    Case("Not", [floats() > 1]),
    Case("And", [floats() > 1, floats() > 1]),
    Case("Where", [floats() > 1, floats(), floats()]),
    Case("Sum", [floats(), floats(), floats()]),
    Case("Reshape", [floats(), const([2, -1])]),
    Case("Squeeze", [floats(1, 16, 4), const([0])]),
    Case("Unsqueeze", [floats(), const([0])]),
    Case("Expand", [floats(), const(SHAPE)]),
    Case("Tile", [floats(), const([1, 1, 1, 1])]),
    Case("Concat", [floats(), floats()], {"axis": 1}),
    Case("Concat", [floats()], {"axis": 1}),
    Case("Split", [floats()], {"axis": 1, "num_outputs": 2}, outputs=2),
    Case("Slice", [floats(), const([0]), const([100])]),
    Case("Pad", [floats(), const(np.zeros(8, np.int64))]),
    Case("Gather", [floats(), const([0, 1])]),
    Case("ScatterElements", [floats(), ints(), floats()]),
    Case("Scatter", [floats(), ints(), floats()], opset=9),
    Case("ScatterND", [floats(), const([[0], [1]]), floats()]),
    Case("TensorScatter", [floats(2, 2, 4, 4), floats(2, 2, 1, 4)], opset=24),
    Case("CumSum", [floats(), const(0)]),
    Case("ReduceMean", [floats(2, 1, 4), const([1])]),
    Case("TopK", [floats(), const([4])], outputs=2),
    Case("DepthToSpace", [floats()], {"blocksize": 2}),
    Case("Conv", [floats(), KERNEL]),
    Case("ConvTranspose", [floats(), KERNEL]),
    Case("MatMul", [floats(16, 16), floats(16, 16)]),
    Case("Gemm", [floats(16, 16), floats(16, 16), floats(16, 16)]),
    Case("MaxPool", [floats()], {"kernel_shape": [1, 1]}),
    Case("AveragePool", [floats()], {"kernel_shape": [1, 1]}),
    Case("BatchNormalization", [floats(), CHANNELS, CHANNELS, CHANNELS, CHANNELS]),
    Case("InstanceNormalization", [floats(), CHANNELS, CHANNELS]),
    Case("LayerNormalization", [floats(2, 16), CHANNELS, CHANNELS]),
    Case("LRN", [floats()], {"size": 3}),
    Case("Dropout", [floats(), const(0.5, np.float32), const(True)], {"seed": 7}, outputs=2),
    Case("Upsample", [floats(), const(np.ones(4), np.float32)], opset=9),
    Case("Einsum", [floats(4, 4)], {"equation": "ij->ij"}),
    Case("QuantizeLinear", [floats(), SCALE, ZERO]),
    Case("DequantizeLinear", [bytes_(), SCALE, ZERO]),
    Case("DynamicQuantizeLinear", [floats()], outputs=3),
    Case("ParametricSoftplus", [floats()], {"alpha": 1.0, "beta": 1.0}, opset=9),
    Case("Attention", [floats(1, 2, 4, 4)] * 3, opset=23),
    *(Case(op, [floats()], domain=CONTRIB) for op in ("Gelu", "FastGelu", "QuickGelu")),
    Case("BiasGelu", [floats(2, 16), CHANNELS], domain=CONTRIB),
    Case("Trilu", [floats(4, 4)], domain=CONTRIB),
    Case("FusedMatMul", [floats(16, 16), floats(16, 16)], domain=CONTRIB),
    Case("FusedGemm", [floats(16, 16), floats(16, 16), floats(16, 16)], {"activation": "Relu"}, CONTRIB),
    Case("FusedConv", [floats(), KERNEL], {"activation": "Relu"}, CONTRIB),
    Case("FusedConv", [floats(), KERNEL, CHANNELS, floats()], {"activation": "Relu"}, CONTRIB),
    Case("SkipLayerNormalization", [floats(2, 4, 16), floats(2, 4, 16), CHANNELS, CHANNELS], domain=CONTRIB),
    Case("MultiHeadAttention", [floats(1, 4, 16)] * 3, {"num_heads": 4}, CONTRIB),
    Case("QLinearAdd", [bytes_(), SCALE, ZERO, bytes_(), SCALE, ZERO, SCALE, ZERO], domain=CONTRIB),
    Case("QLinearSigmoid", [bytes_(), SCALE, ZERO, SCALE, ZERO], domain=CONTRIB),
    Case("Conv", [floats(), KERNEL], {"activation": "Relu"}, NCHWC),
    Case("Conv", [floats(), KERNEL, CHANNELS, floats()], {"activation": "Relu"}, NCHWC),
    *(Case(op, [floats()], {"kernel_shape": [1, 1]}, NCHWC) for op in ("MaxPool", "AveragePool")),
    *(Case(op, [floats()], domain=NCHWC) for op in ("GlobalMaxPool", "GlobalAveragePool", "ReorderInput")),
    Case("ReorderOutput", [floats()], {"channels": 16}, NCHWC),
    Case("Upsample", [floats()], {"scales": [1, 1, 1, 1]}, NCHWC),
]


def build(case: Case, living: Sequence[int]) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """The op between transposes, which always make new buffers; inputs in `living` are read again afterwards."""
    nodes, weights, feeds, reads = [], [], {}, []
    for index, value in enumerate(case.inputs):
        if isinstance(value, Const):
            weights.append(numpy_helper.from_array(value.value, f"c{index}"))
        elif value is not None:
            feeds[f"x{index}"] = value
            nodes.append(
                helper.make_node("Transpose", [f"x{index}"], [f"t{index}"], f"t{index}", perm=[*range(value.ndim)])
            )
        reads.append(f"c{index}" if isinstance(value, Const) else "" if value is None else f"t{index}")
    made = [f"o{index}" for index in range(case.outputs)]
    attributes = dict(case.attributes)
    nodes.append(helper.make_node(case.op_type, reads, made, "measured", domain=case.domain, **attributes))
    nodes += [helper.make_node("Shape", [name], [f"y_{name}"], f"y_{name}") for name in made]
    nodes += [helper.make_node("Transpose", [f"t{index}"], [f"w{index}"], f"w{index}") for index in living]
    results = [*(f"y_{name}" for name in made), *(f"w{index}" for index in living)]
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()],
        [helper.make_empty_tensor_value_info(name) for name in results],
        weights,
    )
    imports = [helper.make_opsetid("", case.opset), helper.make_opsetid(CONTRIB, 1), helper.make_opsetid(NCHWC, 1)]
    return ir.from_proto(helper.make_model(graph, ir_version=10, opset_imports=imports)), feeds


@pytest.mark.parametrize("case", CASES, ids=str)
def test_predicted_peak_is_the_measured_one_to_the_byte(case: Case) -> None:
    running = [index for index, value in enumerate(case.inputs) if isinstance(value, np.ndarray)]
    for dead in (None, *running):
        model, feeds = build(case, [index for index in running if index != dead])
        graph = to_graph(model, observe(model, feeds))
        executed, _, measured = run_profiled(to_bytes(model), feeds, exact=True)
        order = {name: number for number, name in enumerate(executed)}
        ids = sorted(range(len(graph.ops)), key=lambda i: order[graph.ops[i].name])
        predicted = _judge(graph, ids)
        assert predicted == measured, f"input {dead} dies"


def _judge(graph: Graph, ids: list[int]) -> int:
    return simulate(free_problem(graph), Schedule.of_ops(ids)).live_peak


def test_every_storage_fact_is_measured() -> None:
    measured = {(case.domain, case.op_type) for case in CASES}
    assert measured >= {row for row, facts in FACTS.items() if facts.view or facts.in_place}


@pytest.mark.parametrize(
    ("op_type", "domain", "attributes", "reason"),
    [
        ("RandomNormalLike", "", {}, "random"),
        ("Loop", "", {}, "control flow"),
        ("SequenceAt", "", {}, "sequence"),
        ("BatchNormalization", "", {"training_mode": 1}, "training"),
        ("Thing", "com.example", {}, "com.example.Thing"),
        ("NewThing", CONTRIB, {}, "com.microsoft.NewThing"),
    ],
)
def test_ops_that_must_not_repeat_say_why(op_type: str, domain: str, attributes: dict[str, int], reason: str) -> None:
    node = ir.node(op_type, [ir.val("x")], attributes, domain=domain)
    assert reason in facts_of(node).why_not_repeatable


def scan(op_type: str, *, states: int = 0, **attributes: list[int]) -> ir.Node:
    """A Scan over rows of one input whose body is one op, besides states that stay as they are."""
    kept = [ir.val(f"state{number}") for number in range(states)]
    row = ir.val("row")
    node = ir.node(op_type, [row])
    body = ir.Graph([*kept, row], [*kept, *node.outputs], nodes=[node])
    reads = [*(ir.val(f"first{number}") for number in range(states)), ir.val("x")]
    return ir.node("Scan", reads, {"body": body, "num_scan_inputs": 1, **attributes})


def test_a_scan_of_rows_by_themselves_may_repeat() -> None:
    assert facts_of(scan("Relu")) == PLAIN
    assert facts_of(scan("Relu", scan_input_axes=[0], scan_output_directions=[0])) == PLAIN


@pytest.mark.parametrize(
    "node",
    [
        scan("Relu", states=1),
        scan("RandomNormalLike"),
        scan("Relu", scan_input_axes=[1]),
        scan("Relu", scan_input_directions=[1]),
    ],
    ids=["states", "random", "axis", "backwards"],
)
def test_other_scans_may_not(node: ir.Node) -> None:
    assert "control flow" in facts_of(node).why_not_repeatable


def test_batch_norm_in_inference_form_may_repeat() -> None:
    inputs = [ir.val(name) for name in "xsbmv"]
    assert facts_of(ir.node("BatchNormalization", inputs)) == PLAIN


def test_dropout_is_random_only_when_told_to_train() -> None:
    on = ir.val("on", const_value=ir.tensor(np.array(True)))
    off = ir.val("off", const_value=ir.tensor(np.array(False)))
    x, ratio = ir.val("x"), ir.val("r")
    assert facts_of(ir.node("Dropout", [x, ratio, on])).why_not_repeatable
    assert facts_of(ir.node("Dropout", [x, ratio, ir.val("unknown")])).why_not_repeatable
    assert not facts_of(ir.node("Dropout", [x, ratio, off])).why_not_repeatable
    assert not facts_of(ir.node("Dropout", [x])).why_not_repeatable


RANDOM_OPS = {
    "RandomNormal": {"shape": [8, 50]},
    "RandomUniform": {"shape": [8, 50]},
    "RandomNormalLike": {},
    "RandomUniformLike": {},
    "Multinomial": {"sample_size": 50},
    "Dropout": {},
}


@pytest.mark.parametrize("op_type", sorted(SEEDED))
@pytest.mark.parametrize("options", [{}, {"graph_optimization_level": ort.GraphOptimizationLevel.ORT_DISABLE_ALL}])
def test_copies_with_one_seed_draw_the_same_in_every_run(op_type: str, options: dict[str, Any]) -> None:
    """Three runs of one session: copies agree in each, and each run draws anew."""
    session = _session_of_copies(op_type, {"seed": 7}, options)
    runs = [session.run(None, {"x": np.full((8, 50), 0.5, np.float32)}) for _ in range(3)]
    for one, other in runs:
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(runs[0][0], runs[1][0])
    assert not np.array_equal(runs[1][0], runs[2][0])


@pytest.mark.parametrize("op_type", sorted(SEEDED))
def test_only_seeded_random_ops_may_repeat(op_type: str) -> None:
    session = _session_of_copies(op_type, {}, {})
    one, other = session.run(None, {"x": np.full((8, 50), 0.5, np.float32)})
    assert not np.array_equal(one, other)
    for attributes in ({}, {"seed": 7}):
        node = ir.node(op_type, [ir.val("x"), ir.val("ratio"), ir.val("training")], attributes)
        assert bool(facts_of(node).why_not_repeatable) == (not attributes)


def _session_of_copies(op_type: str, seed: dict[str, int], options: dict[str, Any]) -> ort.InferenceSession:
    """Two copies of a random op, each with another op after it."""
    reads = ["x", "ratio", "training"] if op_type == "Dropout" else [] if "shape" in RANDOM_OPS[op_type] else ["x"]
    given = {name: value if op_type == "Dropout" else float(value) for name, value in seed.items()}
    nodes = []
    for copy in range(2):
        nodes.append(helper.make_node(op_type, reads, [f"drawn{copy}"], **RANDOM_OPS[op_type], **given))
        nodes.append(helper.make_node("Abs", [f"drawn{copy}"], [f"y{copy}"]))
    graph = helper.make_graph(
        nodes,
        "copies",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 50])],
        [helper.make_empty_tensor_value_info(f"y{copy}") for copy in range(2)],
        [
            numpy_helper.from_array(np.array(0.5, np.float32), "ratio"),
            numpy_helper.from_array(np.array(True), "training"),
        ],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    for name, value in options.items():
        setattr(settings, name, value)
    return ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
