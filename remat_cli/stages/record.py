"""The plan as a file, and a file's promises as a verification."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from remat_cli import __version__
from remat_cli.base.errors import ModelError
from remat_cli.core.graph import Graph
from remat_cli.core.plan_file import (
    FileRef,
    PlanFile,
    Promise,
    Request,
    SessionSettings,
    Solved,
    graph_instances,
)
from remat_cli.core.profile import Profile
from remat_cli.core.schedule import Schedule
from remat_cli.core.verification import Verification
from remat_cli.devices.provider_table import PROVIDERS, named_spec
from remat_cli.report.report import SolutionReport, solution_report
from remat_cli.runtime.provenance import provenance
from remat_cli.runtime.verify import VerifyRequest
from remat_cli.settings.config import Config
from remat_cli.stages.plan import Planned
from remat_cli.stages.prepare import Prepared, sha256
from remat_cli.stages.solve import Answer
from remat_cli.stages.write import Written


@dataclass(frozen=True)
class Outcome:
    """All that a finished compilation knows: the whole model and its profile, and what was planned instead of it."""

    whole: Prepared
    whole_profile: Profile
    planned: Planned
    written: Written
    solution: SolutionReport

    @classmethod
    def of(cls, whole: Prepared, profile: Profile, planned: Planned) -> Outcome:
        """What is known once a plan is written."""
        assert planned.written is not None
        return cls(whole, profile, planned, planned.written, planned_solution(planned))

    @property
    def prepared(self) -> Prepared:
        """The model that was planned, split or not."""
        return self.planned.prepared

    @property
    def profile(self) -> Profile:
        """The profile of the model that was planned."""
        return self.planned.profile

    @property
    def answer(self) -> Answer:
        """What the solver said."""
        return self.planned.answer


def planned_solution(planned: Planned) -> SolutionReport:
    """The solver's claims beside the judge's figures; once written, the peak is that of the written model."""
    solved, written = planned.answer, planned.written
    solution = solution_report(solved.run, solved.question.problem, solved.question.baseline, solved.plan)
    if planned.splitting is not None:
        solution = msgspec.structs.replace(
            solution,
            floor_bytes=planned.splitting.whole_floor_bytes,
            floor_with_splitting_bytes=solution.floor_bytes,
        )
    return solution if written is None else msgspec.structs.replace(solution, peak_bytes=written.plan.peak)


def verify_request(outcome: Outcome, rewritten: Path, config: Config) -> VerifyRequest:
    """What verification must find for a freshly rewritten model."""
    profile = outcome.profile
    step_ops, gates = outcome.written.rewritten.step_ops, outcome.written.rewritten.gate_ops
    assert outcome.answer.plan is not None
    return VerifyRequest(
        reference=outcome.whole.reference_path,
        rewritten=rewritten,
        feeds=outcome.whole.feeds,
        more_feeds=outcome.whole.more_feeds,
        expected_order=step_ops,
        predicted_live_peak_bytes=outcome.written.plan.live_peak - outcome.written.fixed_bytes,
        fixed_bytes=outcome.written.fixed_bytes,
        reference_fixed_bytes=outcome.whole_profile.fixed_bytes,
        budget_bytes=outcome.answer.question.budget_bytes,
        gate_ops=gates,
        workspace=_workspace(outcome.whole_profile)
        | _workspace_by_name(profile, outcome.prepared.graph, step_ops, outcome.answer.plan.schedule),
        predicted_overhead_percent=outcome.solution.overhead_percent,
        capped=config.capped_run,
        portable=config.portable,
        intra_op_threads=config.intra_op_threads,
        device=profile.device,
        original_cap_bytes=outcome.whole.sight.smallest_cap_bytes,
        may_reassociate=config.allow_reassociation and outcome.planned.splitting is not None,
    )


def plan_file(
    outcome: Outcome, config: Config, output: Path, plan: Path, verification: Verification | None
) -> PlanFile:
    """Everything needed to rebuild, draw and verify the model at `output`; paths are relative to the plan."""
    answer, solution = outcome.answer, outcome.solution
    assert answer.plan is not None
    assert solution.time is not None
    return PlanFile(
        remat_version=__version__,
        source=FileRef(relative(outcome.prepared.source.path, plan), outcome.prepared.source.sha256),
        optimized_sha256=outcome.prepared.reference_sha256,
        output=FileRef(relative(output, plan), sha256(output)),
        request=Request(
            budget=answer.question.text,
            budget_bytes=answer.question.budget_bytes,
            budget_scope=config.budget_scope,
            order=config.order,
            portable=config.portable,
            dims=config.dims,
            input_shapes=config.input_shapes,
            split=config.split,
            max_tiles=config.max_tiles,
            split_axis=config.split_axis.text,
            allow_reassociation=config.allow_reassociation,
        ),
        splitting=outcome.planned.splitting,
        device=outcome.profile.device,
        graph=outcome.prepared.graph,
        profile=outcome.profile,
        schedule=answer.plan.schedule,
        instances=graph_instances(outcome.prepared.graph, answer.question.problem, answer.plan),
        solved=Solved(
            solver=solution.solver,
            options=solution.options,
            seed=solution.seed,
            space=solution.space,
            status=solution.status,
            time_ns=solution.time,
            baseline_time_ns=solution.baseline_time,
            bound_ns=answer.run.bound,
            overhead_percent=solution.overhead_percent,
            lower_bound_percent=solution.lower_bound_percent,
            floor_bytes=solution.floor_bytes,
            floor_with_splitting_bytes=solution.floor_with_splitting_bytes,
            seconds=solution.seconds,
            seconds_to_best=solution.seconds_to_best,
        ),
        promise=_promise(outcome, config, verification),
        snippet=snippet(output, config),
        warnings=warnings(verification),
        verification=verification,
    )


def request_of(plan: PlanFile, prepared: Prepared, rewritten: Path, config: Config) -> VerifyRequest:
    """What verification must find for a plan read from a file."""
    profile, promise = plan.profile, plan.promise
    order = tuple(name for name in promise.order if name not in set(promise.gates))
    return VerifyRequest(
        reference=prepared.reference_path,
        rewritten=rewritten,
        feeds=prepared.feeds,
        more_feeds=prepared.more_feeds,
        expected_order=order,
        predicted_live_peak_bytes=promise.live_peak_bytes,
        fixed_bytes=promise.fixed_bytes,
        reference_fixed_bytes=_whole_profile(plan).fixed_bytes,
        budget_bytes=plan.request.budget_bytes,
        gate_ops=frozenset(promise.gates),
        workspace=_workspace(_whole_profile(plan)) | _workspace_by_name(profile, plan.graph, order, plan.schedule),
        predicted_overhead_percent=plan.solved.overhead_percent,
        capped=config.capped_run,
        portable=plan.request.portable,
        intra_op_threads=profile.provenance.intra_op_threads,
        device=plan.device,
        original_cap_bytes=prepared.sight.smallest_cap_bytes,
        may_reassociate=plan.request.allow_reassociation and plan.splitting is not None,
    )


def _workspace_by_name(profile: Profile, graph: Graph, step_ops: tuple[str, ...], schedule: Schedule) -> dict[str, int]:
    """Workspace in bytes of every op of the original, and of every step of the rewritten model by its op's name."""
    workspace = _workspace(profile)
    return workspace | {
        name: workspace[graph.ops[op].name] for name, op in zip(step_ops, schedule.op_ids(), strict=True)
    }


