"""Build examples/encoder.onnx: a small transformer encoder for any batch and length, seeded."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 32


def save_encoder(path: Path, layers: int = 2, width: int = WIDTH, heads: int = 2, *, is_biased: bool = False) -> Path:
    """Attention over all positions and a feed-forward part, so many times; x [batch, seq, width] to y of that shape.

    With `is_biased` all layers add the same number to the score of two positions that lie so far apart, as T5 does.
    """
    generator = np.random.default_rng(0)
    head = width // heads
    weights: dict[str, np.ndarray] = {
        "split": np.array([0, 0, heads, head], np.int64),
        "merged": np.array([0, 0, width], np.int64),
        "scale": np.array(head**-0.5, np.float32),
        "ones": np.ones(width, np.float32),
        "zeros": np.zeros(width, np.float32),
    }
    nodes: list[onnx.NodeProto] = []

    def add(op: str, *reads: str, **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, list(reads), [name], f"n{len(nodes)}", **attributes))
        return name

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def bias() -> str:
        """A number for each head and each pair of positions, by how far they lie apart."""
        weights.update(nought=np.array(0), one=np.array(1), first=np.array([0]), second=np.array([1]), far=np.array(31))
        places = add("Range", "nought", add("Gather", add("Shape", "x"), "one"), "one")
        apart = add("Abs", add("Sub", add("Unsqueeze", places, "second"), add("Unsqueeze", places, "first")))
        by_pair = add("Gather", weight(32, heads), add("Min", apart, "far"))
        return add("Exp", add("Unsqueeze", add("Transpose", by_pair, perm=[2, 0, 1]), "first"))

    value = "x"
    shared = bias() if is_biased else ""
    for _ in range(layers):
        normal = add("LayerNormalization", value, "ones", "zeros", axis=-1)
        q, k, v = (
            add("Transpose", add("Reshape", add("MatMul", normal, weight(width, width)), "split"), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = add("Mul", add("MatMul", q, k), "scale")
        scores = add("Softmax", add("Add", scores, shared) if is_biased else scores, axis=-1)
        joined = add("Transpose", add("MatMul", scores, v), perm=[0, 2, 1, 3])
        value = add("Add", value, add("MatMul", add("Reshape", joined, "merged"), weight(width, width)))
        wide = add("Relu", add("MatMul", value, weight(width, 4 * width)))
        value = add("Add", value, add("MatMul", wide, weight(4 * width, width)))
    nodes[-1].output[0] = "y"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "seq", width]) for name in "xy"]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "encoder", ports[:1], ports[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


if __name__ == "__main__":
    save_encoder(Path(__file__).with_name("encoder.onnx"))
