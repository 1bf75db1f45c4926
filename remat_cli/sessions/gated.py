"""A plan for one device as one more model: gates let any session on that device run it in its order.

Sessions of plans that say where ops run are opened by remat, under options in which the runtime runs exactly the file.
A session of the user's own does not have these, and so it needs gates, in the form that suits the device.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from remat_cli import __version__
from remat_cli.base import progress as stages
from remat_cli.base.errors import RematError, RuntimeFailure
from remat_cli.base.progress import Progress
from remat_cli.base.units import format_bytes
from remat_cli.compiling.learn.settle import Settled
from remat_cli.compiling.placed.cut import cut_of
from remat_cli.compiling.planned import Sessions
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared, written_interface
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Compute, Plan, Schedule
from remat_cli.core.schedule.problem import Problem, input_ops, make_problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.conditions import CPU
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.verification import SessionsSeen
from remat_cli.devices.provider_table import PROVIDERS, gates_of
from remat_cli.onnx_io.read.seeds import without_seeds
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.write.as_written import signed
from remat_cli.onnx_io.write.least_imports import asking_least
from remat_cli.onnx_io.write.rewrite import RewriteInfo, Rewritten, rewrite
from remat_cli.onnx_io.write.save import has_data_file, save
from remat_cli.report.compile import CompileReport
from remat_cli.runtime.sessions.loading import shapes_at_load
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled
from remat_cli.runtime.verify.gated import gated_job, see_gated
from remat_cli.runtime.verify.likeness import likeness

DEVICE_HELPERS = ("Reshape", "Gather", "Cast")
"""Gate helpers that work on what the device has."""


@dataclass(frozen=True)
class GatedModel:
    """A plan as one model for sessions on its device, and what it holds there; or in one line why there is none.

    `copied_bytes` are those of each value that the runtime copies to the host for a gate.
    """

    rewritten: Rewritten | None
    peak_bytes: int = 0
    copied_bytes: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Gating:
    """A plan for the one device of a platform, that sessions of a user's own are to keep."""

    prepared: Prepared
    platform: Platform
    problem: Problem
    plan: Plan

    def written(self) -> GatedModel:
        """Write the plan with gates and judge it within the plan's budget."""
        form = gates_of(self.platform.specs[0].provider)
        source, conditions = self.prepared.source, self.prepared.conditions
        budget_bytes = self.problem.memories[0].budget_bytes
        interface = written_interface(source, conditions)
        info = RewriteInfo(
            budget_bytes,
            source.sha256,
            __version__,
            source.bound_dims,
            interface,
            gates=form,
            source_name=source.path.name,
        )
        infer = partial(shapes_at_load, custom_ops=conditions.custom_ops)
        costs = make_problem(self.platform.graph, self.platform.profile)
        try:
            alone = simulate(costs, Schedule.of_ops(self._ops))
            rewritten = rewrite(self.prepared.reference, self.platform.graph, alone, info, infer)
        except RematError as error:
            return GatedModel(None, reason=str(error))
        graph = to_graph(rewritten.model, rewritten.observed, rewritten.known)
        peak_bytes = self._peak_bytes(rewritten, graph)
        if peak_bytes > budget_bytes:
            more = format_bytes(peak_bytes - budget_bytes)
            return GatedModel(None, reason=f"with its gates it needs {more} more than the budget")
        # What gates count on the host although it is on the device: a scalar, or none of the elements of a value.
        is_copied = not PROVIDERS[self.platform.specs[0].provider].counts_in_place
        counted = (op for op in graph.ops if is_copied and op.name in rewritten.gate_ops and op.op_type == "Size")
        copied_bytes = tuple(graph.tensors[tensor].size_bytes for op in counted for tensor in op.inputs)
        return GatedModel(rewritten, peak_bytes, copied_bytes)

    def checked(self, gated: GatedModel, work: Path) -> GatedModel:
        """The gated model, if a session on the device runs it as planned with outputs of the CPU; else why not."""
        rewritten = gated.rewritten
        if rewritten is None:
            return gated
        path = Path(tempfile.mkdtemp(prefix="gated_", dir=work)) / "gated.onnx"
        save_gated(rewritten, path)
        spec, prepared = self.platform.specs[0], self.prepared
        try:
            seen = see_gated(gated_job(path, spec, prepared.feeds, prepared.conditions.custom_ops))
        except RuntimeFailure as error:
            return GatedModel(None, reason=str(error))
        reason, steps = "", set(rewritten.step_ops)
        if tuple(name for name in seen.ran if name in steps) != rewritten.step_ops:
            reason = "a session did not run it in the plan's order"
        elif away := sorted(steps - set(seen.on_device)):
            reason = f"op '{away[0]}' did not run on {spec.name}"
        else:
            settings = SessionSettings(custom_ops=prepared.conditions.custom_ops)
            expected = run_profiled(prepared.reference_path, prepared.feeds, settings).outputs
            if not likeness(expected, seen.arrays).are_close:
                reason = "its outputs are too far from the CPU's"
        if not reason and sorted(seen.copied_bytes) != sorted(gated.copied_bytes):
            copies = ", ".join(map(format_bytes, seen.copied_bytes)) or "nothing"
            reason = f"the runtime copies other values than planned: {copies}"
        return GatedModel(None, reason=reason) if reason else gated

    @property
    def _ops(self) -> tuple[int, ...]:
        """The ops of the graph in the plan's order: what the caller feeds is none."""
        first = input_ops(self.platform.graph, self.problem)
        computes = (step.op - first for step in self.plan.schedule.steps if isinstance(step, Compute))
        return tuple(op for op in computes if op >= 0)

    def _peak_bytes(self, rewritten: Rewritten, graph: Graph) -> int:
        """What the file holds on the device, as the judge sees it: gates keep what they wait for, and their views.

        What they count with is on the host.
        """
        # On the host is what helpers make that are no views and take nothing from a value on the device.
        helpers = (op for op in graph.ops if op.name in rewritten.gate_ops and op.op_type not in DEVICE_HELPERS)
        on_host = {tensor for op in helpers for tensor in op.outputs}
        tensors = (
            msgspec.structs.replace(tensor, shape=(0,), size_bytes=0) if number in on_host else tensor
            for number, tensor in enumerate(graph.tensors)
        )
        graph = msgspec.structs.replace(graph, tensors=tuple(tensors))
        known = self.platform.profile.ops
        costs = {
            name: msgspec.structs.replace(known[op], name=name)
            for name, op in zip(rewritten.step_ops, self._ops, strict=True)
        }
        ops = tuple(costs.get(op.name, OpCost(op.name, 0)) for op in graph.ops)
        profile = msgspec.structs.replace(self.platform.profile, ops=ops)
        platform = Platform(graph, self.platform.specs, (profile,), (), self.platform.session_bytes)
        problem = platform.problem()
        schedule = Schedule.of_ops(tuple(range(len(problem.ops))))
        (peak_bytes,) = cut_of(platform, problem, simulate(problem, schedule)).peak_bytes
        return peak_bytes


