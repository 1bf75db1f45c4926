"""Writes the small ops that gates are made of: counts, views, zeros."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.gate_form import GateForm
from remat_cli.onnx_io.read.normalise import fresh_name
from remat_cli.onnx_io.write.assemble import Draft

FIRST_OPSET_WITH_AXES_INPUT = 13
FIRST_OPSET_WITH_WHOLE_PRODUCTS = 9  # MatMul takes integers
SCALAR = TensorType("int64", ())
UNHELD = (
    "how many dimensions tensor '{}' has depends on values, so that the op that reads it cannot be held in a plan's "
    "order before operator set 13: convert the model to 13 or newer"
)
# Element types that the runtime's Size takes; for others it would insert a conversion of the whole tensor.
COUNTED_TYPES = frozenset(
    {"float", "double", "bool", "string", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)


@dataclass
class HelperWriter:
    """Drafts while they are written.

    `known` are the types of all values that are no helpers' results, `opaque` those that are no tensors. Of those in
    `told` the runtime knows the shape before they exist, or finds it elsewhere; those that are `ranked_by_values` may
    have more or fewer dimensions in another run. `zeros` are constants to add (name to
    shape), `types` those of the helpers' results, `copiers` vectors of zeros of unknown length, by their length, and
    `noughts` the last zeros of each length that wait for something.
    """

    known: Mapping[str, TensorType]
    opaque: Collection[str]
    opset: int
    taken: set[str]
    form: GateForm = "size"
    told: Collection[str] = ()
    ranked_by_values: set[str] = field(default_factory=set)
    drafts: list[Draft] = field(default_factory=list)
    zeros: dict[str, tuple[int, ...]] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    copiers: dict[int, str] = field(default_factory=dict)
    noughts: dict[int, str] = field(default_factory=dict)

    def count(self, prefix: str, token: str) -> str:
        """A number, or a vector of numbers, that exists once the token does."""
        if token in self.opaque:
            return self.append(f"{prefix}/size", "SequenceLength", (token,), SCALAR)
        kind = self.type_of(token)
        if token in self.ranked_by_values and (self.form == "shape" or kind.dtype not in COUNTED_TYPES):
            # How many dimensions there are, which is a number however many there are.
            dims = self.append(f"{prefix}/dims", "Shape", (token,), TensorType("int64", (len(kind.shape),)))
            return self.append(f"{prefix}/rank", "Size", (dims,), SCALAR)
        if self.form == "shape" and kind.shape and self.opset >= FIRST_OPSET_WITH_WHOLE_PRODUCTS:
            # The token's shape, or that of a view of it; how many elements none of it are, before there can be views.
            rank = len(kind.shape)
            if token in self.told:
                if rank not in self.noughts:
                    token, _ = self._nothing_of(prefix, token, kind)
                    return self.append(f"{prefix}/size", "Size", (token,), SCALAR)
                token = self.append(f"{prefix}/seen", "Reshape", (token, self.noughts[rank]), kind)
            return self.append(f"{prefix}/dims", "Shape", (token,), TensorType("int64", (rank,)))
        if kind.dtype not in COUNTED_TYPES:
            # A type that can be counted; of no element, so that nothing is copied.
            token, kind = self._nothing_of(prefix, token, kind)
            to_int64 = (("to", int(ir.DataType.INT64)),)
            token = self.append(f"{prefix}/cast", "Cast", (token,), TensorType("int64", kind.shape), to_int64)
        return self.append(f"{prefix}/size", "Size", (token,), SCALAR)

    def _nothing_of(self, prefix: str, token: str, kind: TensorType) -> tuple[str, TensorType]:
        """No element of the token, or the one of a scalar."""
        if not kind.shape:
            return token, kind
        kind = TensorType(kind.dtype, (0, *kind.shape[1:]))
        return self.append(f"{prefix}/none", "Gather", (token, self._zeros(0)), kind), kind

    @property
    def view_type(self) -> str:
        """The op that gives a value in its own buffer."""
        has_axes = self.opset >= FIRST_OPSET_WITH_AXES_INPUT and self.form == "size"
        return "Unsqueeze" if has_axes else "Reshape"

    def view(self, prefix: str, counter: str, value: str) -> tuple[str, str]:
        """The op that gives a value in its own buffer, and its second argument, which exists once the counter does."""
        if self.view_type == "Unsqueeze":
            return "Unsqueeze", self._nought(f"{prefix}/axes", counter, 0)
        rank = len(self.type_of(value).shape)
        if value in self.ranked_by_values:
            raise ModelError(UNHELD.format(value))
        if self.form == "shape":
            return "Reshape", self._nought(f"{prefix}/shape", counter, rank)
        zeros = self._free_zeros(prefix, counter, rank)
        return "Reshape", self.append(f"{prefix}/shape", "Mul", (counter, zeros), TensorType("int64", (rank,)))

    def plus_nothing(self, prefix: str, counter: str, rank: int = 1) -> tuple[str, str]:
        """The op that gives a vector of int64, or one number, as it is; its second argument exists as the counter does.

        That a number waits for must be a number too.
        """
        if rank == 0:
            return "Add", self.append(f"{prefix}/zero", "Mul", (counter, self._zeros()), SCALAR)
        return "Add", self._nought(f"{prefix}/zero", counter, 1)

    def _nought(self, name: str, counter: str, length: int) -> str:
        """So many zeros, which exist once the counter does.

        From a shape by MatMul, which GPUs lack for integers: so it is computed where the shape is, on the host, and
        the runtime does not see what comes of it.
        """
        kind, counted = TensorType("int64", (length,)), self.type_of(counter).shape
        op_type = "MatMul" if counted else "Mul"
        self.noughts[length] = self.append(name, op_type, (counter, self._zeros(*counted, length)), kind)
        return self.noughts[length]

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

    def _zeros(self, *shape: int) -> str:
        """The constant of zeros in a shape, shared by all gates."""
        for name, known in self.zeros.items():
            if known == shape:
                return name
        name = fresh_name(f"remat_zeros_{'_'.join(map(str, shape))}", self.taken)
        self.zeros[name] = shape
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
