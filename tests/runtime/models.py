"""Small models for the tests of the runtime, and functions for fresh processes to run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.program import InputSpec
from remat_cli.runtime.sessions._ort import Advance

MIB = 2**20
LENGTH = MIB // 4  # elements of the input of `skip_model`: one MiB
X = InputSpec("x", "float", (1, LENGTH))


def value(name, element_type, shape):
    return helper.make_tensor_value_info(name, element_type, shape)


def save_model(path: Path, nodes, inputs, outputs, weights=(), opset: int = 21) -> Path:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def untyped(*names):
    return [onnx.ValueInfoProto(name=name) for name in names]


def weight(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def skip_model(path: Path, *, again: str = "", gated: bool = True, products: int = 0) -> Path:
    """A one-MiB value is read at the start and at the end, and seven MiB are live in between.

    a = Exp(x) 1 MiB, r = mean(a), c0 = x + r 1 MiB, c1 = 2 MiB, c2 = 4 MiB, s = sum(c2), y = a * s. Peak at c2:
    a + c1 + c2 = 7 MiB. With `again`, an op of that type makes `a` a second time, after `s`, and the peak is 6 MiB.
    So many `products` of 512 x 512 matrices before all that take time, and not more memory; `q` is then an output.
    """
    node = helper.make_node
    slow = [node("MatMul", [f"m{i}", "m0"], [f"m{i + 1}"], name=f"m{i + 1}") for i in range(products)]
    if slow:
        slow.insert(0, node("Reshape", ["x", "square"], ["m0"], name="m0"))
        slow.append(node("ReduceMean", [f"m{products}"], ["q"], name="q", keepdims=0))
    start = [
        *slow,
        node("Exp", ["x"], ["a"], name="a"),
        node("ReduceMean", ["a"], ["r"], name="r", keepdims=1),
        node("Add", ["x", "r"], ["c0"], name="c0"),
        node("Concat", ["c0", "c0"], ["c1"], name="c1", axis=0),
        node("Concat", ["c1", "c1"], ["c2"], name="c2", axis=0),
        node("ReduceSum", ["c2"], ["s"], name="s", keepdims=1),
    ]
    gate = [
        node("Size", ["s"], ["n"], name="gate/size"),
        node("Mul", ["n", "zeros"], ["z"], name="gate/mul"),
        node("Reshape", ["x", "z"], ["x2"], name="gate/reshape"),
    ]
    second = [node(again, ["x2" if gated else "x"], ["a2"], name="a/remat_1")] if again else []
    end = [node("Mul", ["a2" if again else "a", "s"], ["y"], name="y")]
    nodes = [*start, *(gate if again and gated else []), *second, *end]
    weights = [weight("zeros", np.zeros(2, np.int64))] if again and gated else []
    sizes = [1, LENGTH]
    outputs = [value("y", TensorProto.FLOAT, sizes)]
    if slow:
        weights = [*weights, weight("square", np.array([512, 512], np.int64))]
        outputs.append(value("q", TensorProto.FLOAT, []))
    return save_model(path, nodes, [value("x", TensorProto.FLOAT, sizes)], outputs, weights)


GATES = frozenset({"gate/size", "gate/mul", "gate/reshape"})
ORDER = ("a", "r", "c0", "c1", "c2", "s", "a/remat_1", "y")
ORIGINAL_ORDER = ("a", "r", "c0", "c1", "c2", "s", "y")


def echo(job: int, advance: Advance) -> int:
    advance(job, 10)
    return job + 1


def complain(job: str, advance: Advance) -> int:
    raise ModelError(job)


def crash(job: int, advance: Advance) -> int:
    os.kill(os.getpid(), job or signal.SIGKILL)
    return 0


def fail(job: str, advance: Advance) -> int:
    raise KeyError(job)


def report_and_wait(job: str, advance: Advance) -> int:
    Path(job).write_text(str(os.getpid()), encoding="ascii")
    advance(1, 2)
    time.sleep(60)
    return 0
