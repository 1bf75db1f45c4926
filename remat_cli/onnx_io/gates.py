"""Gates: control dependencies, written as ordinary ops, that make every session run the plan's order.

A gate delays an op until its predecessor in the plan has run. One of the values it reads is passed through an op that
shares its buffer and that needs a number computed from a result (the token) of the predecessor:

    n  = Size(token)          reads no data; the runtime does not fold it
    z  = Mul(n, [])           no axes at all
    x' = Unsqueeze(x, z)      x itself, in the same buffer

Because x' differs from x, the runtime cannot merge the op with another copy of it either. Before opset 13, where the
axes of Unsqueeze are an attribute, the last op is Reshape(x, zeros), in which every 0 means "copy this dimension".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from remat_cli.core.errors import RematError
from remat_cli.core.graph import TensorType
from remat_cli.onnx_io.default_order import depth_first_order, ready_order
from remat_cli.onnx_io.draft import Draft
from remat_cli.onnx_io.normalise import fresh_name

FIRST_OPSET_WITH_AXES_INPUT = 13
SCALAR = TensorType("int64", ())
# Element types that the runtime's Size takes; for others it would insert a conversion of the whole tensor.
COUNTED_TYPES = frozenset(
    {"float", "double", "bool", "string", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)


@dataclass(frozen=True)
class Scene:
    """What gates are written into: ops in the plan's order, and the types of all values by name.

    `weights` are names of constants. `opaque` are values that are no tensors: their size cannot be taken and they
    cannot be passed through. `barriers` are values whose shape must not be known beforehand to those who read them.
    `apart` lists for some steps the values that a gate must separate from it, lest the runtime fuse maker and reader.
    """

    steps: tuple[Draft, ...]
    types: Mapping[str, TensorType]
    weights: Collection[str]
    opaque: Collection[str]
    barriers: frozenset[str]
    apart: Mapping[int, tuple[str, ...]]
    opset: int
    taken: frozenset[str]


@dataclass(frozen=True)
class Woven:
    """Ops with gate helpers between them, in execution order.

    `zeros` are constants to add: name to length. `types` are those of the helpers' results. `gates` counts gates.
    """

    drafts: tuple[Draft, ...]
    zeros: Mapping[str, int]
    types: Mapping[str, TensorType]
    gates: int


def add_gates(scene: Scene) -> Woven:
    """Insert gates until a default and a priority-based session both run the ops in the order they stand in.

    Each round follows both orders, holds back every op that comes too early, and gates all of them; rounds repeat
    because gates change the order of exploration. Each round adds a gate, so there are at most as many as ops.

    Raises:
        RematError: an op that would run too early reads nothing that can be gated.
    """
    gated: set[int] = set()
    while True:
        woven = weave(scene, gated)
        early = _too_early(woven.drafts) | _merged(woven.drafts)
        if not early:
            return woven
        if early <= gated:
            raise RematError(f"op '{scene.steps[min(early)].name}' cannot be held in the plan's order: report this")
        gated |= early


def _too_early(drafts: Sequence[Draft]) -> set[int]:
    """Steps that a default or a priority-based session would run before their turn."""
    wirings = [draft.wiring for draft in drafts]
    early: set[int] = set()

    def hold(op: int, place: int) -> int | None:
        if op == place:
            return None
        early.add(op)
        return op - 1

    depth_first_order(wirings, hold)
    if not early:
        order = ready_order(wirings)
        early = {op for place, op in enumerate(order) if op > place}
    return {_step_of(drafts, op) for op in early}


def _step_of(drafts: Sequence[Draft], index: int) -> int:
    """The step at a place, or the next one if a gate helper stands there."""
    return next(draft.step for draft in drafts[index:] if draft.step >= 0)


def _merged(drafts: Sequence[Draft]) -> set[int]:
    """Steps that read exactly what an earlier run of the same op reads: the runtime would merge the two."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    merged: set[int] = set()
    for draft in drafts:
        if draft.source is not None:
            key = (draft.source.name or "", draft.reads)
            if key in seen:
                merged.add(draft.step)
            seen.add(key)
    return merged


def weave(scene: Scene, gated: Collection[int]) -> Woven:
    """Write gates in front of the steps in `gated`, and one in front of the first reader of each barrier."""
    last_reads = {name: number for number, step in enumerate(scene.steps) for name in step.all_reads}
    weaver = _Weaver(scene, last_reads, set(scene.taken))
    for number, step in enumerate(scene.steps):
        weaver.add(number, step, number in gated)
    return Woven(tuple(weaver.drafts), weaver.zeros, weaver.types, weaver.gates)


