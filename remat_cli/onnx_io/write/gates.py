"""Gates: control dependencies, written as ordinary ops, that make every session run the plan's order.

A gate delays an op until its predecessor in the plan has run. One of the values it reads is passed through an op that
shares its buffer and that needs a number computed from a result (the token) of the predecessor:

    n  = Size(token)          reads no data; the runtime does not fold it
    z  = Mul(n, [])           no axes at all
    x' = Unsqueeze(x, z)      x itself, in the same buffer

Because x' differs from x, the runtime cannot merge the op with another copy of it either. Before opset 13, where the
axes of Unsqueeze are an attribute, the last op is Reshape(x, zeros), in which every 0 means "copy this dimension".

On a device beside the host that would cost a copy of the whole token, so that gates have another form there, as the
provider's record says (`core/values/gate_form.py`):

    n  = Shape(token)         on the host, from what the runtime knows of the value once it exists
    z  = MatMul(n, zeros)     a zero for each dimension of x
    x' = Reshape(x, z)        x itself, in the same buffer
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from remat_cli.base.errors import RematError
from remat_cli.base.present import present
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.gate_form import GateForm
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.op_facts import CONTRIB, NCHWC
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.onnx_io.write.gate_helpers import HelperWriter
from remat_cli.onnx_io.write.processor_guard import GUARD_RESULT, Guard
from remat_cli.ort_rules.order import depth_first_order, ready_order


class UnheldError(RematError):
    """An op that reads nothing was to wait for others, and has nothing to wait with."""


def add_gates(scene: Scene) -> GatedOps:
    """Insert gates until a default and a priority-based session both run the ops in the order they stand in.

    Each round follows both orders, holds back every op that comes too early, and gates all of them; rounds repeat
    because gates change the order of exploration. Each round adds a gate, so there are at most as many as ops.

    Raises:
        UnheldError: an op that would run too early reads nothing that can be gated.
    """
    gated: set[int] = set()
    while True:
        gated_ops = write_gates(scene, gated)
        # Steps that read exactly what an earlier run of the same op reads: the runtime would merge the two.
        seen: set[tuple[str, tuple[str, ...]]] = set()
        merged: set[int] = set()
        for draft in gated_ops.drafts:
            if draft.source is not None:
                key = (draft.source.name or "", draft.reads)
                if key in seen:
                    merged.add(draft.step)
                seen.add(key)
        early = _too_early(gated_ops.drafts) | merged
        if scene.layout is not None:
            early &= scene.layout.may_wait
            if early <= gated:
                return gated_ops
        if not early:
            return gated_ops
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
    # Where a gate helper stands, the next step.
    return {next(draft.step for draft in drafts[op:] if draft.step >= 0) for op in early}


@dataclass(frozen=True)
class LayoutGates:
    """Where gates may stand in a model that sessions are to bring into a layout in blocks, as they do with the whole.

    `entrances` are steps that are always gated, which cut tiles; `may_wait` are those that may be, where a gate takes
    nothing out of the layout that belongs there. Gates at entrances ask the size of `tokens`, which lie outside the
    layout; no gate asks it of `lone` values, which the runtime must see read once.
    """

    entrances: frozenset[int]
    may_wait: frozenset[int]
    tokens: frozenset[str]
    lone: frozenset[str]


@dataclass(frozen=True)
class Scene:
    """What gates are written into: ops in the plan's order, and the types of all values by name.

    `weights` are names of constants. `opaque` are values that are no tensors: their size cannot be taken and they
    cannot be passed through. `barriers` are values whose shape must not be known beforehand to those who read them.
    `apart` lists for some steps the values that a gate must separate from it, lest the runtime fuse maker and reader.
    `inputs` and `outputs` are those of the model. Of values in `told` the runtime knows the shape before they exist, or
    finds it elsewhere, which matters to gates of the form `shape` only. All steps wait for the `guard`.
    `layout`: sessions are to make a layout in blocks of it. Lengths of `unsure` values are others in other runs; so is
    how many dimensions those have that are `ranked_by_values`.
    """

    steps: tuple[Draft, ...]
    types: Mapping[str, TensorType]
    weights: Collection[str]
    opaque: Collection[str]
    barriers: frozenset[str]
    apart: Mapping[int, tuple[str, ...]]
    inputs: tuple[str, ...]
    outputs: frozenset[str]
    opset: int
    taken: frozenset[str]
    form: GateForm = "size"
    told: frozenset[str] = frozenset()
    guard: Guard | None = None
    layout: LayoutGates | None = None
    unsure: frozenset[str] = frozenset()
    ranked_by_values: frozenset[str] = frozenset()

    @property
    def guarded(self) -> int | None:
        """The step in front of which the guard stands: the first that reads something, so that it can wait."""
        if self.guard is None:
            return None
        return next((number for number, step in enumerate(self.steps) if step.all_reads), None)


@dataclass(frozen=True)
class GatedOps:
    """Ops with gate helpers between them, in execution order.

    `zeros` are constants to add: name to shape. `types` are those of the helpers' results. `gates` counts gates.
    """

    drafts: tuple[Draft, ...]
    zeros: Mapping[str, tuple[int, ...]]
    types: Mapping[str, TensorType]
    gates: int


def write_gates(scene: Scene, gated: Collection[int]) -> GatedOps:
    """Write gates in front of the steps in `gated`, and wherever else one is needed whatever the order is.

    Always needed are gates in front of the first reader of each barrier, between values and readers that must be kept
    apart, after a step with a result that nobody reads (the runtime frees a buffer after its last reader only, so the
    gate reads it), and at Identity, QuantizeLinear and DequantizeLinear, which the runtime removes, moves or copies.
    """
    last_reads = {name: number for number, step in enumerate(scene.steps) for name in step.all_reads}
    writer = HelperWriter(
        scene.types, scene.opaque, scene.opset, set(scene.taken), scene.form, scene.told, set(scene.ranked_by_values)
    )
    gate_writer = _GateWriter(scene, last_reads, writer, gated)
    always = frozenset[int]() if scene.layout is None else scene.layout.entrances
    for number, step in enumerate(scene.steps):
        gate_writer.add(number, step, number in always or number in gated or number == scene.guarded)
    return GatedOps(tuple(writer.drafts), writer.zeros, writer.types, gate_writer.gates)


MOST_LENGTHS = 16  # that one value says
WORKED_ON = frozenset({"float", "float16", "bfloat16"})
SETTINGS: Mapping[str, tuple[int, ...]] = {"QuantizeLinear": (1,), "DequantizeLinear": (1, 0)}
"""Which inputs must pass through gates at ops that quantize.

