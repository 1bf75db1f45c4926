"""remat: compile an ONNX model to fit a memory budget, with the same outputs, bit for bit.

One function per command, with the words of the command line as keywords:

    import remat_cli as remat

    report = remat.compile("unet.onnx", budget="80%", time_limit="30s", on_progress=print)
    report.solution.peak_bytes, report.output

Nothing is printed; what a command finds out comes back as a report, and what goes wrong is a `RematError` with the
line that the command line would print. Everything is imported when it is first used, so that importing costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.base.errors import AnswerError, RematError

if TYPE_CHECKING:
    from remat_cli.base.progress import Event
    from remat_cli.commands.run import LoadedPlan
    from remat_cli.contest.report.bench_run import BenchReport
    from remat_cli.contest.report.compare_report import CompareReport
    from remat_cli.contest.report.sweep_report import SweepReport
    from remat_cli.core.files.plan_file import PlanFile
    from remat_cli.pipelines.report.partition import PartitionReport
    from remat_cli.pipelines.report.pipeline_run import PipelineRunReport
    from remat_cli.report.compile import CompileReport, VerifyReport
    from remat_cli.report.doctor import DoctorReport, ExamplesReport
    from remat_cli.report.file_report import FileReport
    from remat_cli.report.inspection import InspectReport
    from remat_cli.report.page.written_page import PageReport
    from remat_cli.report.profile import ProfileReport
    from remat_cli.report.run_report import RunReport
    from remat_cli.report.solve import SolveReport, SolversReport
    from remat_cli.report.targets import TargetsReport
    from remat_cli.report.training import MaxBatchReport, TrainReport
    from remat_cli.settings.settings import Settings

__version__ = "0.2.0"

__all__ = [
    "AnswerError",
    "RematError",
    "__version__",
    "bench",
    "compare",
    "compile",
    "compile_for",
    "doctor",
    "examples",
    "inspect",
    "list_solvers",
    "load",
    "max_batch",
    "partition",
    "profile",
    "read_plan",
    "run",
    "solve",
    "sweep",
    "train",
    "verify",
    "write_report",
]


def compile(
    model: str | Path,
    *,
    budget: str | int | float | Mapping[str, Any] | None = None,
    budget_scope: str | None = None,
    max_overhead: str | float | None = None,
    split: str | None = None,
    max_tiles: int | None = None,
    max_tensor: str | int | None = None,
    split_axis: str | int | None = None,
    allow_reassociation: bool | None = None,
    external_data: bool | None = None,
    packed_weights: bool | None = None,
    count_mapped: bool | None = None,
    race: str | float | None = None,
    output: str | Path | None = None,
    plan: str | Path | None = None,
    force: bool | None = None,
    device: str | Sequence[str] | None = None,
    estimate: bool | None = None,
    overlap: bool | None = None,
    spill: str | Mapping[str, Any] | None = None,
    solver: str | None = None,
    order: str | None = None,
    time_limit: str | float | None = None,
    gap: str | float | None = None,
    verify: bool | str | None = None,
    capped_run: bool | None = None,
    dim: Mapping[str, int | str] | None = None,
    input_shape: Mapping[str, Sequence[int]] | None = None,
    inputs: str | Path | None = None,
    target: str | None = None,
    portable: bool | None = None,
    runtime: str | None = None,
    plain: bool | None = None,
    session: Mapping[str, bool | int | str] | None = None,
    intra_op_threads: int | None = None,
    custom_ops: str | Path | Sequence[str | Path] | None = None,
    work_dir: str | Path | None = None,
    seed: int | None = None,
    threads: int | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> CompileReport:
    """Rewrite a model so that it runs within a memory budget, at the least extra time, and prove it by running both.

    A plan that cannot be had is no error: look at `report.exit_code`, or call `report.raise_for_status()`.

    Args:
        model: the ONNX file.
        budget: what may be held: 512MiB, 2GB, 80%, 0.8, "min", or bytes by device.
        budget_scope: what bytes bound: "process", "live" or "activations".
        max_overhead: most extra time of a plan: "10%" or 0.1.
        split: "auto" cuts ops into tiles where the budget needs it, "off" never, "max" wherever that saves memory.
        max_tiles: most tiles that ops are cut into.
        max_tensor: no tensor that an op makes may be larger.
        split_axis: the only axis that is cut: a number or a name.
        allow_reassociation: also cut where sums are then added in another order.
        external_data: put weights into a file beside the new one.
        packed_weights: put them there as kernels pack them too.
        count_mapped: count mapped files against a budget on the process.
        race: share of the time limit in which rival splits are measured.
        output: the new model; MODEL.remat.onnx where it is left out.
        plan: the plan; beside the new model where it is left out.
        force: overwrite what is there.
        device: where the model will run: "cpu", "cuda:0", a description, or several.
        estimate: estimate the costs of a device that is not here.
        overlap: copies between memories run beside ops.
        spill: let values wait on disk or in the host: "disk:FOLDER", "host".
        solver: one of `list_solvers()`.
        order: "keep" keeps the order of ops, "free" does not.
        time_limit: when to stop searching: "30s" or seconds; by default after 10 s, 30 s for a dear plan.
        gap: stop when the plan is this near the proved bound.
        verify: False runs neither model, "fast" and "thorough" check less and more.
        capped_run: run both under a hard memory cap.
        dim: sizes of symbolic dimensions: {"batch": 8}, or ranges: {"seq": "1..8192"}.
        input_shape: whole shapes of inputs: {"x": (1, 3, 224, 224)}.
        inputs: an .npz file of real inputs, instead of random ones.
        target: which processors the file is for: "here", "any", "arm64", ...
        portable: the older name of target="any".
        runtime: versions of ONNX Runtime that the file is for: ">=1.24".
        plain: leave out the form in which later runs take no more than the first.
        session: how sessions of the file will be opened: {"arena": False}.
        intra_op_threads: threads of the runtime; 0 is its own default.
        custom_ops: libraries with operators of your own.
        work_dir: keep intermediate files here.
        seed: of everything random.
        threads: of the solver; 0 is all cores.
        config: a YAML file of settings; keywords win over it.
        on_progress: gets every event; `str(event)` is a line.
        options: those of the solver, and `limit`, `run_limit`, `memory_limit` as on the command line.

    Raises:
        RematError: the model or a value cannot be used, a device is not here, or ONNX Runtime refuses the model.
    """
    given = dict(locals())
    from remat_cli.commands.compile import compile_model

    return compile_model(Path(model), _settings(given), _listening(on_progress))


def compile_for(
    model: str | Path,
    targets: Sequence[str],
    *,
    budget: str | int | float | None = None,
    output: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> TargetsReport:
    """Compile a model for several targets, such as `["here", "arm64", "wasm"]`: OUT.NAME.onnx and a plan for each.

    Other keywords are those of `compile`.

    Raises:
        RematError: as of `compile`, where it is the same for all targets; else the report says it of its target.
    """
    from remat_cli.commands.compile import compile_targets

    given = {"target": targets, "budget": budget, "output": output, **options}
    return compile_targets(Path(model), _settings(given), _listening(on_progress))


def train(
    model: str | Path,
    *,
    loss: str | None = None,
    loss_output: str | None = None,
    output_name: str | None = None,
    class_axis: int | None = None,
    batch: int | None = None,
    trainable: str | Sequence[str] | None = None,
    freeze: str | Sequence[str] | None = None,
    batch_norm: str | None = None,
    dropout: bool | None = None,
    gradient_rule: Mapping[str, str] | None = None,
    optimizer: str | None = None,
    optimizer_option: Mapping[str, float] | None = None,
    gradients_only: bool | None = None,
    keep_outputs: bool | None = None,
    output: str | Path | None = None,
    force: bool | None = None,
    budget: str | int | float | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> TrainReport:
    """Write the training step of a model and its first state; with a budget also a step that stays within it.

    Other keywords are those of `compile`.

    Raises:
        RematError: the model or a value cannot be used, or an op has no gradient rule.
    """
    given = dict(locals())
    from remat_cli.commands.train import train_model

    return train_model(Path(model), _settings(given), _listening(on_progress))


def max_batch(
    model: str | Path,
    *,
    budget: str | int | None = None,
    loss: str | None = None,
    loss_output: str | None = None,
    optimizer: str | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> MaxBatchReport:
    """Find the largest batch whose training step fits a budget with at most one forward pass computed again.

    Other keywords are those of `train`.

    Raises:
        RematError: the model or a value cannot be used, or ONNX Runtime refuses a step.
    """
    given = dict(locals())
    from remat_cli.commands.max_batch import find_max_batch

    return find_max_batch(Path(model), _settings(given), _listening(on_progress))


def profile(
    model: str | Path,
    *,
    device: str | Sequence[str] | None = None,
    estimate: bool | None = None,
    spill: str | Mapping[str, Any] | None = None,
    dim: Mapping[str, int | str] | None = None,
    input_shape: Mapping[str, Sequence[int]] | None = None,
    inputs: str | Path | None = None,
    target: str | None = None,
    portable: bool | None = None,
    intra_op_threads: int | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> ProfileReport:
    """Measure the time, workspace and tensor sizes of each op on each device; results are cached.

    Raises:
        RematError: the model or a value cannot be used, or nothing runs on a device.
    """
    given = dict(locals())
    from remat_cli.commands.profile import profile_ops

    return profile_ops(Path(model), _settings(given), _listening(on_progress))


def inspect(
    file: str | Path,
    *,
    budget: str | int | float | None = None,
    dim: Mapping[str, int | str] | None = None,
    input_shape: Mapping[str, Sequence[int]] | None = None,
    inputs: str | Path | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> InspectReport:
    """Show where the memory of a model or a plan goes: peak, what is alive there, memory over time.

    Raises:
        RematError: the file is neither a model nor a plan, or a value cannot be used.
    """
    given = dict(locals())
    from remat_cli.commands.asked import refuse_idle
    from remat_cli.commands.inspect import inspect_file

    settings = _settings(given)
    refuse_idle(Path(file), {**given, **options}, settings)
    return inspect_file(Path(file), settings, _listening(on_progress))


def verify(
    file: str | Path,
    *,
    original: str | Path | None = None,
    verify: bool | str | None = None,
    capped_run: bool | None = None,
    dim: Mapping[str, int | str] | None = None,
    inputs: str | Path | None = None,
    svg: str | Path | None = None,
    trace: str | Path | None = None,
    force: bool | None = None,
    work_dir: str | Path | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> VerifyReport | FileReport:
    """Run the original and the rewritten model of a plan, and compare them with what the plan promises.

    `file` may also be a compiled model, beside the `original` that it was made from: then with what it says of itself.
    So it is, too, where the runtime optimises the original otherwise than where the plan was made.

    Raises:
        RematError: the file cannot be read, or the models it speaks of are gone or changed.
    """
    given = {key: value for key, value in locals().items() if key not in ("file", "original")}
    from remat_cli.commands.verify import verify as verify_either

    beside = None if original is None else Path(original)
    return verify_either(Path(file), beside, _settings(given), _listening(on_progress))


def run(
    plan: str | Path,
    *,
    input: str | Path | None = None,
    output: str | Path | None = None,
    repeat: int | None = None,
    trace: str | Path | None = None,
    enforce_budget: bool = False,
    local: bool = False,
    address: str | None = None,
    resource: Sequence[str] = (),
    steps: int | None = None,
    micro_batches: int | None = None,
    flush: bool | None = None,
    learning_rate: float | None = None,
    state: str | Path | None = None,
    resume: bool = False,
    intra_op_threads: int | None = None,
    force: bool | None = None,
    seed: int | None = None,
    on_progress: Callable[[Event], None] | None = None,
) -> RunReport | PipelineRunReport:
    """Run a plan in fresh processes: time and peak memory of every device, planned beside measured.

    Of a schedule of `partition` run the stages, `steps` times with `micro_batches` each: on a Ray cluster, or with
    `local` one after another in this process.

    Raises:
        RematError: the file, its models, the inputs or an output path cannot be used, a device or Ray is not here, or
            a stage is lost.
    """
    given = dict(locals())
    from remat_cli.commands.run import ready_run

    settings = _settings({"inputs": input, "output": output, "force": force, "seed": seed})
    words = {key: given[key] for key in given if key not in ("plan", "input", "output", "force", "seed", "on_progress")}
    words |= {key: given[key] or None for key in ("enforce_budget", "local", "resume")}
    report: RunReport | PipelineRunReport = ready_run(Path(plan), words)(settings, _listening(on_progress))
    return report


def partition(
    model: str | Path,
    *,
    devices: int | str,
    memory: str | int,
    micro_batches: int = 8,
    link: str | float = "12GB/s",
    method: str = "auto",
    output: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> PartitionReport:
    """Cut a model or a training step into stages for several devices, each within its memory, and write them.

    Other keywords are those of `compile` that say how the model is read: `dim`, `inputs`, `force`, `svg`, ...

    Raises:
        RematError: the model, a value or the output folder cannot be used.
    """
    from remat_cli.pipelines.commands.asked import partition_request
    from remat_cli.pipelines.commands.partition import partition_model

    request = partition_request(devices, memory, link, micro_batches, method)
    return partition_model(Path(model), request, _settings({"output": output, **options}), _listening(on_progress))


def solve(
    instance: str | Path,
    *,
    budget: str | int | float | None = None,
    max_overhead: str | float | None = None,
    solver: str | None = None,
    order: str | None = None,
    time_limit: str | float | None = None,
    gap: str | float | None = None,
    spill: str | Mapping[str, Any] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> SolveReport:
    """Solve an abstract instance, a graph of nodes with cost and memory and of edges, within a budget.

    With `spill="host:12GB/s"` values may wait behind a link of that bandwidth; costs then count as nanoseconds. Other
    keywords are options of the solver: `solve(file, budget=0.8, solver="moccasin", max_copies=3)`.

    Raises:
        RematError: the instance or a value cannot be used.
    """
    given = dict(locals())
    from remat_cli.commands.solve import solve_instance

    return solve_instance(Path(instance), _settings(given), _listening(on_progress))


def write_report(file: str | Path, *, output: str | Path | None = None, **options: Any) -> PageReport:
    """Write a page for a browser about a model, a plan, or rows of a sweep; other keywords are those of `inspect`."""
    from remat_cli.commands.report import write_report

    return write_report(Path(file), _settings({"output": output, **options}), _listening(None))


def list_solvers() -> SolversReport:
    """List the solvers: what each takes and proves, and its options with their defaults."""
    from remat_cli.commands.solvers import list_solvers

    return list_solvers()


def doctor() -> DoctorReport:
    """Look at versions, devices, caches, kernels and memory here; what is to be done stands beside what was found."""
    from remat_cli.commands.doctor import diagnose

    return diagnose(_settings({}).cache_dir)


def examples(folder: str | Path = ".", *, force: bool | None = None, **options: Any) -> ExamplesReport:
    """Copy the sample models, examples, device files and bench files that the documentation uses into a folder.

    Other keywords are those of every command (`config`).

    Raises:
        RematError: a file of another content is there already, or one cannot be written.
    """
    from remat_cli.commands.examples import copy_examples

    return copy_examples(Path(folder), force=_settings({"force": force, **options}).force)


def compare(
    file: str | Path,
    *,
    solvers: str | Sequence[str] | None = None,
    budgets: str | Sequence[str | float] | None = None,
    svg: str | Path | None = None,
    force: bool | None = None,
    order: str | None = None,
    time_limit: str | float | None = None,
    gap: str | float | None = None,
    spill: str | Mapping[str, Any] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> CompareReport:
    """Run every solver that takes a model, or an abstract instance, at several budgets, side by side.

    Raises:
        RematError: the file or a value cannot be used, none of the solvers applies, or a run failed.
    """
    given = {key: value for key, value in locals().items() if key not in ("solvers", "budgets")}
    from remat_cli.contest.commands.compare import compare_words

    return compare_words(Path(file), _words(budgets), _words(solvers), given, _listening(on_progress))


def bench(
    file: str | Path,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    only: str | Sequence[str] = (),
    time_limit: str | float | None = None,
    markdown: str | Path | None = None,
    svg: str | Path | None = None,
    force: bool | None = None,
    seed: int | None = None,
    threads: int | None = None,
    on_progress: Callable[[Event], None] | None = None,
) -> BenchReport:
    """Run the solvers that a bench file names, each run in a process of its own; of a results file, only tabulate it.

    Raises:
        RematError: a file cannot be used or written.
    """
    suites = (only,) if isinstance(only, str) else tuple(only)
    words = {"resume": resume, "only": suites, "time_limit": time_limit, "force": force, "seed": seed}
    files = {"output": output, "markdown": markdown, "svg": svg}
    paths = {word: None if path is None else Path(path) for word, path in files.items()}
    from remat_cli.contest.bench_request import bench_request
    from remat_cli.contest.commands.bench import bench as run_bench

    request = bench_request(Path(file), {**words, **paths, "threads": threads})
    return run_bench(request, _listening(on_progress))


def sweep(
    model: str | Path,
    *,
    budgets: str | Sequence[str | float] = "20..100%",
    batch: str | int | Sequence[int] | None = None,
    executor: str = "local",
    resume: bool = False,
    output: str | Path | None = None,
    svg: str | Path | None = None,
    force: bool | None = None,
    max_overhead: str | float | None = None,
    time_limit: str | float | None = None,
    verify: bool | str | None = None,
    dim: Mapping[str, int | str] | None = None,
    inputs: str | Path | None = None,
    seed: int | None = None,
    threads: int | None = None,
    config: str | Path | None = None,
    on_progress: Callable[[Event], None] | None = None,
    **options: Any,
) -> SweepReport:
    """Compile a model at many budgets, and batches, each case in a process of its own, and tell what each costs.

    Rows are in the file `output` as they come, and `resume` keeps those. Other keywords are those of `compile`.

    Raises:
        RematError: the model, a value or the file of rows cannot be used.
    """
    given = {key: value for key, value in locals().items() if key not in ("model", "executor", "resume")}
    from remat_cli.contest.commands.sweep import sweep_words

    given |= {"budgets": _words(budgets), "batch": str(batch) if isinstance(batch, int) else _words(batch)}
    return sweep_words(Path(model), given, executor, resume, _listening(on_progress))


def load(plan: str | Path) -> LoadedPlan:
    """Open a plan, to run it often: `with remat.load("net.plan.json") as plan: y = plan.run({"x": x})`.

    Raises:
        RematError: the plan is damaged, its model is gone or changed, or a device of the plan is not here.
    """
    from remat_cli.commands.run import LoadedPlan

    return LoadedPlan(Path(plan))


def read_plan(plan: str | Path) -> PlanFile:
    """Read a plan file as a value, to look at what was planned and promised.

    Raises:
        RematError: the file is missing, truncated, no plan, of a newer version, or damaged.
    """
    from remat_cli.core.files.plan_reader import read_plan

    return read_plan(Path(plan))


def _settings(words: Mapping[str, Any]) -> Settings:
    """The settings that keywords stand for; those that are no settings are options of the solver."""
    from remat_cli.commands.asked import settings_of

    return settings_of(words)


def _listening(on_progress: Callable[[Event], None] | None) -> Any:
    from remat_cli.base.progress import listening

    return listening(on_progress)


def _words(given: str | Sequence[Any] | None) -> str | None:
    """A list as the command line takes it."""
    return given if given is None or isinstance(given, str) else ",".join(map(str, given))