def _workspace(profile: Profile) -> dict[str, int]:
    """Workspace in bytes of every op of a profiled model."""
    return {cost.name: cost.workspace_bytes for cost in profile.ops}


def _whole_profile(plan: PlanFile) -> Profile:
    """The profile of the model before splitting."""
    return plan.profile if plan.splitting is None else plan.splitting.whole_profile


def whole_sha256(plan: PlanFile) -> str:
    """Hash of the optimised model before splitting."""
    return plan.optimized_sha256 if plan.splitting is None else plan.splitting.whole_sha256


def find_file(reference: FileRef, plan: Path, what: str) -> Path:
    """The file that a plan speaks of, beside the plan or where it was; its hash is for the caller to check.

    Raises:
        ModelError: it is gone.
    """
    for path in (plan.parent / reference.path, Path(reference.path)):
        if path.is_file():
            return path
    raise ModelError(f"the plan's {what} {reference.path} is not beside {plan}: put it back or compile again")


def elsewhere(plan: PlanFile) -> tuple[str, ...]:
    """What is different here from where the profiles of a plan were made, and what therefore no longer holds."""
    profiles = (plan.profile,) if plan.placement is None else plan.placement.profiles
    names = (plan.device,) if plan.placement is None else tuple(s.session_device for s in plan.placement.devices)
    changed = dict.fromkeys(line for pair in zip(names, profiles, strict=True) for line in _moved(*pair))
    if not changed:
        return ()
    return (f"the plan was made elsewhere ({'; '.join(changed)}): its times, and perhaps its peak, do not hold here",)


def _moved(device: str, profile: Profile) -> list[str]:
    """What is different here from where a profile was made; an estimate was made nowhere."""
    made = profile.provenance
    if not made.measured:
        return []
    here = provenance(device, made.intra_op_threads, made.optimization, made.runs, made.warmups)
    return [
        f"{what} {getattr(here, field)} here, {getattr(made, field)} there"
        for field, what in (("cpu", "CPU"), ("runtime", "runtime"), ("runtime_version", "runtime version"))
        if getattr(here, field) != getattr(made, field)
    ]


def snippet(output: Path, config: Config) -> str:
    """Python that runs the result, ready to paste."""
    provider = PROVIDERS[named_spec(config.device).provider].runtime_name
    threads = f"options.intra_op_num_threads = {config.intra_op_threads}\n" if config.intra_op_threads else ""
    return (
        "import onnxruntime as ort\n\n"
        "options = ort.SessionOptions()\n"
        f"{threads}"
        "options.enable_mem_pattern = False  # else later runs take one block for all tensors\n"
        f'session = ort.InferenceSession("{output.as_posix()}", options, providers=["{provider}"])\n'
        "outputs = session.run(None, inputs)  # inputs: a dict of numpy arrays by name\n"
    )


def warnings(verification: Verification | None) -> tuple[str, ...]:
    """What the user should know besides the figures."""
    if verification is None:
        return ("not verified: run `remat verify` on the plan",)
    return verification.notes


def _promise(outcome: Outcome, config: Config, verification: Verification | None) -> Promise:
    written, baseline = outcome.written, outcome.answer.question.baseline
    gates = outcome.written.rewritten.gate_ops
    return Promise(
        order=written.order,
        gates=tuple(name for name in written.order if name in gates),
        peak_bytes=written.plan.peak,
        live_peak_bytes=written.plan.live_peak - written.fixed_bytes,
        fixed_bytes=written.fixed_bytes,
        baseline_peak_bytes=baseline.peak,
        memory_bytes=written.plan.memory_bytes[0],
        baseline_memory_bytes=baseline.memory_bytes[0],
        exact_session=SessionSettings(intra_op_num_threads=config.intra_op_threads),
        holds_by_default=not config.portable and (verification is None or verification.within_budget),
    )


def relative(path: Path, plan: Path) -> str:
    """A path as it is written from the folder of a plan."""
    return Path(os.path.relpath(path.resolve(), plan.resolve().parent)).as_posix()
