"""Build examples/encoder.onnx: a small transformer encoder for any batch and length, seeded."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, HEAD = 32, 2, 16


def save_encoder(path: Path, layers: int = 2) -> Path:
    """Attention over all positions and a feed-forward part, so many times; input x [batch, seq, 32], output y alike."""
    generator = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {
        "split": np.array([0, 0, HEADS, HEAD], np.int64),
        "merged": np.array([0, 0, WIDTH], np.int64),
        "scale": np.array(HEAD**-0.5, np.float32),
        "ones": np.ones(WIDTH, np.float32),
        "zeros": np.zeros(WIDTH, np.float32),
    }
    nodes: list[onnx.NodeProto] = []

    def add(op: str, *reads: str, **attributes: object) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, list(reads), [name], f"n{len(nodes)}", **attributes))
        return name

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    value = "x"
    for _ in range(layers):
        normal = add("LayerNormalization", value, "ones", "zeros", axis=-1)
        q, k, v = (
            add("Transpose", add("Reshape", add("MatMul", normal, weight(WIDTH, WIDTH)), "split"), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = add("Softmax", add("Mul", add("MatMul", q, k), "scale"), axis=-1)
        heads = add("Transpose", add("MatMul", scores, v), perm=[0, 2, 1, 3])
        value = add("Add", value, add("MatMul", add("Reshape", heads, "merged"), weight(WIDTH, WIDTH)))
        wide = add("Relu", add("MatMul", value, weight(WIDTH, 4 * WIDTH)))
        value = add("Add", value, add("MatMul", wide, weight(4 * WIDTH, WIDTH)))
    nodes[-1].output[0] = "y"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "seq", WIDTH]) for name in "xy"]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "encoder", ports[:1], ports[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


if __name__ == "__main__":
    save_encoder(Path(__file__).with_name("encoder.onnx"))
