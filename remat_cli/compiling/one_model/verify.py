"""Run a plan that is one model beside the original, and compare with its promises: bits, order, bytes, processes."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from remat_cli.base import progress as stages
from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.progress import Progress
from remat_cli.base.units import format_bytes
from remat_cli.compiling.facts import known_facts_of, remember_facts
from remat_cli.compiling.one_model.remembered import known_process
from remat_cli.compiling.planned import PlannedRun
from remat_cli.compiling.prepare import Prepared, asked_settings
from remat_cli.compiling.process.resident import ResidentRequest, see_processes
from remat_cli.compiling.record import whole_profile
from remat_cli.compiling.search.family_sizes import rising_and_falling, sizes_to_check
from remat_cli.compiling.verify import begun
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.conditions import CPU
from remat_cli.core.values.family import FamilySeen, told
from remat_cli.core.values.profile import Profile
from remat_cli.core.values.resident import ProcessMemory, ProcessSeen
from remat_cli.core.values.verification import Checks, OneModelSeen
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.ort_rules.forecast import SessionForecast
from remat_cli.ort_rules.lessons import Lesson
from remat_cli.ort_rules.primers import PREFIX as PRIMERS
from remat_cli.ort_rules.primers import SMALL_COPIES_BYTES
from remat_cli.runtime.sessions.error_text import lacks_memory
from remat_cli.runtime.sessions.feeds import GivenFeeds, MadeFeeds
from remat_cli.runtime.sessions.session import outputs_of
from remat_cli.runtime.verify.family import resident_after
from remat_cli.runtime.verify.likeness import likeness
from remat_cli.runtime.verify.verify import sessions_to_run, verify_closely
from remat_cli.runtime.verify.verify_request import Beyond, ManySizes, VerifyRequest

LONG_NS = 2_000_000_000
LONG_NOTE = "loading and running at the largest sizes was not watched, as runs take long: --verify thorough does that"
OTHER_LENGTHS = "fed with nothing but {}, where lengths that depend on values are others, {}"
SEEDS_NOTE = "random ops without a seed were given equal ones in both models, to compare the outputs"


@dataclass(frozen=True)
class ModelRun(PlannedRun):
    """A plan that is one model; `forecast` is what is predicted of every op of it, where that is known.

    `twin` is the same model in other tiles, where this machine cannot run the original at all sizes and there is one.
    """

    forecast: SessionForecast | None = None
    twin: Path | None = None


def verify_model(
    given: ModelRun, whole: Prepared, work: Path, checks: Checks, progress: Progress
) -> tuple[OneModelSeen, tuple[Lesson, ...]]:
    """What runs beside the original showed, and where they left what the judge says of each op.

    Raises:
        RuntimeFailure: ONNX Runtime fails to run it.
    """
    run = begun(given, work, checks, progress, has_seeds=whole.has_seeds)
    plan, is_full = run.plan, checks.mode in ("on", "thorough")
    request = replace(
        _request_of(plan, whole, run.model), mode=checks.mode, capped=checks.capped_run, forecast=run.forecast
    )
    if plan.request.family is not None:
        runnable = whole.runnable
        known = () if runnable is None else (runnable.at.conditions.dims, runnable.failed)
        sizes, seed = sizes_to_check(plan, known), whole.conditions.seed
        feeds = tuple(MadeFeeds(whole.source.inputs_at(each), seed + at) for at, each in enumerate(sizes[1:], 1))
        beyond = None if runnable is None else Beyond(given.twin, runnable.at.conditions.dims, runnable.failed)
        many = ManySizes(whole.original.path, tuple(sizes), feeds, plan.promise.peak_bytes, beyond)
        request = replace(request, sizes=many, more_feeds=())
    report, lessons = _verified(request, whole, checks, progress)
    if report.passed and report.family and request.sizes is not None and is_full:
        report = msgspec.structs.replace(report, family=_kept(request, request.sizes, report.family, progress))
    if report.passed and not whole.conditions.session.is_default and whole.runnable is None:
        report = _as_asked(report, given, whole)
    may_be_long = plan.splitting is not None and whole.has_value_lengths and whole.conditions.may_be_alone
    if report.passed and may_be_long and whole.runnable is None:
        report = _at_other_lengths(report, run, whole)
    predicted = plan.promise.process  # of a default session, which a portable model does not promise
    if report.passed and is_full and predicted is not None and not plan.request.portable:
        # More runs at the largest of many sizes take long; what they leave resident is measured beside the other
        # sizes.
        is_asked = checks.mode == "thorough" or checks.traced or plan.request.process_budget_bytes is not None
        if plan.request.family is not None and not is_asked and plan.solved.time_ns > LONG_NS:
            report = msgspec.structs.replace(report, notes=(*report.notes, LONG_NOTE), process=None)
        else:
            report = msgspec.structs.replace(report, process=_process(given, predicted, whole, checks, progress))
    seeds = (SEEDS_NOTE,) if whole.has_seeds else ()
    return msgspec.structs.replace(report, notes=(*whole.notes, *report.notes, *seeds)), lessons


def _verified(
    request: VerifyRequest, whole: Prepared, checks: Checks, progress: Progress
) -> tuple[OneModelSeen, tuple[Lesson, ...]]:
    """What runs showed; what sessions on the original alone show is measured once, and kept."""
    program = sessions_to_run(request)
    key = program.alone_key(whole.original.key)
    facts = known_facts_of(whole.reference_sha256, whole.conditions)
    known = None if facts is None or checks.mode == "thorough" else facts.alone.get(key)
    with _blamed_on_machine(whole):
        report, lessons, alone = verify_closely(replace(request, known_alone=known), program, progress.advance)
    if facts is not None and known is None and alone:
        remember_facts(whole.reference_sha256, whole.conditions, alone={**facts.alone, key: alone})
    return report, lessons


def _request_of(plan: PlanFile, whole: Prepared, rewritten: Path) -> VerifyRequest:
    """What verification must find for the rewritten model of a plan; `whole` is the model before splitting."""
    profile, promise = plan.profile, plan.promise
    order = tuple(name for name in promise.order if name not in set(promise.gates))
    copies = packed_weights(rewritten)
    packed = copies.without(PRIMERS)  # whose weights count as nothing
    primers_bytes = SMALL_COPIES_BYTES if packed != copies else 0
    workspace, steps = _workspace(profile), zip(order, plan.schedule.op_ids(), strict=True)
    step_workspace = {name: workspace[plan.graph.ops[op].name] for name, op in steps}
    return VerifyRequest(
        reference=whole.reference_path,
        rewritten=rewritten,
        feeds=whole.feeds,
        more_feeds=whole.more_feeds,
        expected_order=order,
        predicted_live_peak_bytes=promise.live_peak_bytes,
        fixed_bytes=promise.fixed_bytes,
        reference_fixed_bytes=whole_profile(plan).fixed_bytes,
        outside_bytes=profile.fixed_bytes - profile.packed_bytes + packed.total_bytes - primers_bytes,
        largest_copy_bytes=packed.largest_bytes,
        budget_bytes=plan.request.budget_bytes,
        gate_ops=frozenset(promise.gates),
        workspace=_workspace(whole_profile(plan)) | workspace | step_workspace,
        predicted_overhead_percent=plan.solved.overhead_percent,
        portable=plan.request.portable,
        is_left=whole.layout is not None,
        is_elsewhere=not whole.conditions.is_for(whole.runtime.layout_block),
        intra_op_threads=profile.provenance.intra_op_threads,
        run_seconds=whole.conditions.run_seconds,
        device=plan.device,
        level=whole.conditions.opens_as,
        custom_ops=plan.request.custom_ops,
        original_cap_bytes=whole.facts.smallest_cap_bytes,
        may_reassociate=plan.request.allow_reassociation and plan.splitting is not None,
        has_block=promise.runs is None or promise.runs.ballast_bytes is None,
        original=whole.original.path if whole.conditions.may_be_alone and not plan.request.portable else None,
        compared_with=_compared_with(plan, whole),
    )


def _compared_with(plan: PlanFile, whole: Prepared) -> str:
    """What outputs are compared with: the user's file, on another device what the runtime's optimiser made of it."""
    if whole.conditions.device.provider == CPU:
        return whole.original.name
    return f"{whole.source.path.name} as the runtime's optimiser leaves it (ORT_ENABLE_BASIC), on {plan.device}"


def _workspace(profile: Profile) -> dict[str, int]:
    """Workspace in bytes of every op of a profiled model."""
    return {cost.name: cost.workspace_bytes for cost in profile.ops}


def _as_asked(report: OneModelSeen, given: PlannedRun, whole: Prepared) -> OneModelSeen:
    """Compare outputs once more in a session as it was asked for; the checks before need the runtime's own options."""
    (found,) = outputs_of(given.model, (whole.feeds,), asked_settings(whole.conditions))
    if whole.gives(found):
        return report
    note = f"outputs differ in a session with {', '.join(whole.conditions.session.words)}"
    return msgspec.structs.replace(report, outputs_identical=False, notes=(*report.notes, note))


