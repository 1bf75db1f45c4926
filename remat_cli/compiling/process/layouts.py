"""A model as sessions on each kind of processor run it, where each brings it into its own layout: what that holds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.steady import Inside, kinds_of
from remat_cli.core.schedule.graph import TensorType, without_buffers
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.conditions import BLOCKS_OF
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.core.values.resident import SessionMemory
from remat_cli.onnx_io.read.laid_out import LaidOutModel, all_laid_out
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.rewrite import Rewritten
from remat_cli.ort_rules.forecast import Judged, SessionForecast, in_one_run, most_of, predict_sessions
from remat_cli.ort_rules.layout import BLOCKS, NCHWC, REORDER_INPUT
from remat_cli.ort_rules.runtime import Runtime


@dataclass(frozen=True)
class OnProcessor:
    """A written model as a session on one kind of processor runs it; `covers` are the steps that each op computes."""

    judged: Judged
    covers: Mapping[str, Sequence[str]]
    runtime: Runtime

    @cached_property
    def first_run(self) -> SessionMemory:
        """What a default session holds in one run."""
        return in_one_run(self.judged, self.runtime)[1]

    def held_beside(self, held_bytes: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Steps with what is held while they run, copies included that are made for them or of their results."""
        ops = self.judged.graph.ops
        owners: list[Sequence[str]] = [self.covers.get(op.name, ()) for op in ops]
        for place in reversed(range(len(ops) - 1)):
            if ops[place].name.endswith(REORDER_INPUT):
                owners[place] = owners[place + 1]
        for place in range(1, len(ops)):
            owners[place] = owners[place] or owners[place - 1]
        for names, held in zip(owners, held_bytes, strict=True):
            yield from ((name, held) for name in names)


@dataclass(frozen=True)
class Layouts:
    """A written model as sessions run it: on each kind of processor in its own layout, or as it is on all."""

    prepared: Prepared
    profile: Profile
    plan: Plan
    rewritten: Rewritten

    def sessions(self, exact: Judged, on_each: Sequence[OnProcessor]) -> SessionForecast:
        """What sessions hold, default ones on the kind of processor where that is most."""
        runtime = self.prepared.runtime
        found = [predict_sessions(each.judged, runtime) for each in on_each]
        worst = max(found, key=lambda each: each.default_session.peak_bytes)
        known = found[0] if self.prepared.layout is None else predict_sessions(exact, runtime)
        return replace(known, default_session=worst.default_session, runs=most_of([each.runs for each in found]))

    def first_run_bytes(self, on_each: Sequence[OnProcessor]) -> int:
        """The most that a default session holds in one run, on the kind of processor where that is most."""
        return max(each.first_run.peak_bytes for each in on_each)

    def beyond(self, on_each: Sequence[OnProcessor]) -> tuple[int, ...]:
        """By op of the planned graph: by how much sessions hold more while it runs than its plan says."""
        op_ids = self.plan.schedule.op_ids()
        parts = zip(self.rewritten.step_ops, op_ids, self.plan.memory_bytes[0], strict=True)
        planned = {name: (op, held) for name, op, held in parts}
        more = [0] * len(self.prepared.graph.ops)
        for each in on_each:
            for name, held_bytes in each.held_beside(each.first_run.held_bytes):
                if name in planned:
                    op, planned_bytes = planned[name]
                    more[op] = max(more[op], held_bytes - planned_bytes)
        return tuple(more)

    def on_each(self, exact: Judged, inside: Inside | None = None) -> tuple[OnProcessor, ...]:
        """The model as each kind of processor runs it in a default session; `inside` is what is known in a branch."""
        if self.prepared.layout is None:
            covers = {name: (name,) for name in self.rewritten.step_ops}
            return (OnProcessor(exact, covers, self.prepared.runtime),)
        blocks = BLOCKS_OF.get(self.prepared.conditions.target, BLOCKS)
        types = {tensor.name: TensorType(tensor.dtype, tensor.shape) for tensor in exact.graph.tensors}
        known = self.rewritten.known if inside is None else inside.known
        found = all_laid_out(self.rewritten.model, types, known, blocks)
        return tuple(self._laid_out(exact, inside, laid) for laid in found)

    def _laid_out(self, exact: Judged, inside: Inside | None, laid: LaidOutModel) -> OnProcessor:
        """The model as a session brings it into the layout of its processor."""
        profile, rewritten = self.profile, self.rewritten
        steps = zip(rewritten.step_ops, self.plan.schedule.op_ids(), strict=True)
        costs = {name: profile.ops[op] for name, op in steps}
        fixed_bytes = exact.fixed_bytes - profile.fixed_bytes + profile.weight_bytes
        graph = to_graph(laid.model, laid.observed, laid.known)
        if inside is not None:
            graph = without_buffers(graph, inside.early)
        ops = []
        for op in graph.ops:
            covered = [costs[name] for name in laid.covers[op.name] if name in costs]
            workspace_bytes = 0 if op.domain == NCHWC else max((cost.workspace_bytes for cost in covered), default=0)
            ops.append(OpCost(op.name, sum(cost.time_ns for cost in covered), workspace_bytes))
        judged = msgspec.structs.replace(profile, ops=tuple(ops), weight_bytes=fixed_bytes + laid.grown_bytes)
        run = baseline(make_problem(graph, judged))
        kinds = kinds_of(graph, laid.known)
        found = Judged(graph, run, judged.fixed_bytes, kinds, exact.copies, exact.steady, exact.bodies, exact.heaps)
        return OnProcessor(found, laid.covers, self.prepared.runtime)


def with_room(problem: Problem, room_bytes: Sequence[int]) -> Problem:
    """A problem whose ops hold so much more while they run."""
    ops = tuple(
        msgspec.structs.replace(op, workspace_bytes=tuple(size + more for size in op.workspace_bytes))
        for op, more in zip(problem.ops, room_bytes, strict=True)
    )
    return msgspec.structs.replace(problem, ops=ops)