def with_gated(
    report: CompileReport,
    settled: Settled[Sessions, SessionsSeen | None],
    path: Path,
    work: Path,
    progress: Progress,
) -> CompileReport:
    """Write the plan as a model for sessions of the user's own too, where these need gates; else say why not."""
    gating = gating_of(settled.planned)
    if gating is None:
        return report
    progress.stage(stages.REWRITING)
    found = gating.written()
    gated = found if settled.seen is None else gating.checked(found, work)
    if gated.rewritten is None:
        return msgspec.structs.replace(report, warnings=(*report.warnings, f"{path} not written: {gated.reason}"))
    save_gated(gated.rewritten, path)
    return msgspec.structs.replace(report, gated_output=str(path))


def gating_of(planned: Sessions) -> Gating | None:
    """How to gate a plan for one device whose sessions remat opens; None where it is no such plan."""
    specs, profiles = planned.platform.specs, planned.platform.profiles
    if len(specs) != 1 or not profiles[0].provenance.measured:
        return None
    if specs[0].provider == CPU or PROVIDERS[specs[0].provider].gates is None:
        return None
    return Gating(planned.prepared, planned.platform, planned.answer.question.problem, planned.plan)


def save_gated(rewritten: Rewritten, path: Path) -> None:
    """Write the model; its weights beside it where they are many.

    Raises:
        RematError: the disk is full or failed.
    """
    model = signed(asking_least(without_seeds(rewritten.model)))
    save(model, path, external=has_data_file(model, None))
