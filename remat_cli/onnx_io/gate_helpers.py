"""The small ops that gates are made of, while they are written: counts, views, zeros."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from remat_cli.core.graph import TensorType
from remat_cli.onnx_io.assemble import Draft
from remat_cli.onnx_io.normalise import fresh_name

FIRST_OPSET_WITH_AXES_INPUT = 13
SCALAR = TensorType("int64", ())
# Element types that the runtime's Size takes; for others it would insert a conversion of the whole tensor.
COUNTED_TYPES = frozenset(
    {"float", "double", "bool", "string", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)


@dataclass
class HelperWriter:
    """Drafts while they are written.

    `known` are the types of all values that are no helpers' results, `opaque` those that are no tensors. `zeros` are
    constants to add (name to length), `types` those of the helpers' results, and `copiers` vectors of zeros of
    unknown length, by their length.
    """

    known: Mapping[str, TensorType]
    opaque: Collection[str]
    opset: int
    taken: set[str]
    drafts: list[Draft] = field(default_factory=list)
    zeros: dict[str, int] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    copiers: dict[int, str] = field(default_factory=dict)

    def count(self, prefix: str, token: str) -> str:
        """A number that exists once the token does."""
        if token in self.opaque:
            return self.append(f"{prefix}/size", "SequenceLength", (token,), SCALAR)
        kind = self.type_of(token)
        if kind.dtype not in COUNTED_TYPES:
            token = self._nothing_of(prefix, token, kind)
        return self.append(f"{prefix}/size", "Size", (token,), SCALAR)

    def _nothing_of(self, prefix: str, token: str, kind: TensorType) -> str:
        """No element of the token, or the one of a scalar, in a type that can be counted without a copy of it all."""
        if kind.shape:
            kind = TensorType(kind.dtype, (0, *kind.shape[1:]))
            token = self.append(f"{prefix}/none", "Gather", (token, self._zeros(0)), kind)
        kind = TensorType("int64", kind.shape)
        return self.append(f"{prefix}/cast", "Cast", (token,), kind, (("to", int(ir.DataType.INT64)),))

    @property
    def view_type(self) -> str:
        """The op that gives a value in its own buffer."""
        return "Unsqueeze" if self.opset >= FIRST_OPSET_WITH_AXES_INPUT else "Reshape"

    def view(self, prefix: str, counter: str, value: str) -> tuple[str, str]:
        """The op that gives a value in its own buffer, and its second argument, which exists once the counter does."""
        if self.view_type == "Unsqueeze":
            axes = self.append(f"{prefix}/axes", "Mul", (counter, self._zeros(0)), TensorType("int64", (0,)))
            return "Unsqueeze", axes
        rank = len(self.type_of(value).shape)
        zeros = self._free_zeros(prefix, counter, rank)
        return "Reshape", self.append(f"{prefix}/shape", "Mul", (counter, zeros), TensorType("int64", (rank,)))

    def plus_nothing(self, prefix: str, counter: str) -> tuple[str, str]:
        """The op that gives a vector of int64 as it is, and its second argument, which exists once the counter does."""
        return "Add", self.append(f"{prefix}/zero", "Mul", (counter, self._zeros(1)), TensorType("int64", (1,)))

    def _free_zeros(self, prefix: str, counter: str, rank: int) -> str:
        """A vector of zeros whose length the runtime does not know beforehand.

        Were it known, the runtime would keep the buffer of one gate's shape for the next gate of the same rank.
        """
        if rank == 0:
            return self._zeros(0)
        if rank in self.copiers:
            return self.copiers[rank]
        one = self._zeros(1) if rank == 1 else self._free_zeros(prefix, counter, 1)
        kind = TensorType("int64", (rank,))
        size = self.append(f"{prefix}/copy{rank}", "Mul", (counter, one), TensorType("int64", (1,)))
        self.copiers[rank] = self.append(f"{prefix}/zeros{rank}", "Reshape", (self._zeros(rank), size), kind)
        return self.copiers[rank]

    def _zeros(self, length: int) -> str:
        """The constant of that many zeros, shared by all gates."""
        for name, known in self.zeros.items():
            if known == length:
                return name
        name = fresh_name(f"remat_zeros_{length}", self.taken)
        self.zeros[name] = length
        return name

    def fresh(self, name: str, kind: TensorType) -> str:
        """A name that nobody has yet, and its type."""
        name = fresh_name(name, self.taken)
        self.types[name] = kind
        return name

    def append(
        self,
        name: str,
        op_type: str,
        reads: tuple[str, ...],
        kind: TensorType,
        attributes: tuple[tuple[str, int], ...] = (),
    ) -> str:
        """Append a helper; returns its result, which has the helper's name."""
        name = self.fresh(name, kind)
        self.drafts.append(Draft(name, op_type, reads, (name,), attributes=attributes))
        return name

    def type_of(self, name: str) -> TensorType:
        """Type of a value, a helper's result or not."""
        return self.types[name] if name in self.types else self.known[name]