def _at_other_lengths(report: OneModelSeen, run: PlannedRun, whole: Prepared) -> OneModelSeen:
    """Compare outputs where lengths that depend on values are others: as a rule none for zeros, most for ones."""
    may_differ = run.plan.request.allow_reassociation
    for value, name in enumerate(("zeros", "ones")):
        feeds = ({port: _all_alike(array, value) for port, array in whole.feeds.items()},)
        try:
            (wanted,) = outputs_of(whole.original.path, feeds, whole.original.settings)
        except RuntimeFailure:  # nor need the new model bear that
            continue
        try:
            (found,) = outputs_of(run.model, feeds, asked_settings(whole.conditions))
        except RuntimeFailure as failure:
            note = OTHER_LENGTHS.format(name, f"it fails: {failure}")
        else:
            alike = likeness(wanted, found)  # which bits a NaN has is nobody's promise
            if alike.relative_error == 0 or (may_differ and alike.are_close):
                continue
            note = OTHER_LENGTHS.format(name, "its outputs differ")
        return msgspec.structs.replace(report, outputs_identical=False, outputs_close=None, notes=(*report.notes, note))
    return report


def _all_alike(array: npt.NDArray[Any], value: int) -> npt.NDArray[Any]:
    """An array of the same shape in which every number is that value; floats above it by what they were, if any."""
    if array.dtype.kind not in "biuf":
        return array
    alike = np.full_like(array, value)
    return alike + np.abs(array) if value and array.dtype.kind == "f" else alike


