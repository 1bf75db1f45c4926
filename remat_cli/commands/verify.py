"""`remat verify`: run both models again, and compare them with what the plan promises, or the file says of itself."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.base.files import atomic_write, check_target, sha256
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import with_picture
from remat_cli.compiling.beyond import prepare_at_any
from remat_cli.compiling.one_model.verify_elsewhere import Places, verify_elsewhere
from remat_cli.compiling.one_model.verify_file import read_pair, verify_file
from remat_cli.compiling.planned import PlannedRun
from remat_cli.compiling.prepare import Prepared, work_folder
from remat_cli.compiling.record import elsewhere, find_file, whole_sha256
from remat_cli.compiling.search.kept_curve import curve_of_plan
from remat_cli.compiling.verify import verify_plan as run_both
from remat_cli.compiling.ways import way
from remat_cli.core.files.plan_check import check_graph_of
from remat_cli.core.files.plan_file import PlanFile, check_belongs, is_plan, write_plan
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.resident import ProcessSeen
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.onnx_io.read.compiled import check_data_files, runs_on_at, sizes_left_open
from remat_cli.onnx_io.write.as_written import condition_of
from remat_cli.report.compile import VerifyReport
from remat_cli.report.elsewhere import ElsewhereReport
from remat_cli.report.file_report import FileReport
from remat_cli.report.pictures.process_picture import process_svg
from remat_cli.report.pictures.verify_trace import verify_trace
from remat_cli.report.runs_on import guard_warnings
from remat_cli.runtime.elsewhere.link import SCRIPT
from remat_cli.runtime.sessions.session import runtime_version
from remat_cli.settings.settings import Settings


def verify(file: Path, original: Path | None, settings: Settings, progress: Progress) -> VerifyReport | FileReport:
    """Verify a plan, or a compiled file beside the model that it was made from.

    Raises:
        ConfigError: a file without its original, or a plan with one.
        ModelError: a file cannot be read, or is not what it should be.
        MissingDependency: matplotlib is not installed.
    """
    beside = _original_of(file, original)
    if beside is None:
        return verify_plan(file, settings, progress)
    return verify_beside(file, beside, settings, progress)


def _original_of(file: Path, original: Path | None) -> Path | None:
    """The original that a compiled file was given with; None of a plan, which knows it.

    Raises:
        ConfigError: a file without its original, or a plan with one.
    """
    if is_plan(file) and original is not None:
        raise ConfigError(f"--original: {file} is a plan, which knows its original: leave --original out")
    if not is_plan(file) and original is None:
        raise ConfigError(f"{file} is no plan: of a compiled model say what it was made from: --original MODEL.onnx")
    return original


def verify_beside(file: Path, original: Path, settings: Settings, progress: Progress) -> FileReport:
    """Run a compiled file and the model that it was made from, and compare them with what the file says of itself.

    Raises:
        ConfigError: a picture is asked for.
        ModelError: one of them cannot be used, or they do not belong together.
    """
    if (asked := _drawing(settings)) is not None:
        raise ConfigError(f"{asked}: both processes are drawn of a plan only: give its PLAN.json")
    with work_folder(original, settings.work_dir, settings.memory_limit_bytes) as work:
        return _file_report(file, original, settings.conditions, (settings, progress), work)


def script() -> str:
    """A Python program that verifies a file where remat is not: it needs numpy and onnxruntime only."""
    return SCRIPT.read_text(encoding="utf-8")


def verify_on(
    file: Path, original: Path | None, where: tuple[tuple[str, ...], bool], settings: Settings, progress: Progress
) -> ElsewhereReport:
    """Verify a compiled file in other places; a plan keeps what is found.

    `where` are the commands that lead there, and whether files stay.

    Raises:
        ConfigError: a command is no program of this machine, or a picture is asked for.
        ModelError: a file cannot be used, or is not what it should be.
        RematError: a place ended early, was silent, or lacks something.
    """
    if (asked := _drawing(settings)) is not None:
        raise ConfigError(f"{asked}: processes are drawn where they are measured here: leave {asked} out, or --on")
    source, output, conditions, read = _original_of(file, original), file, settings.conditions, None
    if source is None:
        read = read_plan(file)
        _check_sizes(read, conditions)
        only = way(read.kind).only_file(read, file)
        if only is None:
            raise ModelError(
                f"--on verifies one file, and {file} has none: remat itself cuts its sessions and runs them; "
                f"where remat is, run `remat verify {file.name}`"
            )
        output = only
        _check_written(read, output)
        source = find_file(read.source, file, "source")
        conditions = _at_open_sizes(conditions, output, read.request.dims)
        conditions = msgspec.structs.replace(conditions, custom_ops=read.request.custom_ops)
    if conditions.custom_ops:
        raise ConfigError("--on cannot take custom operators along: their libraries are this machine's")
    with work_folder(source, settings.work_dir, settings.memory_limit_bytes) as work:
        pair = read_pair(output, source, conditions, work)
        found = verify_elsewhere(pair, Places(*where), settings.checks, conditions.run_seconds, progress)
    if read is not None:
        # of the same command and the same runtime the newest
        kept = {(each.on, each.place): each for each in (*read.verified_on, *found)}
        write_plan(file, msgspec.structs.replace(read, verified_on=tuple(kept.values())))
    seen = [(each.on, each.verification) for each in found if each.verification is not None]
    warned = dict.fromkeys(f"{line} (on {command})" for command, there in seen for line in there.warned)
    return ElsewhereReport(
        model=str(output),
        source=str(source),
        plan=None if read is None else str(file),
        verified_on=found,
        runs_on=pair.runs_on,
        warnings=_warnings(output, pair.runs_on, warned),
    )


def _drawing(settings: Settings) -> str | None:
    """The option by which what processes hold is to be drawn; None: by none."""
    asked = (("--svg", settings.svg), ("--trace", settings.trace))
    return next((option for option, path in asked if path is not None), None)


def verify_plan(plan: Path, settings: Settings, progress: Progress) -> VerifyReport | FileReport:
    """Run the original and the rewritten model of a plan and compare them with what the plan promises.

    With `svg` what both processes hold over time becomes a picture, with `trace` a trace beside what was planned. Where
    the runtime optimises the original otherwise than where the plan was made, its figures say nothing, and what the
    file says of itself is verified.

    Raises:
        ModelError: the plan cannot be read, or the models it speaks of are gone or changed.
        MissingDependency: matplotlib is not installed.
    """
    if settings.trace is not None:
        check_target(settings.trace, sources=(plan,), overwrite=settings.force)
    drawn = with_picture(
        settings,
        plan,
        lambda: _verified(plan, settings, progress),
        lambda report: process_svg(_process_of(report, "--svg")),
        progress,
    )
    if settings.trace is not None:
        atomic_write(settings.trace, verify_trace(read_plan(plan), _process_of(drawn, "--trace")))
        progress.note(f"wrote {settings.trace}: open it in ui.perfetto.dev")
    return drawn


def _process_of(report: VerifyReport | FileReport, asked: str) -> ProcessSeen:
    """What both processes held over time.

    Raises:
        ConfigError: they were not measured.
    """
    if isinstance(report, FileReport):
        raise ConfigError(f"{asked}: there is none, as {report.warnings[0]}")
    process = report.verification.process_seen
    if process is None or not process.traces:
        raise ConfigError(f"{asked}: resident memory is measured of verified plans for the CPU only, with --verify on")
    return process


def _verified(plan: Path, settings: Settings, progress: Progress) -> VerifyReport | FileReport:
    """The report on a plan, or on what its file says where the runtime optimises the original otherwise here."""
    read = read_plan(plan)
    _check_sizes(read, settings.conditions)
    rewritten = find_file(read.output, plan, "model")
    source = find_file(read.source, plan, "source")
    _check_written(read, rewritten)
    with work_folder(source, settings.work_dir, settings.memory_limit_bytes) as work:
        whole = prepare_at_any(source, _as_requested(read, settings.conditions), work, progress)
        check_belongs(read, whole.source.sha256)
        if whole.reference_sha256 != whole_sha256(read):
            return _of_file_only(plan, read, whole, (settings, progress), work)
        if read.splitting is None:
            check_graph_of(read, whole.graph)
        found = run_both(PlannedRun(read, rewritten), whole, work, settings.checks, progress)
    runs_on, found_way = runs_on_at(rewritten), way(read.kind)
    report = VerifyReport(
        plan=str(plan),
        model=str(rewritten),
        source=str(source),
        budget=read.request.budget,
        budget_bytes=read.request.budget_bytes,
        verification=found,
        runs_on=runs_on,
        warnings=(
            *(f"not kept: {line}" for line in found.warned),
            *guard_warnings(runs_on),
            *elsewhere(read),
            *found.notes,
        ),
        asked=found_way.asked(read, curve_of_plan(read, whole)),
    )
    return found_way.verified(report)


def _check_written(plan: PlanFile, file: Path) -> None:
    """Check that a file is the one that a plan was written with, and that its weights are there.

    Raises:
        ModelError: it is another one, or some are not.
    """
    if sha256(file) != plan.output.sha256:
        raise ModelError(f"{file} is not the model that the plan was written with: compile again")
    check_data_files(file)


def _at_open_sizes(conditions: Conditions, file: Path, dims: Mapping[str, int]) -> Conditions:
    """The same conditions with those of some sizes that a file leaves open."""
    left_open = sizes_left_open(file)
    return msgspec.structs.replace(conditions, dims={name: size for name, size in dims.items() if name in left_open})


def _check_sizes(plan: PlanFile, given: Conditions) -> None:
    """Check that sizes which are given are those of the plan, at which it is verified.

    Raises:
        ConfigError: one is not.
    """
    request = plan.request
    known = () if request.family is None else request.family.ranges
    ranges = () if given.family is None else given.family.ranges
    odd = [f"--dim {each}" for each in ranges if each not in known]
    odd += [f"--dim {name}={size}" for name, size in given.dims.items() if request.dims.get(name) != size]
    odd += [
        f"--input-shape {name}" for name, size in given.input_shapes.items() if size != request.input_shapes.get(name)
    ]
    if odd:
        fixed = ", ".join(f"{name}={size}" for name, size in request.dims.items())
        made_for = str(request.family or "") or fixed or "the sizes that its model declares"
        raise ConfigError(f"{odd[0]}: a plan is verified at its own sizes ({made_for}): leave it out")


def _of_file_only(
    plan: Path, read: PlanFile, whole: Prepared, how: tuple[Settings, Progress], work: Path
) -> FileReport:
    """What holds of a plan's file where the runtime optimises the original otherwise than where the plan was made.

    Raises:
        ModelError: the plan is not one file.
    """
    here, there, source = runtime_version(), read.profile.provenance.runtime_version, whole.source.path
    why = f"ONNX Runtime {here} optimises {source} differently here than where the plan was made (by {there})"
    file = way(read.kind).only_file(read, plan)
    if file is None:
        raise ModelError(f"{why}, and without its plan it has no file that could be verified: compile it again here")
    asked = _at_open_sizes(whole.conditions, file, whole.conditions.dims)
    found = _file_report(file, source, asked, how, work)
    return msgspec.structs.replace(found, plan=str(plan), warnings=(f"{why}: this is what holds of the file",))


def _file_report(
    file: Path, original: Path, conditions: Conditions, how: tuple[Settings, Progress], work: Path
) -> FileReport:
    """What a file keeps of what it says of itself."""
    settings, progress = how
    pair = read_pair(file, original, conditions, work)
    found = verify_file(pair, conditions, settings.checks, progress)
    return FileReport(
        model=str(file),
        source=str(original),
        verification=found,
        promises=found.promises,
        runs_on=pair.runs_on,
        warnings=_warnings(file, pair.runs_on, found.warned),
    )


def _warnings(file: Path, runs_on: RunsOn | None, not_kept: Iterable[str]) -> tuple[str, ...]:
    """What is to be said of a compiled file, and of what it did not keep."""
    return (*(f"not kept: {line}" for line in not_kept), *guard_warnings(runs_on), *condition_of(file).warnings)


def _as_requested(plan: PlanFile, conditions: Conditions) -> Conditions:
    """The conditions under which the plan's model was prepared."""
    request, runs_on = plan.request, plan.runs_on
    return msgspec.structs.replace(
        conditions,
        devices=way(plan.kind).devices(plan),
        portable=request.portable,
        target=request.target,
        runtimes=request.runtimes,
        plain=request.plain,
        session=request.session,
        intra_op_threads=plan.profile.provenance.intra_op_threads or (0 if runs_on is None else runs_on.threads),
        dims=request.dims,
        summed=request.summed,
        family=request.family,
        input_shapes=request.input_shapes,
        custom_ops=request.custom_ops,
    )