The runtime moves these ops past views and copies them for each reader, even without any other optimisation, but only
while their scale is constant. The values to dequantize are gated for the sake of the seal behind the op.
"""


@dataclass
class _GateWriter:
    """What is known while steps are written: `views` are the values to read instead of others from now on.

    `arguments` are what a view of a dequantized model output would take.
    """

    scene: Scene
    last_reads: Mapping[str, int]
    writer: HelperWriter
    gated: Collection[int]
    gates: int = 0
    views: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """The step that makes each value."""
        return {name: number for number, step in enumerate(self.scene.steps) for name in step.makes if name}

    def add(self, number: int, step: Draft, gated: bool) -> None:
        """Append a step with the gates it needs."""
        is_identity = step.op_type == "Identity" and step.domain in ("", "ai.onnx")
        idle = is_identity and step.reads[0] not in self.scene.opaque
        fresh = [name for name in step.all_reads if name in self.scene.barriers and name not in self.views]
        apart = [] if idle else [name for name in self.scene.apart.get(number, ()) if name not in self.scene.barriers]
        settings = [step.reads[place] for place in SETTINGS.get(step.op_type, ())]
        through = list(dict.fromkeys([*fresh, *apart, *settings]))
        # Results of the step before that nobody reads.
        made = self.scene.steps[number - 1].makes if number else ()
        used = (*self.scene.outputs, *self.scene.opaque)
        unread = [name for name in made if name and name not in self.last_reads and name not in used]
        if (gated or unread) and not through and not idle:
            through = [self._choose(step)]
        passage = _Passage(dict(self.views))
        if through or idle:
            passage.token = unread[0] if unread else self._token(number, (through or step.reads)[0])
            if number == self.scene.guarded:
                # Wait for the guard, which waits for the token itself where it is not the first op.
                guard = present(self.scene.guard, "the guard of a file")
                begins_with = self.writer.count(f"remat_gate/{guard.name}", passage.token) if number else guard.rounds
                guard_name = self.writer.fresh(guard.name, GUARD_RESULT)
                self.writer.drafts.append(guard.draft(guard_name, begins_with))
                passage.token = guard_name
            self._pass_through(step, [*unread[1:], *through], passage)
        self.views.update({name: passage.new[name] for name in fresh})
        draft = step.reading(passage.new)
        if idle:
            # The runtime might remove it, so it is a gate of its own: a view that the runtime cannot see through.
            prefix = f"remat_gate/{draft.name}/self"
            counter = self.writer.count(prefix, passage.token)
            op_type, argument = self._passing(step.reads[0], prefix, counter, draft.reads[0])
            self.gates += 1
            draft = replace(draft, op_type=op_type, reads=(draft.reads[0], argument))
        self.writer.drafts.append(draft)
        self._seal(step, passage)

    def _pass_through(self, step: Draft, names: Sequence[str], passage: _Passage) -> None:
        """Write a view of each value that a step reads, each waiting for the one before, the first for the token."""
        for position, name in enumerate(names):
            prefix = f"remat_gate/{step.name}/{position}"
            value, counter = self.views.get(name, name), self.writer.count(prefix, passage.token)
            op_type, argument = self._passing(name, prefix, counter, value)
            kind = self.writer.type_of(value)
            passage.token = self.writer.append(f"{prefix}/value", op_type, (value, argument), kind)
            passage.new[name], passage.arguments[name] = passage.token, argument
            self.writer.ranked_by_values.update({passage.token} if value in self.writer.ranked_by_values else ())
            self.gates += 1

    def _passing(self, name: str, prefix: str, counter: str, value: str) -> tuple[str, str]:
        """The op that gives what is read in place of a tensor as it is, and its second argument."""
        if self._says_lengths(name):
            return self.writer.plus_nothing(prefix, counter, len(self.scene.types[name].shape))
        return self.writer.view(prefix, counter, value)

    def _says_lengths(self, name: str) -> bool:
        """Whether a value may say a shape: the runtime looks through views of constants that do.

        Of computed ones it takes a view for no number at all, and refuses the Resize to sizes that come of it.
        """
        known = self.scene.types[name]
        if known.dtype != "int64" or len(known.shape) > 1:
            return False
        if name in self.scene.weights:
            return len(known.shape) == 1
        is_few = math.prod(known.shape) <= MOST_LENGTHS and name not in self.scene.ranked_by_values
        return is_few and self.scene.form == "size"

    def _seal(self, step: Draft, passage: _Passage) -> None:
        """Let DequantizeLinear have one reader, a view; the runtime would copy the op for each reader more.

        The view waits for what the op waits for, so that it needs no token of its own.
        """
        if step.op_type != "DequantizeLinear":
            return
        name, argument = step.makes[0], passage.arguments[step.reads[0]]
        if name in self.scene.outputs:
            self.arguments[name] = argument
            return
        kind = self.writer.type_of(name)
        helper = f"remat_gate/{step.name}/seal"
        self.views[name] = self.writer.append(helper, self.writer.view_type, (name, argument), kind)

    def _token(self, number: int, value: str) -> str:
        """A result of the step before, if possible one that lives on anyway.

        For the first step the gated value itself, or a model input where that is constant, since what depends on
        constants only is computed when the model is loaded.
        """
        if number == 0:
            constant = value in self.scene.weights and self.scene.inputs
            return self.scene.inputs[0] if constant else self.views.get(value, value)
        if self.arguments.keys() & set(self.scene.steps[number - 1].makes):
            # It makes a model output, which has no reader until a gate waits for it: a view is that one reader.
            step = self.scene.steps[number - 1]
            output, drafts = step.makes[0], self.writer.drafts
            at = next(place for place, draft in enumerate(drafts) if output in draft.makes)
            inner = self.writer.fresh(f"{output}/remat_open", self.writer.type_of(output))
            drafts[at] = replace(drafts[at], makes=(inner, *drafts[at].makes[1:]))
            helper = self.writer.fresh(f"remat_gate/{step.name}/seal", self.writer.type_of(output))
            drafts.insert(at + 1, Draft(helper, self.writer.view_type, (inner, self.arguments.pop(output)), (output,)))
        if self.scene.layout is not None:
            layout, before = self.scene.layout, reversed(self.scene.steps[:number])
            is_held = number in self.gated
            results = (name for step in before for name in step.makes if name)
            fit = (name for name in results if (name not in layout.lone if is_held else name in layout.tokens))
            number = next((self.makers[name] + 1 for name in fit), number)
        made = [name for name in self.scene.steps[number - 1].makes if name]
        tensors = [name for name in made if name not in self.scene.opaque]
        living = [name for name in tensors if self.last_reads.get(name, -1) >= number]
        name = (living or tensors or made)[0]
        return self.views.get(name, name)

    def _choose(self, step: Draft) -> str:
        """The value to gate: the first tensor that is no constant, else the smallest constant.

        Of the runtime's own ops the first one, where it holds numbers to work on: such ops ask for the sizes of their
        weights, scales and biases when they are loaded.
        """
        inputs = [name for name in dict.fromkeys(step.reads) if name and name not in self.scene.opaque]
        inputs += [name for _, name in step.captured if name not in self.scene.opaque and name not in inputs]
        loose = () if self.writer.view_type == "Unsqueeze" else self.scene.ranked_by_values
        computed = [name for name in inputs if name not in self.scene.weights]
        if computed:
            return next((name for name in computed if name not in loose), computed[0])
        if not inputs:
            raise UnheldError(f"op '{step.name}' reads nothing, so that it cannot be held in the plan's order")
        if step.domain == CONTRIB and self.scene.types[inputs[0]].dtype in WORKED_ON:
            return inputs[0]
        return min(inputs, key=lambda name: math.prod(self.scene.types[name].shape))


@dataclass
class _Passage:
    """One step's gates while they are written: what to read instead of what, and the axes or shape each view got."""

    new: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    token: str = ""


