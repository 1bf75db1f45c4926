"""From a model and its tiled regions to the split model, the order of its tiles, and where its sums may differ."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.schedule.graph import Graph, TensorType
from remat_cli.core.schedule.orders import ranked_order
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.interface import interface_of
from remat_cli.onnx_io.read.layout_scene import SPLIT_OF
from remat_cli.onnx_io.read.normalise import fresh_name, names_in
from remat_cli.onnx_io.write.assemble import Draft, Parts, assemble, declare, element_types
from remat_cli.splitting.tiles.op_view import Shape, Slab
from remat_cli.splitting.tiles.steps import (
    AddStep,
    CutStep,
    FillStep,
    JoinStep,
    Piece,
    RunStep,
    Step,
    TiledRegion,
    WholeStep,
    piece_shape,
    reads_of,
)
from remat_cli.splitting.tiles.view import ModelView

TILE = "remat.tile"  # metadata of a tile's op: which it is of the tiles of what it is split of
SLICE_INPUTS_SINCE = 10  # before this opset Slice had attributes
FILL_OP, FILL_SINCE = "TensorScatter", 24  # writes into its first input, in place; since that opset
HEIGHT, WIDTH = 2, 3
FOLDS = (HEIGHT, WIDTH)


def split_model(view: ModelView, order: Sequence[int], regions: Sequence[TiledRegion]) -> ir.Model:
    """The model with each region's ops replaced by its steps; weights are shared.

    `order` are all op ids in a topological order in which the ops of a region stand together.
    """
    return split_with_types(view, order, regions)[0]


def split_with_types(
    view: ModelView, order: Sequence[int], regions: Sequence[TiledRegion]
) -> tuple[ir.Model, Mapping[str, TensorType]]:
    """The same with the type of each value that its ops make.

    The model says the shapes of them all but of those whose length is another one in the next run.
    """
    writer = _Writer(view, names_in(view.model))
    drafts = tuple(writer.drafts(order, regions))
    parts = Parts(view.model, interface_of(view.model), writer.weights, element_types(writer.types))
    model = assemble(parts, drafts)
    declare(model, {name: kind.shape for name, kind in writer.types.items() if name not in view.value_lengths})
    return model, writer.types


@dataclass
class _Writer:
    """Drafts of the split model's nodes; `weights` and `types` grow with what they read and make.

    `buffers` are the values that exits are filled into, before they get their own shape. Pieces that lie in blocks are
    cut and joined in another shape: `folded` gives, by piece and axis, the value that has it; those in `unmade` have
    no value in their own shape as yet.
    """

    view: ModelView
    taken: set[str]
    weights: dict[str, ir.TensorProtocol] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[tuple[str, Shape, bytes], str] = field(default_factory=dict)
    buffers: dict[Piece, str] = field(default_factory=dict)
    folded: dict[tuple[str, int | None], str] = field(default_factory=dict)
    unmade: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.view.model.graph.initializers.items():
            if value.const_value is not None:
                self.weights[name] = value.const_value
        self.types = {t.name: TensorType(t.dtype, t.shape) for t in self.view.graph.tensors if t.producer is not None}

    def drafts(self, order: Sequence[int], regions: Sequence[TiledRegion]) -> Iterator[Draft]:
        """Nodes in a topological order."""
        region_of = {op: region for region in regions for op in region.ops}
        for op in order:
            if op not in region_of:
                yield self._unchanged(op)
            elif op == region_of[op].ops[0]:
                for step in region_of[op].steps:
                    yield from self._step(step)

    def _unchanged(self, op: int) -> Draft:
        node = self.view.nodes[op]
        captured = tuple((name, name) for value in captured_values(node) if (name := value.name or ""))
        return Draft(
            node.name or "", node.op_type, self.view.reads[op], self.view.makes[op], node.domain, captured, node
        )

    def _step(self, step: Step) -> Iterator[Draft]:
        if isinstance(step, RunStep | WholeStep):
            for piece in reads_of(step):
                yield from self._closed(piece)
            yield self._run(step) if isinstance(step, RunStep) else self._unchanged(step.op)
        elif isinstance(step, CutStep):
            yield from self._cut(step)
        elif isinstance(step, FillStep):
            yield from self._fill(step)
        elif isinstance(step, AddStep):
            self._declare(step.result.name, step.result.tensor, self._shape(step.result))
            yield Draft(self._fresh(step.result.name), "Add", (step.before.name, step.part.name), (step.result.name,))
        else:
            yield from self._join(step)

    def _run(self, step: RunStep) -> Draft:
        op = step.work.op
        node = self.view.nodes[op]
        for piece in step.makes:
            if piece is not None:
                self._declare(piece.name, piece.tensor, self._shape(piece))
        return Draft(
            name=fresh_name(f"{node.name}/tile_{step.tile}", self.taken),
            op_type=node.op_type,
            domain=node.domain,
            reads=tuple(self._read(step, position) for position in range(len(step.reads))),
            makes=tuple("" if piece is None else piece.name for piece in step.makes),
            source=node,
            changed=tuple(ir.convenience.convert_attributes(step.work.sliced.attributes)),
            # a tile of a tile is one of the same whole op
            notes=((SPLIT_OF, node.metadata_props.get(SPLIT_OF, node.name or "")), (TILE, str(step.tile))),
        )

    def _read(self, step: RunStep, position: int) -> str:
        """Name of what a tile reads as one of its inputs."""
        sliced, piece = step.work.sliced, step.reads[position]
        if piece is not None and position not in sliced.constants:
            return piece.name
        name = self.view.reads[step.work.op][position]
        if position in sliced.constants:  # in place of a weight, or of what is computed
            return self._constant(sliced.constants[position], f"{name}/tile_{step.tile}")
        if not name:
            return ""
        need, tensor = sliced.needs[position], self.weights[name]
        if need is None or need.extent == tensor.shape[need.axis]:
            return name
        part = tensor.numpy()[(slice(None),) * need.axis + (slice(need.start, need.stop),)]
        return self._constant(np.ascontiguousarray(part), f"{name}/rows_{need.start}_{need.stop}")

    def _cut(self, step: CutStep) -> Iterator[Draft]:
        """Slice; in another shape where the tensor lies in blocks."""
        source, result = step.source, step.result
        if source in self.buffers and source.name != source.tensor:  # not yet, or no longer, a tensor itself
            own = present(result.slab, "the slab of what is cut out of a buffer")
            cut, lines = self._between(f"{result.name}/lines"), self._lines(source, own.axis)
            yield self._slice(self.buffers[source], Slab(2, own.start, own.stop), cut, source.tensor, lines)
            yield self._reshape(cut, self._shape(result), result.name, result.tensor)
            return
        is_across = result.across is not None and source.across is None
        slab, within = (result.across, source.across) if is_across else (result.slab, source.slab)
        assert slab is not None
        assert result.slab is not None
        first = 0 if within is None else within.start
        part = Slab(slab.axis, slab.start - first, slab.stop - first)
        if source.tensor not in self.view.blocked:
            yield self._slice(source.name, part, result.name, source.tensor, self._shape(source))
            return
        fold = next((axis for axis in (slab.axis, result.slab.axis) if axis in FOLDS), None)
        opened = yield from self._opened(source, fold)
        cut = result.name if fold is None else self._between(f"{result.name}/cut")
        shape = self._folded(source, fold)
        if part.axis == fold:
            part = part._replace(axis=2)
        elif fold is not None and part.axis > 0:  # channels, of which whole blocks lie one after the other
            each = self._shape(source)[HEIGHT] if fold == WIDTH else 1
            block = self.view.channel_block
            part = Slab(1, part.start // block * each, part.stop // block * each)
        yield self._slice(opened, part, cut, source.tensor, shape)
        self._have(result, fold, cut)

    def _join(self, step: JoinStep) -> Iterator[Draft]:
        """Concat; in another shape where the tensor lies in blocks."""
        slab, result = present(step.parts[0].slab, "the slab of a part that is joined"), step.result
        if result.tensor not in self.view.blocked:
            yield self._concat([part.name for part in step.parts], slab.axis, result.name, result)
            return
        fold = slab.axis if slab.axis in FOLDS else None
        opened = []
        for part in step.parts:
            opened.append((yield from self._opened(part, fold)))
        joined = result.name if fold is None else self._between(f"{result.name}/joined")
        axis = slab.axis if fold is None else 2
        yield self._concat(opened, axis, joined, result, self._folded(result, fold))
        self._have(result, fold, joined)
        if result.slab is None:
            yield from self._closed(result)

    def _opened(self, piece: Piece, fold: int | None) -> Generator[Draft, None, str]:
        """Name of a value of a piece in blocks, in the shape in which it can be cut along a spatial axis."""
        key = (piece.name, fold)
        if fold is None or key not in self.folded:
            yield from self._closed(piece)
        if fold is None:
            return piece.name
        if key not in self.folded:
            self.folded[key] = self._between(f"{piece.name}/open_{fold}")
            yield self._reshape(piece.name, self._folded(piece, fold), self.folded[key], piece.tensor)
        return self.folded[key]

    def _have(self, piece: Piece, fold: int | None, name: str) -> None:
        """Take note that a piece has a value in this shape only."""
        if fold is not None:
            self.folded[piece.name, fold] = name
            self.unmade[piece.name] = fold

    def _closed(self, piece: Piece) -> Iterator[Draft]:
        """The value of a piece in its own shape, where there is none yet."""
        fold = self.unmade.pop(piece.name, None)
        if fold is not None:
            yield self._reshape(self.folded[piece.name, fold], self._shape(piece), piece.name, piece.tensor)

    def _folded(self, piece: Piece, fold: int | None) -> Shape:
        shape = self._shape(piece)
        return shape if fold is None else folded_shape(shape, fold, self.view.channel_block)[0]

    def _fill(self, step: FillStep) -> Iterator[Draft]:
        """Write a part into the buffer, both seen as [1, what lies before the axis, the axis, what lies behind]."""
        slab, result = present(step.part.slab, "the slab of a part that fills a buffer"), step.result
        part = self._lines(step.part, slab.axis)
        whole = self._lines(result, slab.axis)
        opened, buffer = self._between(f"{step.part.name}/lines"), self._between(f"{result.name}/lines")
        self.buffers[result] = buffer
        yield from self._closed(step.part)
        yield self._reshape(step.part.name, part, opened, result.tensor)
        self._declare(buffer, result.tensor, whole)
        if step.before is not None and step.before.name == step.before.tensor:  # another tensor, to be overwritten
            self.buffers[step.before] = self._between(f"{step.before.name}/lines")
            yield self._reshape(step.before.name, whole, self.buffers[step.before], step.before.tensor)
        if step.before is None:
            after = self._constant(np.array([*[0] * 6, whole[2] - part[2], 0], np.int64), "remat/pads")
            yield Draft(self._fresh(buffer), "Pad", (opened, after), (buffer,))
        else:
            start = self._constant(np.array([slab.start], np.int64), f"remat/start_{slab.start}")
            reads = (self.buffers[step.before], opened, start)
            yield Draft(self._fresh(buffer), FILL_OP, reads, (buffer,), attributes=(("axis", 2),))
        if step.is_last:
            yield self._reshape(buffer, self._shape(result), result.name, result.tensor)

    def _lines(self, piece: Piece, axis: int) -> Shape:
        shape = self._shape(piece)
        if piece.tensor in self.view.blocked:
            shape, axis = folded_shape(shape, axis, self.view.channel_block)
        return (1, prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))

    def _slice(self, source: str, part: Slab, name: str, tensor: str, shape: Shape) -> Draft:
        self._declare(name, tensor, (*shape[: part.axis], part.extent, *shape[part.axis + 1 :]))
        # A second axis is cut in full: the runtime's optimiser would
        # join slices along one axis that cover their source into one Split, which makes all of them at once (measured:
        # GatherSliceToSplitFusion, level "extended")
        bounds = {"starts": [part.start], "ends": [part.stop], "axes": [part.axis]}
        if len(shape) > 1:
            other = 0 if part.axis else 1
            bounds = {"starts": [part.start, 0], "ends": [part.stop, shape[other]], "axes": [part.axis, other]}
        if self.view.model.graph.opset_imports.get("", 1) < SLICE_INPUTS_SINCE:
            changed = tuple(ir.AttrInt64s(key, values) for key, values in bounds.items())
            return Draft(self._fresh(name), "Slice", (source,), (name,), changed=changed)
        reads = tuple(self._constant(np.array(v, np.int64), f"remat/{key}_{v[0]}") for key, v in bounds.items())
        return Draft(self._fresh(name), "Slice", (source, *reads), (name,))

    def _concat(self, parts: Sequence[str], axis: int, name: str, result: Piece, shape: Shape | None = None) -> Draft:
        self._declare(name, result.tensor, shape or self._shape(result))
        return Draft(self._fresh(name), "Concat", tuple(parts), (name,), attributes=(("axis", axis),))

    def _reshape(self, source: str, shape: Shape, name: str, tensor: str) -> Draft:
        # what Reshape is told: as few numbers as can be. Dimensions are copied (0) or worked out (-1) where that gives
        # the same. What the runtime knows of a shape spreads through the ops behind it, and tensors that could share a
        # buffer no longer can where it knows one shape but not the other
        before = self.types[source].shape
        target = [0 if at < len(before) and before[at] == size else size for at, size in enumerate(shape)]
        rest = [at for at, size in enumerate(target) if size]
        if rest:
            target[max(rest, key=lambda at: shape[at] if at else 0)] = -1
        self._declare(name, tensor, shape)
        reads = self._constant(np.array(target, np.int64), "remat/shape_" + "x".join(map(str, target)))
        return Draft(self._fresh(name), "Reshape", (source, reads), (name,))

    def _fresh(self, name: str) -> str:
        return fresh_name(f"{name}/remat", self.taken)

    def _between(self, name: str) -> str:
        """A name for a value of ours; a model that was split before may have it already."""
        return fresh_name(name, self.taken)

    def _declare(self, name: str, tensor: str, shape: Shape) -> None:
        self.types[name] = TensorType(self.view.tensors[tensor].dtype, shape)

    def _shape(self, piece: Piece) -> Shape:
        return piece_shape(self.view, piece)

    def _constant(self, array: npt.NDArray[np.generic], wanted: str) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = fresh_name(wanted, self.taken)
            self.weights[self.constants[key]] = ir.tensor(array, name=self.constants[key])
        return self.constants[key]


def folded_shape(shape: Shape, axis: int, block: int) -> tuple[Shape, int]:
    """Shape and axis under which memory in blocks, [N, C / block, H, W, block], can be cut as [N, C, H, W] is."""
    batch, channels, height, width = shape
    if axis < HEIGHT:  # whole blocks lie one after the other
        return shape, axis
    if axis == HEIGHT:
        return (batch, channels // block, height, width * block), 2
    return (batch, channels // block * height, width, block), 2


def tile_order(split: ir.Model, graph: Graph) -> list[int]:
    """Ops of `graph`, the optimised split model, as near as can be to the order of nodes in `split`.

    An op stands where the node of `split` stood that made the same tensor; ops that the optimiser added stand just
    before what reads them.
    """
    place = {value.name: index for index, node in enumerate(split.graph) for value in node.outputs}
    made_by = [[graph.tensors[tensor].producer for tensor in op.inputs] for op in graph.ops]
    sources = [[producer for producer in producers if producer is not None] for producers in made_by]
    ranks = [max((place.get(graph.tensors[t].name, -1) for t in op.outputs), default=-1) for op in graph.ops]
    unplaced = {op for op, rank in enumerate(ranks) if rank < 0}
    for op in unplaced:
        ranks[op] = len(place)
    for reader in reversed(range(len(ranks))):
        for source in unplaced.intersection(sources[reader]):
            ranks[source] = min(ranks[source], ranks[reader])
    return ranked_order(sources, ranks)


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """The same graph with its ops in another topological order."""
    new_id = {old: new for new, old in enumerate(order)}
    tensors = tuple(
        tensor if tensor.producer is None else msgspec.structs.replace(tensor, producer=new_id[tensor.producer])
        for tensor in graph.tensors
    )
    return Graph(tuple(graph.ops[op] for op in order), tensors, graph.weights)