@dataclass
class _Weaver:
    """Drafts while they are written.

    `last_reads` is the last step that reads a value; `views` are the values to read instead of those behind a
    barrier; `copiers` are vectors of zeros of unknown length, by their length.
    """

    scene: Scene
    last_reads: Mapping[str, int]
    taken: set[str]
    drafts: list[Draft] = field(default_factory=list)
    zeros: dict[str, int] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    gates: int = 0
    views: dict[str, str] = field(default_factory=dict)
    copiers: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, step: Draft, gated: bool) -> None:
        """Append a step, gated if asked, or to set it apart, or as the first to read a value behind a barrier."""
        fresh = [name for name in step.all_reads if name in self.scene.barriers and name not in self.views]
        apart = [name for name in self.scene.apart.get(number, ()) if name not in self.scene.barriers]
        through = [*fresh, *apart]
        if gated and not through:
            through = [self._choose(step)]
        idle = _is_idle(step) and step.reads[0] not in self.scene.opaque
        new = self._gates(number, step, fresh if idle else through)
        self.views.update({name: new[name] for name in fresh})
        self.drafts.append(self._opaque_view(number, step, new, bool(fresh)) if idle else step.reading(new))

    def _gates(self, number: int, step: Draft, through: list[str]) -> dict[str, str]:
        """Write a view of each value in `through`, one behind the other; returns what to read instead of what."""
        new = dict(self.views)
        token = self._token(number, self.views.get(through[0], through[0])) if through else ""
        for position, name in enumerate(through):
            prefix = f"remat_gate/{step.name}/{position}"
            value = self.views.get(name, name)
            op_type, argument = self._view(prefix, self._counter(prefix, token), value)
            token = new[name] = self._helper(f"{prefix}/value", op_type, (value, argument), self._type(value))
            self.gates += 1
        return new

    def _opaque_view(self, number: int, step: Draft, new: Mapping[str, str], fresh: bool) -> Draft:
        """An Identity, which the runtime might remove, as a gate of its own: a view that it cannot see through.

        `fresh`: the value was gated for this very step, so that it serves as token.
        """
        prefix = f"remat_gate/{step.name}/self"
        value = new.get(step.reads[0], step.reads[0])
        token = value if fresh else self._token(number, value)
        op_type, argument = self._view(prefix, self._counter(prefix, token), value)
        self.gates += 1
        return replace(step, op_type=op_type, reads=(value, argument))

    def _choose(self, step: Draft) -> str:
        """The value to gate: the first tensor that is no constant, else the smallest constant."""
        inputs = [name for name in dict.fromkeys(step.reads) if name and name not in self.scene.opaque]
        inputs += [name for _, name in step.captured if name not in self.scene.opaque and name not in inputs]
        computed = [name for name in inputs if name not in self.scene.weights]
        if computed:
            return computed[0]
        if not inputs:
            raise RematError(f"op '{step.name}' reads nothing, so that it cannot be held in the plan's order")
        return min(inputs, key=lambda name: _elements(self.scene.types[name]))

    def _token(self, number: int, value: str) -> str:
        """A result of the step before, if possible one that lives on anyway; the gated value itself at the start."""
        if number == 0:
            return value
        made = [name for name in self.scene.steps[number - 1].makes if name]
        tensors = [name for name in made if name not in self.scene.opaque]
        living = [name for name in tensors if self.last_reads.get(name, -1) >= number]
        return (living or tensors or made)[0]

    def _counter(self, prefix: str, token: str) -> str:
        """A number that exists once the token does."""
        if token in self.scene.opaque:
            return self._helper(f"{prefix}/size", "SequenceLength", (token,), SCALAR)
        kind = self._type(token)
        if kind.dtype not in COUNTED_TYPES:
            token = self._nothing_of(prefix, token, kind)
        return self._helper(f"{prefix}/size", "Size", (token,), SCALAR)

    def _nothing_of(self, prefix: str, token: str, kind: TensorType) -> str:
        """No element of the token, or the one of a scalar, in a type that can be counted without a copy of it all."""
        if kind.shape:
            kind = TensorType(kind.dtype, (0, *kind.shape[1:]))
            token = self._helper(f"{prefix}/none", "Gather", (token, self._zeros(0)), kind)
        kind = TensorType("int64", kind.shape)
        return self._helper(f"{prefix}/cast", "Cast", (token,), kind, (("to", int(ir.DataType.INT64)),))

    def _view(self, prefix: str, counter: str, value: str) -> tuple[str, str]:
        """The op that gives a value in its own buffer, and its second argument, which exists once the counter does."""
        if self.scene.opset >= FIRST_OPSET_WITH_AXES_INPUT:
            return "Unsqueeze", self._helper(
                f"{prefix}/axes", "Mul", (counter, self._zeros(0)), TensorType("int64", (0,))
            )
        rank = len(self._type(value).shape)
        zeros = self._free_zeros(prefix, counter, rank)
        return "Reshape", self._helper(f"{prefix}/shape", "Mul", (counter, zeros), TensorType("int64", (rank,)))

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
        size = self._helper(f"{prefix}/copy{rank}", "Mul", (counter, one), TensorType("int64", (1,)))
        self.copiers[rank] = self._helper(f"{prefix}/zeros{rank}", "Reshape", (self._zeros(rank), size), kind)
        return self.copiers[rank]

    def _zeros(self, length: int) -> str:
        """The constant of that many zeros, shared by all gates."""
        for name, known in self.zeros.items():
            if known == length:
                return name
        name = fresh_name(f"remat_zeros_{length}", self.taken)
        self.zeros[name] = length
        return name

    def _helper(
        self,
        name: str,
        op_type: str,
        reads: tuple[str, ...],
        kind: TensorType,
        attributes: tuple[tuple[str, int], ...] = (),
    ) -> str:
        """Append a helper; returns its result, which has the helper's name."""
        name = fresh_name(name, self.taken)
        self.drafts.append(Draft(name, op_type, reads, (name,), attributes=attributes))
        self.types[name] = kind
        return name

    def _type(self, name: str) -> TensorType:
        return self.types[name] if name in self.types else self.scene.types[name]


def _is_idle(step: Draft) -> bool:
    return step.op_type == "Identity" and step.domain in ("", "ai.onnx")


def _elements(kind: TensorType) -> int:
    count = 1
    for dim in kind.shape:
        count *= dim
    return count
