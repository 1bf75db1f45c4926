"""Language models of four-bit weights with a cache of keys and values, as builders for small devices write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.splitting.random_models import Sample, Sketch

CONTRIB = "com.microsoft"
BLOCK = 32  # weights that share a scale
FOR_PROCESSORS = 4  # accuracy level: activations in bytes, as exporters set it for CPUs
LONGEST = 4096  # tokens that are rotated

Length = Any  # a number, or a name where it varies


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder whose heads share keys and values in groups.

    `length` is of the prompt, `past` of the cache before and `total` of the one after it: names where they vary. A
    cache in one buffer is as long before as after. With `has_all` scores are of every token, else of the last.
    """

    length: Length = 1024
    past: Length = 0
    total: Length = 1024
    mask: Length = 1024
    width: int = 1024
    heads: int = 16
    shared: int = 4
    inner: int = 3584
    layers: int = 2
    words: int = 2048
    has_all: bool = False

    @property
    def size(self) -> int:
        """Of a head."""
        return self.width // self.heads


@dataclass
class _Draft:
    """The model while it grows; `kept` are outputs beside the scores, with their shapes."""

    of: Decoder
    sketch: Sketch = field(default_factory=lambda: Sketch(np.random.default_rng(0)))
    kept: list[tuple[str, list[Length]]] = field(default_factory=list)

    def product(self, value: str, columns: int) -> str:
        """With a matrix of four bits."""
        *shape, terms = self.sketch.shapes[value]
        dice = self.sketch.rng
        blocks = dice.integers(0, 256, (columns, terms // BLOCK, BLOCK // 2)).astype(np.uint8)
        scales = (dice.random(columns * terms // BLOCK) + 0.5).astype(np.float32) / 50
        reads = [value, self.sketch.constant(blocks), self.sketch.constant(scales)]
        how = {"K": terms, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": FOR_PROCESSORS}
        return self.sketch.add("MatMulNBits", reads, [*shape, columns], domain=CONTRIB, **how)

    def layer(self, value: str, rest: str, lengths: Sequence[str]) -> tuple[str, str]:
        """Attention and a gated part; what comes out, brought to one scale, and the sum of all so far."""
        of, sketch, shape = self.of, self.sketch, list(self.sketch.shapes[value])
        queries, *others = (self.product(value, heads * of.size) for heads in (of.heads, of.shared, of.shared))
        cache, longer = ([1, of.shared, length, of.size] for length in (of.past, of.total))
        kinds = [f"{len(self.kept) // 2}.{what}" for what in ("key", "value")]
        before = [sketch.input(f"past_key_values.{kind}", cache) for kind in kinds]
        made = [f"present.{kind}" for kind in kinds]
        self.kept += [(name, longer) for name in made]
        found = self.op("GroupQueryAttention", [queries, *others, *before, *lengths], made, shape)
        value, rest = self.summed(rest, self.product(found, of.width))
        gate, wide = (self.product(value, of.inner) for _ in range(2))
        inner = [*shape[:-1], of.inner]
        gate = sketch.add("Mul", [gate, sketch.add("Sigmoid", [gate], inner)], inner)
        return self.summed(rest, self.product(sketch.add("Mul", [gate, wide], inner), of.width))

    def summed(self, rest: str, value: str) -> tuple[str, str]:
        """The sum of two brought to one scale, and the sum."""
        shape, name = list(self.sketch.shapes[value]), f"sum_{len(self.sketch.nodes)}"
        self.sketch.shapes[name] = tuple(shape)
        reads = [rest, value, self.sketch.weight(self.of.width)]
        return self.op("SkipSimplifiedLayerNormalization", reads, ["", "", name], shape), name

    def op(self, op_type: str, reads: Sequence[str], more: Sequence[str], shape: list[Length]) -> str:
        """An op that makes more than its result; that."""
        own = {"num_heads": self.of.heads, "kv_num_heads": self.of.shared, "do_rotary": 1}
        attributes = own if op_type == "GroupQueryAttention" else {"epsilon": 1e-5}
        made = self.sketch.add(op_type, reads, shape, domain=CONTRIB, **attributes)
        self.sketch.nodes[-1].output.extend(more)
        return made

    def lengths(self) -> list[str]:
        """How many tokens there are before the last, and in all, by a mask of them; and angles of rotations."""
        sketch = self.sketch
        mask = sketch.input("attention_mask", [1, self.of.mask])
        one, second = (sketch.constant(np.array(value)) for value in ([1], 1))
        counted = sketch.add("Sub", [sketch.add("ReduceSum", [mask, one], [1, 1]), one], [1, 1])
        total = sketch.add("Gather", [sketch.add("Shape", [mask], [2]), second], [])
        made = [sketch.add("Cast", [value], [], to=TensorProto.INT32) for value in (counted, total)]
        angles = np.arange(LONGEST)[:, None] / 10000 ** np.linspace(0, 1, self.of.size // 2, endpoint=False)
        return made + [sketch.constant(turned.astype(np.float32)) for turned in (np.cos(angles), np.sin(angles))]


def decoder(of: Decoder) -> Sample:
    """The model; lengths that are names stay open."""
    draft = _Draft(of)
    sketch = draft.sketch
    lengths = draft.lengths()
    tokens = sketch.input("input_ids", [1, of.length])
    table = sketch.constant(sketch.rng.integers(0, 256, (of.words, of.width // 2)).astype(np.uint8))
    scales = sketch.constant((sketch.rng.random((of.words, of.width // BLOCK)) / 10).astype(np.float32))
    how = {"bits": 4, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
    shape = [1, of.length, of.width]
    rest = sketch.add("GatherBlockQuantized", [table, tokens, scales], shape, domain=CONTRIB, **how)
    value = sketch.add("SimplifiedLayerNormalization", [rest, sketch.weight(of.width)], shape, axis=-1, epsilon=1e-5)
    for _ in range(of.layers):
        value, rest = draft.layer(value, rest, lengths)
    del sketch.nodes[-1].output[1:]  # the last sum is not read
    if not of.has_all:
        value = sketch.add("Gather", [value, sketch.constant(np.array([-1]))], [1, 1, of.width], axis=1)
    scores = draft.product(value, of.words)
    sketch.shapes |= {name: tuple(shape) for name, shape in draft.kept}
    model = sketch.model([scores, *(name for name, _ in draft.kept)])
    model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    for value_info in model.graph.input:
        if value_info.name in ("input_ids", "attention_mask"):
            value_info.type.tensor_type.elem_type = TensorProto.INT64
    return Sample(model, {})