@contextlib.contextmanager
def _blamed_on_machine(whole: Prepared) -> Iterator[None]:
    """Let a plan that this machine cannot run, as it cannot run the original, fail with what to do about it.

    Raises:
        RuntimeFailure: it takes more memory than there is.
    """
    try:
        yield
    except RuntimeFailure as failure:
        if whole.runnable is None or not lacks_memory(failure):
            raise
        size, sizes = format_bytes(whole.runnable.memory_bytes), told(whole.conditions.dims)
        text = (
            f"this machine, of which a process may take {size}, cannot run the plan for {whole.source.path} at {sizes}"
        )
        raise RuntimeFailure(
            f"{text} either: give a smaller --budget, or compile where there is more memory"
        ) from failure


def _kept(request: VerifyRequest, many: ManySizes, seen: FamilySeen, progress: Progress) -> FamilySeen:
    """Measure what a process keeps that ran small and large sizes in turn."""
    progress.stage(stages.OTHER_SIZES)
    feeds = [(GivenFeeds(request.packed_feeds), *many.other_feeds)[at] for at in rising_and_falling(many.all_sizes)]
    resident_bytes = resident_after(request.rewritten, feeds, request.settings(exact=False), progress.advance)
    return msgspec.structs.replace(seen, resident_bytes=resident_bytes)


def _process(
    run: PlannedRun, predicted: ProcessMemory, whole: Prepared, checks: Checks, progress: Progress
) -> ProcessSeen | None:
    """What processes hold that load and run the user's model and the new one."""
    plan = run.plan
    progress.stage(stages.WATCHING)
    request = ResidentRequest(
        reference=whole.original_path if whole.runnable is None else None,
        rewritten=run.model,
        feeds=whole.feeds,
        settings=asked_settings(whole.conditions),
        at_once=whole.conditions.session.concurrency,
        predicted=predicted,
        budget_bytes=plan.request.process_budget_bytes,
        with_mapped=plan.request.count_mapped,
        is_thorough=checks.mode == "thorough",
        is_traced=checks.traced,
        is_mapped=bool(whole.source.data_files),
        is_limited=checks.capped_run and (checks.mode == "thorough" or plan.request.process_budget_bytes is not None),
        known=None if whole.runnable is not None else known_process(whole),
    )
    return see_processes(request, progress.advance)
