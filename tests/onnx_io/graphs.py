"""Random models and random legal schedules of them, and a few hand-made models."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem

ROWS, COLUMNS = 16, 32  # 2 KiB of floats
UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Softmax", "Clip", "Identity", "Erf", "Floor")
BINARY = ("Add", "Sub", "Mul", "Max")


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int | str, ...]],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    elements: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model whose outputs have the type of its inputs and no declared shape."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, elements, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, elements, inputs.get(name)) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


class RandomModel:
    """Grows a random graph of small ops; `shapes` are the values so far."""

    def __init__(self, rng: random.Random, opset: int) -> None:
        self.rng, self.opset = rng, opset
        self.nodes: list[onnx.NodeProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": (ROWS, COLUMNS), "w": (ROWS, COLUMNS)}
        seed = np.random.default_rng(rng.randrange(2**32))
        self.weights = {
            "square": (seed.standard_normal((COLUMNS, COLUMNS)) / 6).astype(np.float32),
            "bias": seed.standard_normal(COLUMNS).astype(np.float32),
            "flat": np.array([-1]),
            "full": np.array([ROWS, COLUMNS]),
        }

    def add(self, op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes: object) -> str:
        name = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        self.shapes[name] = shape
        return name

    def pick(self, shape: tuple[int, ...] | None = None) -> str:
        names = [name for name, known in self.shapes.items() if shape in (None, known)]
        return self.rng.choice(names[-6:] if self.rng.random() < 0.7 else names)

    def grow(self) -> None:
        kind = self.rng.randrange(10)
        full = (ROWS, COLUMNS)
        if kind <= 2:
            source = self.pick()
            op_type = self.rng.choice(UNARY)
            attributes = {"axis": 0} if op_type == "Softmax" else {}
            self.add(op_type, [source], self.shapes[source], **attributes)
        elif kind <= 4:
            source = self.pick()
            self.add(self.rng.choice(BINARY), [source, self.pick(self.shapes[source])], self.shapes[source])
        elif kind == 5:
            self.add("MatMul", [self.pick(full), "square"], full)
        elif kind == 6:
            self.add("Gemm", [self.pick(full), "square", "bias"], full)
        elif kind == 7:
            flat = self.add("Reshape", [self.pick(full), "flat"], (ROWS * COLUMNS,))
            self.add("Reshape", [self.add("Tanh", [flat], (ROWS * COLUMNS,)), "full"], full)
        elif kind == 8:
            name = f"split{len(self.nodes)}"
            self.nodes.append(self._split(name, self.pick(full)))
            self.shapes[name] = (ROWS // 2, COLUMNS)
            self.add("Concat", [name, name], full, axis=0)
        else:
            turned = self.add("Transpose", [self.pick(full)], (COLUMNS, ROWS), perm=[1, 0])
            both = self.add("Concat", [turned, self.pick((COLUMNS, ROWS))], (COLUMNS, 2 * ROWS), axis=1)
            self.add("Reshape", [self.add("Abs", [both], self.shapes[both]), "flat"], (2 * ROWS * COLUMNS,))

    def _split(self, name: str, source: str) -> onnx.NodeProto:
        """Two halves, the second of which nobody reads."""
        counted = {"num_outputs": 2} if self.opset >= 18 else {}
        return helper.make_node("Split", [source], [name, f"{name}_unread"], name, axis=0, **counted)

    def finish(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        outputs = [name for name in self.shapes if name not in read and name not in "xw"]
        outputs += self.rng.sample([name for name in self.shapes if name in read and name not in "xw"][:3], k=1)
        ports = {name: self.shapes[name] for name in "xw"}
        return model_of(self.nodes, dict(ports), outputs, self.weights, opset=self.opset)


def random_model(rng: random.Random, ops: int, opset: int) -> onnx.ModelProto:
    """A connected enough random model with two inputs and at least two outputs, one of them read inside."""
    model = RandomModel(rng, opset)
    model.add("Tanh", ["x"], (ROWS, COLUMNS))
    model.add("Neg", ["tanh0"], (ROWS, COLUMNS))
    for _ in range(ops):
        model.grow()
    return model.finish()


def random_schedule(problem: Problem, rng: random.Random, recomputes: int) -> Schedule:
    """A random topological order with recomputes, each of which somebody reads."""
    order = _random_order(problem, rng)
    for _ in range(recomputes):
        place = rng.randrange(1, len(order))
        sources = {problem.tensors[tensor].producer for tensor in problem.ops[order[place]].inputs}
        candidates = sorted(op for op in sources if problem.ops[op].repeatable)
        if candidates:
            trial = order.copy()
            trial.insert(place, rng.choice(candidates))
            order = trial if not _wastes(problem, trial) else order
    return Schedule.of_ops(order)


def _random_order(problem: Problem, rng: random.Random) -> list[int]:
    done: set[int] = set()
    order: list[int] = []
    while len(order) < len(problem.ops):
        ready = [
            index
            for index, op in enumerate(problem.ops)
            if index not in done and all(problem.tensors[t].producer in done for t in op.inputs)
        ]
        order.append(rng.choice(ready))
        done.add(order[-1])
    return order


def _wastes(problem: Problem, order: list[int]) -> bool:
    """Whether some run of a repeated op is read by nobody."""
    newest: dict[int, int] = {}
    read: set[int] = set()
    for place, op in enumerate(order):
        read.update(newest[problem.tensors[t].producer] for t in problem.ops[op].inputs)
        newest[op] = place
    read.update(newest[t.producer] for t in problem.tensors if t.kept)
    return any(order.count(op) > 1 and place not in read for place, op in enumerate(order))