# Results that had several readers and now have one: the runtime may fuse maker and reader where it could not before.
#
# Convolution and activation, MatMul and Add, and many longer patterns are fused when the first result has no other
# reader. The optimised model has none of these left, but recomputation makes new ones: a copy of an op often serves a
# single reader. A fused op would run elsewhere in the order and might give other bits, so the two are kept apart.
def newly_lone_reads(model: ir.Model, steps: tuple[Draft, ...]) -> dict[int, tuple[str, ...]]:
    """For each step, by position, the values from which a gate must separate it.

    Those are values that it alone reads although their tensor had several readers before, and results of Transpose
    that lost a reader: the runtime weighs all readers when it decides where to move a Transpose. Ops in the blocked
    layout are left out: they are written by the last fusion there is.
    """
    # How many ops read each tensor in the reference model; being a model output counts as one more.
    before: Counter[str] = Counter(value.name or "" for value in model.graph.outputs)
    for node in model.graph:
        before.update({v.name or "" for v in (*node.inputs, *captured_values(node)) if v is not None})
    maker = {name: step for step in steps for name in step.makes if name}
    now: Counter[str] = Counter(name for step in steps for name in step.all_reads)
    outputs = {value.name for value in model.graph.outputs}
    found: dict[int, tuple[str, ...]] = {}
    for number, step in enumerate(steps):
        apart: list[str] = []
        for name in (name for name in step.all_reads if name in maker and name not in outputs and name in step.reads):
            made_by = maker[name]
            assert made_by.source is not None
            tensor = made_by.source.outputs[made_by.makes.index(name)].name or ""
            may_fuse = now[name] == 1 or made_by.op_type == "Transpose"
            if may_fuse and now[name] < before[tensor] and NCHWC not in (made_by.domain, step.domain):
                apart.append(name)
        if apart:
            found[number] = tuple(apart)
    return found
