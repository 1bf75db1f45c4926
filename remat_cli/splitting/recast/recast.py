"""A model in other ops of equal bits, where those it has stand in the way of bands; ops made again for late readers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.core.schedule.graph import Graph, TensorType
from remat_cli.core.values.profile import OpCost
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.interface import interface_of
from remat_cli.onnx_io.read.layout_scene import SPLIT_OF
from remat_cli.onnx_io.read.normalise import fresh_name, names_in
from remat_cli.onnx_io.read.op_facts import NCHWC
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.assemble import Draft, Parts, assemble, element_types
from remat_cli.splitting.rules.record import LayoutKind
from remat_cli.splitting.tiles.view import ModelView

Found = TypeVar("Found")


@dataclass(frozen=True)
class Recast:
    """A model as bands see it: its view, an order of its ops, their costs, and what they stand for.

    `origin` gives by name of an op that of the op of the whole model, for those that are not the same. `twins` gives
    by name of a tensor that is made again the one that it is equal to.
    """

    view: ModelView
    order: tuple[int, ...]
    costs: tuple[OpCost, ...]
    origin: Mapping[str, str]
    twins: Mapping[str, str]

    @cached_property
    def sources(self) -> frozenset[str]:
        """Tensors that are read where something is made again: bands of them may go where bands of that are kept."""
        again = {self.view.tensors[name].producer for name in self.twins}
        read = {name for op in again if op is not None for name in self.view.reads[op]}
        return frozenset(name for name in read - set(self.twins) if name in self.view.tensors)

    def stands_for(self, op: int) -> str:
        """Name of the op of the whole model that an op is, or is part of."""
        name = self.view.graph.ops[op].name
        return self.origin.get(name, name)


@dataclass(frozen=True)
class Copied:
    """Ops in order that run again just before the first of `readers`, which then read what the copies make."""

    ops: tuple[int, ...]
    readers: frozenset[int]


def with_copies(cast: Recast, copies: Sequence[Copied]) -> Recast:
    """The model with some ops made again."""
    if not copies:
        return cast
    rewrite = Rewrite(cast)
    drafts: list[Draft] = []
    renamed: dict[int, dict[str, str]] = {}
    waiting = list(copies)
    for op in cast.order:
        for copied in [each for each in waiting if op in each.readers]:
            waiting.remove(copied)
            made: dict[str, str] = {}
            for source in copied.ops:
                drafts.append(rewrite.again(source, made))
            for reader in copied.readers:
                renamed.setdefault(reader, {}).update(made)
        drafts.append(rewrite.unchanged(op).reading(renamed.get(op, {})))
    return rewrite.done(drafts)


def layouts_apart(cast: Recast, least_bytes: int) -> Recast:
    """No large tensor need be held in two layouts: it is changed again where it is read in the other one.

    What is read across all bands, by parts of a normalisation, stays in the plain layout, in which it can be cut by
    any channels; others stay as they were made, and each reader of the other layout changes it for itself.
    """
    view, copies, back = cast.view, [], {}
    for op in cast.order:
        layout, name = view.rules[op].layout, view.makes[op][0]
        if layout is None or view.tensors[name].kept:
            continue
        source = view.reads[op][0]
        if view.tensors[name].size_bytes < least_bytes or len(view.readers[source]) < 2:
            continue
        is_same_shape = layout is LayoutKind.PLAIN and view.tensors[name].shape == view.tensors[source].shape
        if is_same_shape and any(_is_crossed(cast, reader) for reader in view.readers[name]):
            back[source] = (view.graph.ops[op].name, name)
            continue
        copies += [Copied((op,), frozenset({reader})) for reader in view.readers[name][1:]]
    # Who reads a tensor in blocks that is kept in the plain layout puts it into blocks again.
    copied = with_copies(cast, copies)
    if not back:
        return copied
    copied_view, rewrite, drafts = copied.view, Rewrite(copied), list[Draft]()
    numbers = {op.name: number for number, op in enumerate(copied_view.graph.ops)}
    for op in copied.order:
        renamed = {}
        for held in dict.fromkeys(copied_view.reads[op]):
            changer, plain = back.get(held, ("", ""))
            if not changer or copied_view.graph.ops[op].name == changer:
                continue
            changing = numbers[changer]
            again, made = rewrite.name(f"{held}/back"), rewrite.name(f"{held}/again")
            rewrite.types[made] = rewrite.types[held]
            rewrite.count(again, changing, copied.costs[changing].time_ns)
            drafts.append(Draft(again, "ReorderInput", (plain,), (made,), NCHWC))
            renamed[held] = made
        drafts.append(rewrite.unchanged(op).reading(renamed))
    return rewrite.done(drafts)


def _is_crossed(cast: Recast, reader: int) -> bool:
    """Whether a reader, or who reads a new shape of it, is part of a normalisation."""
    view = cast.view
    if view.graph.ops[reader].op_type == "Reshape":
        return any(_is_crossed(cast, each) for each in view.readers[view.makes[reader][0]])
    return view.graph.ops[reader].name in cast.origin


def taken_apart(
    cast: Recast,
    found: Mapping[int, Found],
    parts_of: Callable[["Rewrite", Found], Iterable[Draft]],
    dropped: Collection[int] = (),
) -> Recast:
    """The model with the drafts of `parts_of` in place of each op found, and without those that are `dropped`."""
    if not found:
        return cast
    rewrite, drafts = Rewrite(cast), list[Draft]()
    for op in cast.order:
        if op in found:
            drafts += parts_of(rewrite, found[op])
        elif op not in dropped:
            drafts.append(rewrite.unchanged(op))
    return rewrite.done(drafts)


def _captured(node: ir.Node) -> tuple[tuple[str, str], ...]:
    """What bodies of an op read from outside, each under its own name."""
    return tuple((name, name) for value in captured_values(node) if (name := value.name or ""))


@dataclass
class Rewrite:
    """Drafts of another model; what is known of it grows with them.

    `alike` gives by new tensor one that has its lengths at all sizes, but for those that are numbers.
    """

    cast: Recast
    taken: set[str] = field(default_factory=set)
    weights: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    costs: dict[str, OpCost] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)
    alike: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken |= names_in(self.view.model)
        for name, value in self.view.model.graph.initializers.items():
            if value.const_value is not None:
                self.weights[name] = value.const_value
        self.types |= {t.name: TensorType(t.dtype, t.shape) for t in self.view.graph.tensors}
        self.origin |= self.cast.origin
        self.twins |= self.cast.twins

    @property
    def view(self) -> ModelView:
        """The model as it is."""
        return self.cast.view

    def done(self, drafts: Iterable[Draft]) -> Recast:
        """The model of these drafts, which are in the order in which they run."""
        drafts, view = tuple(map(self._told, drafts)), self.view
        parts = Parts(view.model, interface_of(view.model), self.weights, element_types(self.types))
        model = assemble(parts, drafts)
        made = {draft.name: tuple(self.types[name] for name in draft.makes if name) for draft in drafts}
        graph = to_graph(model, made)
        # what runs have taught of ops that both models have
        before, after = ([tensor.name for tensor in each.tensors] for each in (view.graph, graph))
        shared = {op.name: {(before[a], before[b]) for a, b in op.in_place} for op in view.graph.ops}
        ops = list(graph.ops)
        for index, op in enumerate(ops):
            if op.name in shared:
                pairs = tuple((a, b) for a, b in op.in_place if (after[a], after[b]) in shared[op.name])
                ops[index] = msgspec.structs.replace(op, in_place=pairs)
        graph = Graph(tuple(ops), graph.tensors, graph.weights)
        number = {op.name: index for index, op in enumerate(graph.ops)}
        return Recast(
            view.of_other(model, graph),
            tuple(number[draft.name] for draft in drafts),
            tuple(self.costs[op.name] for op in graph.ops),
            self.origin,
            self.twins,
        )

    def _told(self, draft: Draft) -> Draft:
        """A new op with what it stands for, for whoever asks what sessions will make of it."""
        whole = self.origin.get(draft.name)
        return draft if whole is None else replace(draft, notes=(*draft.notes, (SPLIT_OF, whole)))

    def unchanged(self, op: int) -> Draft:
        """An op as it is."""
        node = self.view.nodes[op]
        captured = _captured(node)
        self.costs[node.name or ""] = self.cast.costs[op]
        reads, makes = self.view.reads[op], self.view.makes[op]
        return Draft(node.name or "", node.op_type, reads, makes, node.domain, captured, node)

    def again(self, op: int, made: dict[str, str]) -> Draft:
        """A copy of an op, on copies in `made` where there are any; what it makes is added to them."""
        node = self.view.nodes[op]
        name = self.name(f"{node.name}/again")
        makes = tuple(self.name(f"{result}/again") if result else "" for result in self.view.makes[op])
        draft = Draft(
            name, node.op_type, self.view.reads[op], makes, node.domain, captured=_captured(node), source=node
        )
        draft = draft.reading(made)
        for old, new in zip(self.view.makes[op], makes, strict=True):
            if old:
                self.types[new], made[old] = self.types[old], new
                self.twins[new] = self.twins.get(old, old)
        self.count(name, op, self.cast.costs[op].time_ns, self.cast.costs[op].workspace_bytes)
        return draft

    def count(self, name: str, op: int, time_ns: int, workspace_bytes: int = 0) -> None:
        """Take note of what a new op costs, and of the op that it stands for."""
        self.costs[name] = OpCost(name, time_ns, workspace_bytes)
        self.origin[name] = self.cast.stands_for(op)

    def constant(self, array: npt.NDArray[np.generic], wanted: str) -> str:
        """A new weight; its name."""
        name = self.name(wanted)
        self.weights[name] = ir.tensor(np.ascontiguousarray(array), name=name)
        return name

    def name(self, wanted: str) -> str:
        """A name that nothing has yet."""
        return fresh_name(wanted, self.taken)
