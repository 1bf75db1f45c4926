"""What a model with loops holds at its largest sizes, before it is written: each loop as one op with a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph, Op
from remat_cli.core.schedule.loops import loop_name
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import make_problem, tensor_ids
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_read_whole, unread
from remat_cli.splitting.loops.loops import lists_tiles
from remat_cli.splitting.loops.tile_bytes import ops_in_order, tile_bytes
from remat_cli.splitting.loops.windows.window_estimate import kernel_bytes, window_bytes

LAUNCH_NS = 10_000  # of an op in a loop
SLACK_SHARE = 0.01  # of what is joined, for small values beside it
SLOW_ROWS = 16  # so many rows of a product take about twice their share of the time


@dataclass(frozen=True)
class LoopEstimate:
    """Regions of a model as loops, and what its ops need when they are whole."""

    sized: SizedView
    regions: Sequence[LoopRegion]
    tilings: Sequence[Tiling]
    profile: Profile

    @property
    def peak_bytes(self) -> int:
        """The most that is held at once, in the order of the ops."""
        return self._judged[1].peak

    @property
    def extra_ns(self) -> int:
        """By how much longer tiles take than the whole: ops are launched often, and products of few rows are slower.

        Whole matrices, such as those of items of a batch, are what kernels work on anyhow.
        """
        view, costs = self.sized.view, self.profile.ops
        found = sum(costs[op].time_ns for region in self.regions for op in region.copies)
        found -= sum(costs[op].time_ns for op in unread(view, self.regions))
        for region, tiling in zip(self.regions, self.tilings, strict=True):
            found += -(-self.sized.units_of(region) // tiling.rows) * len(region.ops) * LAUNCH_NS
            for op in (each for each in region.ops if view.rules[each].product is not None):
                made = view.makes[op][0]
                if region.axes[made] == len(view.tensors[made].shape) - 2:
                    found += SLOW_ROWS * self.profile.ops[op].time_ns // tiling.rows
        return found

    @property
    def held_at_peak(self) -> dict[str, int]:
        """The bytes of each tensor that a step holds which holds most; of those that share a buffer the first."""
        graph, plan = self._judged
        step = plan.memory_bytes[0].index(plan.peak)
        alive = {each.storage: each.tensor for each in reversed(plan.instances) if each.birth <= step <= each.death}
        ids = tensor_ids(graph)
        return {graph.tensors[ids[at]].name: graph.tensors[ids[at]].size_bytes for at in alive.values()}

    @property
    def loop_at_peak(self) -> int | None:
        """The region whose loop is the step that holds most; None where that is an op as it is."""
        graph, plan = self._judged
        op = graph.ops[plan.schedule.op_ids()[plan.memory_bytes[0].index(plan.peak)]]
        ops = self.sized.view.graph.ops
        names = {ops[max(region.ops)].name: number for number, region in enumerate(self.regions)}
        return names.get(op.name) if op.op_type == "Loop" else None

    def with_hidden(self, profile: Profile) -> Profile:
        """Costs of written loops; in tiles of windows kernels may take what counters do not see there."""
        ops = self.sized.view.graph.ops
        numbers = {
            loop_name(ops[min(region.own)].name): number
            for number, region in enumerate(self.regions)
            if region.windows is not None
        }
        costs = [
            msgspec.structs.replace(cost, workspace_bytes=self._with_hidden(numbers[cost.name], cost.workspace_bytes))
            if cost.name in numbers
            else cost
            for cost in profile.ops
        ]
        return msgspec.structs.replace(profile, ops=tuple(costs))

    def _with_hidden(self, number: int, seen_bytes: int) -> int:
        """What a loop may take of which counters saw so much.

        Where most is held while results are joined, no kernel of a tile runs then.
        """
        region, tiling = self.regions[number], self.tilings[number]
        most_bytes = seen_bytes + kernel_bytes(self.sized, region, tiling, self.profile)
        if lists_tiles(self.sized, region) and seen_bytes <= (1 + SLACK_SHARE) * self._joining_bytes(number):
            return max(seen_bytes, min(most_bytes, self.body_bytes(number)))
        return most_bytes

    @cached_property
    def _judged(self) -> tuple[Graph, Plan]:
        """The model with its loops, and what the judge says of its ops in their order."""
        graph = self.sized.view.graph
        owner = {op: number for number, region in enumerate(self.regions) for op in region.own}
        last = {number: max(region.own) for number, region in enumerate(self.regions)}
        dropped = unread(self.sized.view, self.regions)
        ops: list[tuple[Op, OpCost]] = []
        for number, op in enumerate(graph.ops):
            region = owner.get(number)
            if number in dropped:
                continue
            if region is None:
                ops.append((op, self.profile.ops[number]))
            elif last[region] == number:
                ops.append(self._loop(region))
        return _judge(graph, self.profile, _in_turn(ops))

    def _loop(self, number: int) -> tuple[Op, OpCost]:
        graph, region = self.sized.view.graph, self.regions[number]
        inside = [graph.ops[op] for op in sorted(region.ops)]
        made = {tensor for op in inside for tensor in op.outputs}
        reads = dict.fromkeys(tensor for op in inside for tensor in op.inputs if tensor not in made)
        weights = dict.fromkeys(weight for op in inside for weight in op.weights)
        name = inside[-1].name
        workspace = max(self.body_bytes(number), self._joining_bytes(number))
        time_ns = sum(self.profile.ops[op].time_ns for op in region.ops)
        op = Op(name, "Loop", tuple(reads), self._exits(number), weights=tuple(weights))
        cost = self.profile.ops[max(region.own)]
        return op, msgspec.structs.replace(cost, time_ns=time_ns, workspace_bytes=workspace)

    def _exits(self, number: int) -> tuple[int, ...]:
        """The tensors of a region that are read behind it."""
        view, region = self.sized.view, self.regions[number]
        tensors = view.graph.tensors
        own = sorted(tensor for op in region.own for tensor in view.graph.ops[op].outputs)
        return tuple(
            each for each in own if tensors[each].kept or is_read_whole(view, self.regions, region, tensors[each].name)
        )

    def _joining_bytes(self, number: int) -> int:
        """What there is beside all that a loop joins, which the judge counts while it runs, when most is there.

        Of lists of tiles one after the other is joined, and gone then. Else there is what was joined but for the last
        tile, and that with it, of which a Loop makes a copy.
        """
        sizes = [self.sized.view.graph.tensors[tensor].size_bytes for tensor in self._exits(number)]
        return max(sizes, default=0) if lists_tiles(self.sized, self.regions[number]) else 2 * sum(sizes)

    def body_bytes(self, number: int) -> int:
        """The most that one tile holds, in the order of the ops; what shares a buffer counts once."""
        region = self.regions[number]
        if region.windows is not None:
            return window_bytes(self.sized, region, self.tilings[number], self.profile)
        return tile_bytes(self.sized, region, self.tilings[number], ops_in_order(self.sized, region), self.profile)


def _in_turn(ops: Sequence[tuple[Op, OpCost]]) -> list[tuple[Op, OpCost]]:
    """The ops in their order, except that those which read what a loop makes wait until it is over."""
    absent = {tensor for op, _ in ops for tensor in op.outputs}
    ordered: list[tuple[Op, OpCost]] = []
    waiting = list(ops)
    while waiting:
        later: list[tuple[Op, OpCost]] = []
        for pair in waiting:
            if absent.isdisjoint(pair[0].inputs):
                ordered.append(pair)
                absent.difference_update(pair[0].outputs)
            else:
                later.append(pair)
        if len(later) == len(waiting):
            raise ModelError(f"op '{later[0][0].name}' and loops wait for each other")
        waiting = later
    return ordered


def _judge(graph: Graph, profile: Profile, ops: Sequence[tuple[Op, OpCost]]) -> tuple[Graph, Plan]:
    """What the judge says of other ops on the tensors of a graph, in this order."""
    used = sorted({tensor for op, _ in ops for tensor in (*op.inputs, *op.outputs)} | set(graph.model_inputs))
    new = {old: number for number, old in enumerate(used)}
    producer = {tensor: at for at, (op, _) in enumerate(ops) for tensor in op.outputs}
    # what a loop joins is no view of what it was made of in the loop
    joined = {tensor for op, _ in ops if op.op_type == "Loop" for tensor in op.outputs}
    bases = {old: None if old in joined else graph.tensors[old].view_of for old in used}
    tensors = tuple(
        msgspec.structs.replace(
            graph.tensors[old], producer=producer.get(old), view_of=None if base is None else new.get(base)
        )
        for old, base in bases.items()
    )
    moved = tuple(
        msgspec.structs.replace(
            op,
            inputs=tuple(new[tensor] for tensor in op.inputs),
            outputs=tuple(new[tensor] for tensor in op.outputs),
            in_place=tuple((new[a], new[b]) for a, b in op.in_place),
        )
        for op, _ in ops
    )
    small = Graph(moved, tensors, graph.weights)
    problem = make_problem(small, msgspec.structs.replace(profile, ops=tuple(cost for _, cost in ops)))
    return small, baseline(problem)
