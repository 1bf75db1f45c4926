"""Recurrent networks at one size, some steps of time after others: each stretch begins with the states that were left.

An op holds the gates of all steps at once. Where parts along time have the bits of the whole (`rules/recurrent.py`), so
have the stretches, one op each.

DynamicQuantizeLSTM quantises what it reads by the range of all of it, and what it remembers anew at each step, by the
range of those items that threads take together. So each stretch reads one item more, of no steps, in which both ends of
the range of all stand; that remembers zeros, which are in every range. Measured with ONNX Runtime 1.32.0 (x86-64 with
AVX-512; 1, 2, 4 and 8 threads): the bits of the whole where threads share items with that one as they do without it,
which is so of one item, and of up to three whose states are longer than 256, as threads do not share these at all. Of
others most stretches differ: they stay whole, and all do in files for other processors.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.op_facts import CONTRIB, ONNX
from remat_cli.onnx_io.write.assemble import Draft
from remat_cli.splitting.recast.recast import Recast, Rewrite, taken_apart
from remat_cli.splitting.rules.recurrent import BATCH, LENGTHS, STATES, TIME, HandedOn
from remat_cli.splitting.rules.table import rule_of, slice_in_turn
from remat_cli.splitting.tiles.op_view import OpView, Slab
from remat_cli.splitting.tiles.view import ModelView

QUANTISED, SCALES = (CONTRIB, "DynamicQuantizeLSTM"), (1, 2, 8, 9, 10, 11)  # and inputs that are to be constants
LSTM_STATES = HandedOn(tuple((place, at + 1) for at, place in enumerate(STATES)), is_backwards=False)
READ = 2  # axis of what is read in each step
ITEMS_OF_ALL, ITEMS_OF_STATES = 2, 1  # axes of items in what is made of all steps, and in states
SINCE = 11  # opset: bounds of a Slice and a Pad are inputs
AXES_INPUT_SINCE = 18  # opset: before it reductions had their axes as an attribute
SHARED_STATES, UNSHARED_ITEMS = 256, 3  # threads share two items and more of states so long; so many of longer, never
MOST_STRETCHES, SHARE = 16, 4  # a stretch takes such a part of what is little
FLOAT = "float"
Drafts = Generator[Draft]


def steps_apart(cast: Recast, least_bytes: int, forbidden: frozenset[str]) -> Recast:
    """The model in which recurrent networks that take so many bytes for themselves run in stretches that take less."""
    view, found = cast.view, dict[int, int]()
    for op in cast.order:
        taken = cast.costs[op].workspace_bytes
        if taken < least_bytes or view.graph.ops[op].name in forbidden:
            continue
        stretches = min(MOST_STRETCHES, 1 + SHARE * taken // max(1, least_bytes))
        if comes_in_steps(view, op, stretches):
            found[op] = stretches
    return taken_apart(cast, {op: (op, count) for op, count in found.items()}, _parts)


def comes_in_steps(view: ModelView, op: int, stretches: int = 2) -> bool:
    """Whether an op is a recurrent network of which so many stretches have the bits of the whole."""
    spec = view.ops[op]
    handed = handed_on(spec)
    if handed is None or op in view.of_value_lengths or view.model.graph.opset_imports.get(ONNX, 1) < SINCE:
        return False
    steps = spec.input_shape(0)[TIME]
    if steps < stretches:
        return False
    if spec.key == QUANTISED:
        return True
    return all(slice_in_turn(spec, slab) is not None for slab in _slabs(steps, stretches))


def _slabs(steps: int, stretches: int) -> list[Slab]:
    """At most so many stretches, all but the last as long."""
    length = -(-steps // stretches)
    return [Slab(TIME, start, min(steps, start + length)) for start in range(0, steps, length)]


def handed_on(spec: OpView) -> HandedOn | None:
    """The states that stretches hand on; None of an op that has none, or has other bits in stretches."""
    if spec.key != QUANTISED:
        hands_on = rule_of(*spec.key).hands_on
        return None if hands_on is None else hands_on(spec)
    is_plain = spec.text("direction", "forward") == "forward" and not spec.integer("layout", 0)
    _, items, read = spec.input_shape(0)
    is_shared = spec.integer("hidden_size", 0) <= SHARED_STATES
    is_known = items == 1 or (items <= UNSHARED_ITEMS and not is_shared)
    is_whole = not is_plain or not is_known or read == 1 or spec.is_portable or spec.outputs[0] is None
    given = [place for place in SCALES if spec.has_input(place)]
    if is_whole or spec.has_input(LENGTHS) or not all(spec.is_fixed(place) for place in given):
        return None
    return LSTM_STATES


@dataclass(frozen=True)
class _Stretches:
    """Drafts of the stretches of one op."""

    rewrite: Rewrite
    op: int
    handed: HandedOn
    beside: dict[int, str] = field(default_factory=dict)

    @property
    def spec(self) -> OpView:
        """The op."""
        return self.rewrite.view.ops[self.op]

    @property
    def name(self) -> str:
        """Of the op."""
        return self.rewrite.view.graph.ops[self.op].name

    @property
    def source(self) -> str:
        """What it reads in each step."""
        return self.rewrite.view.reads[self.op][0]

    @property
    def has_ends(self) -> bool:
        """Whether stretches read both ends of the range of all, as one item more."""
        return self.spec.key == QUANTISED

    def named(self, what: str, shape: Sequence[int]) -> str:
        """A name of a new tensor."""
        name = self.rewrite.name(f"{self.rewrite.view.makes[self.op][0]}/{what}")
        self.rewrite.types[name] = TensorType(FLOAT, tuple(shape))
        return name

    def numbers(self, values: Sequence[int], what: str, kind: type = np.int64) -> str:
        """A constant."""
        return self.rewrite.constant(np.array(values, kind), f"{self.rewrite.view.makes[self.op][0]}/{what}")

    def draft(
        self, op_type: str, reads: Sequence[str], made: str, attributes: Sequence[ir.Attr] = (), name: str = ""
    ) -> Draft:
        """An op that takes next to no time."""
        name = name or self.rewrite.name(f"{made}/{op_type}")
        self.rewrite.count(name, self.op, 0)
        return Draft(name, op_type, tuple(reads), (made,), changed=tuple(attributes))

    def part(self, source: str, made: str, slab: Slab) -> Draft:
        """Some positions of a tensor."""
        bounds = ((slab.start, "start"), (slab.stop, "stop"), (slab.axis, "axis"))
        return self.draft("Slice", (source, *(self.numbers([each], what) for each, what in bounds)), made)

    def reduced(self, op_type: str, source: str, axes: Sequence[int], made: str) -> Draft:
        """The least or greatest along axes, as the model's version of ONNX says it."""
        if self.rewrite.view.model.graph.opset_imports.get(ONNX, 1) < AXES_INPUT_SINCE:
            return self.draft(op_type, (source,), made, (ir.AttrInt64s("axes", axes),))
        return self.draft(op_type, (source, self.numbers(axes, "axes")), made)

    def joined(self, parts: Sequence[str], made: str, axis: int, name: str = "") -> Draft:
        """Tensors behind each other."""
        return self.draft("Concat", parts, made, (ir.AttrInt64("axis", axis),), name)

    def ends(self) -> Drafts:
        """The least and the greatest number of all that is read; drafts, of which the last makes both."""
        steps, items, _ = self.rewrite.types[self.source].shape
        of_lines, of_all = [], []
        for op_type in ("ReduceMin", "ReduceMax"):
            of_lines.append(self.named(op_type, (steps, items, 1)))
            yield self.reduced(op_type, self.source, [READ], of_lines[-1])
        both = self.named("ends_of_lines", (steps, items, 2))
        yield self.joined(of_lines, both, READ)
        for op_type in ("ReduceMin", "ReduceMax"):
            of_all.append(self.named(f"{op_type}_of_all", (1, 1, 1)))
            yield self.reduced(op_type, both, [TIME, BATCH, READ], of_all[-1])
        yield self.joined(of_all, self.named("ends", (1, 1, 2)), READ)

    def given(self, reads: list[str]) -> Drafts:
        """What each stretch reads beside its steps; states that are given get one item more, of zeros."""
        if not self.has_ends:
            return
        for place, _ in self.handed.states:
            if reads[place]:
                _, items, size = self.spec.input_shape(place)
                nothing = self.rewrite.constant(np.zeros((1, 1, size), np.float32), f"{reads[place]}/nothing")
                made = self.named(f"begins_{place}", (1, items + 1, size))
                yield self.joined((reads[place], nothing), made, BATCH)
                reads[place] = made

    def read(self, slab: Slab, ends: str) -> Drafts:
        """The steps of a stretch; the last draft makes them. Stretches as long share the item that holds both ends."""
        _, items, read = self.rewrite.types[self.source].shape
        part = self.named("read", (slab.extent, items, read))
        yield self.part(self.source, part, slab)
        if not self.has_ends:
            return
        if slab.extent not in self.beside:
            self.beside[slab.extent] = self.named("beside", (slab.extent, 1, read))
            further = self.numbers([0, 0, 0, slab.extent - 1, 0, read - 2], "further")
            yield self.draft("Pad", (ends, further), self.beside[slab.extent])
        both = (part, self.beside[slab.extent])
        yield self.joined(both, self.named("read_beside", (slab.extent, items + 1, read)), BATCH)

    def run(self, slab: Slab, reads: list[str]) -> Draft:
        """The op on a stretch; `reads` then begin with the states that it leaves."""
        view, node, spec = self.rewrite.view, self.rewrite.view.nodes[self.op], self.spec
        steps, _, items, size = spec.output_shape
        if self.has_ends:
            items += 1
            reads[LENGTHS] = self.numbers([*[slab.extent] * (items - 1), 0], "lengths", np.int32)
        makes = [self.named("stretch", (slab.extent, 1, items, size)), "", ""][: 1 + len(self.handed.states)]
        for _, at in self.handed.states:
            makes[at] = self.named(f"left_{at}", (1, items, size))
        name, cost = self.rewrite.name(f"{view.graph.ops[self.op].name}/stretch"), self.rewrite.cast.costs[self.op]
        more = items / spec.output_shape[ITEMS_OF_ALL]
        taken_bytes = int(cost.workspace_bytes * more) * slab.extent // steps
        self.rewrite.count(name, self.op, cost.time_ns * slab.extent // steps, taken_bytes)
        draft = Draft(name, node.op_type, tuple(reads), tuple(makes), node.domain, source=node)
        for place, at in self.handed.states:
            reads[place] = makes[at]
        return draft

    def own(self, made: str, result: str, axis: int) -> Drafts:
        """What of a stretch or of states is of the items themselves."""
        shape = self.rewrite.types[made].shape
        yield self.part(made, result, Slab(axis, 0, shape[axis] - 1))


def _parts(rewrite: Rewrite, found: tuple[int, int]) -> Drafts:
    """Drafts of the stretches, each with the states that the one before it left, and all of them joined."""
    op, count = found
    spec, makes = rewrite.view.ops[op], rewrite.view.makes[op]
    these = _Stretches(rewrite, op, present(handed_on(spec), "the states that an op hands on"))
    slabs = _slabs(spec.input_shape(0)[TIME], count)
    reads, ends, made = [*rewrite.view.reads[op]], "", list[str]()
    reads += [""] * (STATES[len(these.handed.states) - 1] + 1 - len(reads))
    for draft in these.ends() if these.has_ends else ():
        ends = draft.makes[0]
        yield draft
    yield from these.given(reads)
    for slab in reversed(slabs) if these.handed.is_backwards else slabs:
        for draft in these.read(slab, ends):
            reads[0] = draft.makes[0]
            yield draft
        run = these.run(slab, reads)
        yield run
        made.append(run.makes[0])
        if these.has_ends:
            shape = rewrite.types[made[-1]].shape
            made[-1] = these.named("own", (*shape[:ITEMS_OF_ALL], shape[ITEMS_OF_ALL] - 1, *shape[ITEMS_OF_ALL + 1 :]))
            yield from these.own(run.makes[0], made[-1], ITEMS_OF_ALL)
    yield these.joined(made[::-1] if these.handed.is_backwards else made, makes[0], TIME, these.name)
    for place, at in these.handed.states:
        if at < len(makes) and makes[at]:
            if these.has_ends:
                yield from these.own(reads[place], makes[at], ITEMS_OF_STATES)
            else:
                yield these.draft("Identity", (reads[place],), makes[at])
