"""A small model as loops see it: dimensions for all sizes, regions in tiles, and both models run at any size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from remat_cli.compiling.search.family_dims import small_sizes
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.sizes import SizeFamily
from remat_cli.onnx_io.read.to_graph import INPUTS, to_graph
from remat_cli.splitting.loops.batch_regions import find_batches
from remat_cli.splitting.loops.handed import find_handed
from remat_cli.splitting.loops.known_numbers import with_known_numbers
from remat_cli.splitting.loops.known_shapes import with_known_shapes
from remat_cli.splitting.loops.learn_dims import learn_dims
from remat_cli.splitting.loops.loop_bits import Tiling, ops_alike, refusal
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, find_loops
from remat_cli.splitting.loops.loops import looped
from remat_cli.splitting.loops.open_shapes import with_open_shapes
from remat_cli.splitting.loops.shifts import with_shifts_as_picks
from remat_cli.splitting.loops.short_sizes import single_sizes
from remat_cli.splitting.loops.windows.window_bits import window_refusal
from remat_cli.splitting.loops.windows.window_regions import find_windows
from remat_cli.splitting.recast.apart_sizes import with_ops_apart
from remat_cli.splitting.tiles.view import view_model
from tests.helpers import observe, to_bytes

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class LoopedModel:
    """A model with named dimensions, not optimised, and the sizes that it shall run at."""

    model: onnx.ModelProto
    family: SizeFamily
    least_bytes: int = 0
    along_batch: bool = False
    along_fixed: bool = False
    skips_again: bool = False
    in_turn: bool = False
    barred: frozenset[int] = frozenset()

    @cached_property
    def named(self) -> ir.Model:
        """The model, each node with a name."""
        found = ir.from_proto(self.model)
        for at, node in enumerate(found.graph):
            node.name = node.name or f"{node.op_type}_{at}"
        return found

    def feeds(self, sizes: Mapping[str, int], seed: int = 0) -> Feeds:
        """Inputs of some sizes."""
        rng, found = np.random.default_rng(seed), {}
        for value in self.model.graph.input:
            dims = value.type.tensor_type.shape.dim
            shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims]
            kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            found[value.name] = (rng.standard_normal(shape) * 3).astype(kind)
        return found

    def _graph_at(self, model: ir.Model, sizes: Mapping[str, int]):
        feeds = self.feeds(sizes)
        types = tuple(
            TensorType(ir.DataType.from_numpy(each.dtype).name.lower(), each.shape) for each in feeds.values()
        )
        return to_graph(model, {**observe(model, feeds), INPUTS: types})

    @cached_property
    def sized(self) -> SizedView:
        """The model at its largest sizes, with dimensions for all."""
        every = [self.family.corners[0], *small_sizes(self.family)]
        graphs = [(sizes, self._graph_at(self.named, sizes)) for sizes in every]
        measured = [(sizes, {each.name: each.shape for each in graph.tensors}) for sizes, graph in graphs]
        dims = self.family.unified(learn_dims(self.named, graphs[0][1], measured))
        lean = with_known_numbers(with_known_shapes(self.named, dims, self.family), dims)
        large, most = {tensor.name for tensor in graphs[0][1].tensors}, every[0]
        picked = with_shifts_as_picks(lean, dims, self.family, most, large)
        dims |= picked.dims
        graph = graphs[0][1] if picked.model is self.named else self._graph_at(picked.model, most)
        costs = {op.name: OpCost(op.name, 1, workspace_bytes=1) for op in graph.ops}
        apart = with_ops_apart(view_model(picked.model, graph, 1), dims, costs, 1, self.family.least)
        dims |= apart.dims
        opened = with_open_shapes(apart.model, dims, self.family, large)
        graph = graph if opened.model is picked.model else self._graph_at(opened.model, most)
        return SizedView(view_model(opened.model, graph, 1), {**dims, **opened.dims})

    @cached_property
    def regions(self) -> list[LoopRegion]:
        """Regions that loops find."""
        if self.along_batch:
            return find_batches(self.sized, self.least_bytes, self.barred)
        if self.in_turn:
            return find_handed(self.sized, self.least_bytes)
        loops = find_loops(self.sized, self.least_bytes, fixed=self.along_fixed)
        if self.along_fixed:
            return loops
        taken = {op for region in loops for op in region.ops}
        return [*loops, *find_windows(self.sized, self.least_bytes, taken, again=self.skips_again)]

    @property
    def cut(self) -> set[str]:
        """Types of the ops that run in loops."""
        return {self.sized.view.graph.ops[op].op_type for region in self.regions for op in region.ops}

    def refusal(self, region: LoopRegion, rows: int) -> tuple[int, Mapping[str, int]] | None:
        """An op of a region, and a size, of which some tile may have other bits."""
        if region.windows is not None:
            return window_refusal(self.sized, region, Tiling(rows), self.family)
        single = single_sizes(self.sized, region, Tiling(rows))
        return refusal(self.sized, region, Tiling(rows), self.family, whole=single)

    def refusals(self, rows: int) -> Iterator[str]:
        """Names of ops whose tiles of so many rows may have other bits."""
        for region in self.regions:
            found = self.refusal(region, rows)
            if found is not None:
                yield self.sized.view.graph.ops[found[0]].name

    def proved(self, rows: int) -> LoopedModel:
        """The same along the batch, as a search narrows it: without ops whose tiles may have other bits."""
        found = self
        while refused := [
            (region, each[0])
            for region in found.regions
            if (each := refusal(self.sized, region, Tiling(rows), self.family)) is not None
        ]:
            barred = found.barred.union(*(ops_alike(self.sized, region, op) for region, op in refused))
            found = replace(self, barred=barred)
            found.__dict__["sized"] = self.sized
        return found

    def check(self, all_sizes: Sequence[Mapping[str, int]], rows: int) -> None:
        """In tiles of so many rows, proved, it has the bits of the whole at all sizes, one after another."""
        assert not list(self.refusals(rows))
        written = looped(self.sized, self.regions, [Tiling(rows) for _ in self.regions]).model
        sessions = [session_of(to_bytes(each)) for each in (self.named, written)]
        for at, sizes in enumerate(all_sizes):
            whole, ours = (session.run(None, self.feeds(sizes, at)) for session in sessions)
            assert all(one.tobytes() == other.tobytes() for one, other in zip(whole, ours, strict=True)), sizes


def session_of(data: bytes) -> ort.InferenceSession:
    """A session that runs just these ops."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
