"""What a model computes: ops and tensors with integer ids, in execution order."""

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from remat_cli.base.errors import ModelError

Phase = Literal["none", "forward", "backward", "update"]


class TensorType(msgspec.Struct, frozen=True):
    """Element type and static shape of one tensor value.

    `dtype` is ONNX Runtime's name of the element type (`float`, `int64`, `float16`, ...); `shape` is in elements.
    """

    dtype: str
    shape: tuple[int, ...]


ELEMENT_BITS: Mapping[str, int] = MappingProxyType(
    {
        "float": 32,
        "double": 64,
        "float16": 16,
        "bfloat16": 16,
        **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
        "bool": 8,
        "float4e2m1": 4,
        "string": 256,  # a std::string object; the text of long strings is on the heap and not counted
        "complex64": 64,
        "complex128": 128,
        **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), 8),
    }
)
"""ONNX Runtime's name of an element type -> bits that an element takes in memory; small ones are packed in bytes."""


def element_bits(dtype: str) -> int:
    """Bits that one element takes in memory.

    Raises:
        ModelError: the type is unknown.
    """
    if dtype not in ELEMENT_BITS:
        raise ModelError(f"element type '{dtype}' is not supported")
    return ELEMENT_BITS[dtype]


def size_bytes(value: TensorType) -> int:
    """Exact bytes of a tensor; 0 when a dimension is 0.

    Raises:
        ModelError: its element type is unknown.
    """
    return (math.prod(value.shape) * element_bits(value.dtype) + 7) // 8


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value that exists at run time: a model input or an output of an op. Weights are not tensors.

    `producer` is the op that makes it, None for a model input. `view_of` is the tensor whose storage it always
    shares. `kept` marks a model output, which lives to the end of the run.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    producer: int | None = None
    view_of: int | None = None
    kept: bool = False


class Weight(msgspec.Struct, frozen=True):
    """An initialiser: constant, loaded once, shared by every op that reads it."""

    name: str
    size_bytes: int


class Op(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of the model.

    `inputs` and `outputs` are distinct tensor ids (model inputs included), `weights` are weight ids.
    `in_place` lists (input, output) tensor pairs that the runtime may store in one buffer when this op is the last
    reader. `why_not_repeatable` says why an op must run exactly once; empty when it may be repeated.
    """

    name: str
    op_type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    domain: str = ""
    weights: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    why_not_repeatable: str = ""
    phase: Phase = "none"

    @property
    def repeatable(self) -> bool:
        """Whether the op may run more than once in a schedule."""
        return not self.why_not_repeatable


class Graph(msgspec.Struct, frozen=True):
    """The optimised model as remat sees it; op ids are the baseline order, which is a topological order.

    Raises:
        ModelError: the ids do not form a topologically ordered graph.
    """

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    weights: tuple[Weight, ...]

    def __post_init__(self) -> None:
        """Check once that ids are in range and producers precede readers."""
        check_ids([(op.inputs, op.outputs) for op in self.ops], [t.producer for t in self.tensors])

    @property
    def model_inputs(self) -> tuple[int, ...]:
        """Tensor ids that the caller owns and feeds."""
        return tuple(i for i, t in enumerate(self.tensors) if t.producer is None)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor by its name, as a run showed it."""
        return {tensor.name: tensor.shape for tensor in self.tensors}

    @property
    def input_bytes(self) -> int:
        """Bytes of all model inputs together."""
        return sum(self.tensors[i].size_bytes for i in self.model_inputs)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they stand in the file."""
        return sum(w.size_bytes for w in self.weights)


def without_buffers(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with tensors of these names in buffers that somebody else owns."""
    tensors = (msgspec.structs.replace(t, size_bytes=0) if t.name in names else t for t in graph.tensors)
    return msgspec.structs.replace(graph, tensors=tuple(tensors)) if names else graph


def check_ids(ops: list[tuple[tuple[int, ...], tuple[int, ...]]], producers: list[int | None]) -> None:
    """Check that (inputs, outputs) per op and the producer per tensor describe an ordered graph.

    Raises:
        ModelError: an id is out of range, a producer disagrees, or an op reads a tensor made later.
    """
    for index, (inputs, outputs) in enumerate(ops):
        for tensor in (*inputs, *outputs):
            if not 0 <= tensor < len(producers):
                raise ModelError(f"op {index}: tensor id {tensor} does not exist")
        if len(set(inputs)) != len(inputs) or len(set(outputs)) != len(outputs):
            raise ModelError(f"op {index}: a tensor is listed twice among its inputs or outputs")
        for tensor in outputs:
            if producers[tensor] != index:
                raise ModelError(f"op {index}: output tensor {tensor} names producer {producers[tensor]}")
        for tensor in inputs:
            producer = producers[tensor]
            if producer is not None and producer >= index:
                raise ModelError(f"op {index}: reads tensor {tensor}, made later by op {producer}")
