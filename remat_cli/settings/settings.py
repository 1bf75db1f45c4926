"""Everything a user can set: a YAML file under flags, checked once; the only reader of the environment."""

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.files import check_target
from remat_cli.base.processes import available_cores, has_glibc
from remat_cli.core.schedule.splits import DEFAULT_RACE_SHARE, SplitAxis, SplitMode, SplitOptions
from remat_cli.core.values.budget import WHOLE, AskedBudget, Scope
from remat_cli.core.values.conditions import CPU, HEAP_BYTES, Conditions
from remat_cli.core.values.profile import HOST_MEMORY, DeviceSpec
from remat_cli.core.values.runs_on import RuntimeRange
from remat_cli.core.values.session import AskedSession
from remat_cli.core.values.sizes import Dim, SizeFamily, SizeLimit, SizeRange, dim_told
from remat_cli.core.values.spill import HOST, SpillSpec
from remat_cli.core.values.training import TrainOptions
from remat_cli.core.values.verification import Checks, VerifyMode
from remat_cli.devices.provider_table import PROVIDERS, is_plain, named_spec
from remat_cli.settings import cache_place
from remat_cli.settings.devices import by_memory, described_budget, with_threads
from remat_cli.settings.parsers import PARSERS, Target
from remat_cli.settings.yaml_file import converted, read_yaml, suggest

PRINTING = ("format", "quiet", "verbose", "color")
"""Keys of a file that are none of the work's: the command line reads them."""

SEARCH_SECONDS = 30.0
LEAST_OVERHEAD_SHARE = Fraction(1, 5)  # of the time of the model as it is, for `--budget min`


class Settings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={
        "time_limit_seconds": "time_limit",
        "input_files": "inputs",
        "run_limit_seconds": "run_limit",
        "memory_limit_bytes": "memory_limit",
        "gap_share": "gap",
        "max_overhead_share": "max_overhead",
        "race_share": "race",
        "max_tensor_bytes": "max_tensor",
        "targets": "target",
        "runtimes": "runtime",
    },
):
    """All settings of a run. Keys of a YAML file are these names, without units (`time_limit`, `gap`, `max_overhead`).

    `devices` may be given as names or description files; `estimate` admits devices that are not here, at estimated
    costs; `overlap` lets copies between memories run beside ops. `spill` is where values may wait (None: nowhere).
    `budget_scope` None is the command's own choice. `external_data` puts weights into a file beside the model (None:
    where they are large); a process maps it, and `count_mapped` counts that against a budget on the process. `plain`
    leaves out the form in which later runs take what the first one took. `targets` say which processors a file is for,
    of which `compile` takes several, each with a file of its own; `portable` is an older name of `any`. `runtimes` are
    the versions of ONNX Runtime that it is for. `session` is how sessions of the file will be opened, for which it is
    made and verified.
    `threads` are the solver's (0: all cores), `intra_op_threads` the profile's and the run's (0: the runtime's own
    default). `max_tiles` is the most tiles of one region, `max_tensor_bytes` the most of a tensor that an op makes;
    `allow_reassociation` admits splits that add in another order, which changes the last bits of outputs. `options` are
    the chosen solver's, `solvers` those of any solver by name. `gap_share` and `max_overhead_share` are shares of the
    baseline time, the latter None for `LEAST_OVERHEAD_SHARE` where the budget is `min`, else for what the kind of plan
    may cost; `race_share` is the share of the time limit after which no more rival splits are measured. Without a
    `time_limit_seconds` a search may take SEARCH_SECONDS; that of a compile is brief first, where a plan is found so.
    `run_limit_seconds` is how long runs of the model may show no progress, `memory_limit_bytes` what each process may
    have (None: what the machine has). `work_dir` keeps intermediate files (None: a temporary directory, removed
    afterwards). `cache_dir` holds measured profiles.
    """

    budget: AskedBudget | None = None
    budget_scope: Scope | Literal["total"] | None = None
    max_overhead_share: Fraction | None = None
    devices: tuple[DeviceSpec, ...] = (named_spec("cpu"),)
    estimate: bool = False
    overlap: bool = False
    spill: SpillSpec | None = None
    targets: tuple[Target, ...] = ("here",)
    portable: bool = False
    runtimes: RuntimeRange | None = None
    plain: bool = False
    session: AskedSession = AskedSession()
    intra_op_threads: int = 0

    split: SplitMode = "auto"
    max_tiles: int = 32
    max_tensor_bytes: int | None = None
    split_axis: SplitAxis = SplitAxis()
    allow_reassociation: bool = False
    race_share: Fraction = DEFAULT_RACE_SHARE

    train: TrainOptions = TrainOptions()

    solver: str = "auto"
    solvers: dict[str, dict[str, Any]] = {}
    options: dict[str, Any] = {}
    order: Literal["free", "keep"] = "free"
    time_limit_seconds: float | None = None
    gap_share: Fraction = Fraction(1, 1000)
    seed: int = 0
    threads: int = 0

    dims: dict[str, int | SizeRange | str] = {}
    limits: tuple[SizeLimit, ...] = ()
    input_shapes: dict[str, tuple[int, ...]] = {}
    input_files: tuple[Path, ...] = ()
    custom_ops: tuple[Path, ...] = ()

    run_limit_seconds: float = 3600.0
    memory_limit_bytes: int | None = None

    verify: VerifyMode = "on"
    capped_run: bool = True
    external_data: bool | None = None
    packed_weights: bool = True
    count_mapped: bool = False
    output: Path | None = None
    plan: Path | None = None
    svg: Path | None = None
    trace: Path | None = None
    overlay: Path | None = None
    force: bool = False
    work_dir: Path | None = None
    cache_dir: Path = Path()

    @property
    def target(self) -> Target:
        """The first of the targets, which is the only one of all but `compile`."""
        return self.targets[0]

    @property
    def search_seconds(self) -> float:
        """How long a search may take."""
        return SEARCH_SECONDS if self.time_limit_seconds is None else self.time_limit_seconds

    @property
    def solver_options(self) -> dict[str, Any]:
        """Options of the chosen solver: the file's under the command line's."""
        return {**self.solvers.get(self.solver, {}), **self.options}

    @property
    def inputs(self) -> Path | None:
        """The first file of real inputs."""
        return next(iter(self.input_files), None)

    @property
    def least_overhead_share(self) -> Fraction:
        """The extra time that `--budget min` may cost."""
        return LEAST_OVERHEAD_SHARE if self.max_overhead_share is None else self.max_overhead_share

    @property
    def workers(self) -> int:
        """Threads the solver may use: `threads`, or every core this process may run on."""
        return self.threads or available_cores()

    @property
    def scope(self) -> Scope:
        """What a budget bounds, by default everything that is live; `total` is an older name of `live`."""
        return "live" if self.budget_scope is None or self.budget_scope == "total" else self.budget_scope

    @property
    def compile_scope(self) -> Scope:
        """What the budget of a compile bounds: bytes on the CPU alone bound the process.

        Raises:
            ConfigError: a process is to be bound by what cannot say so.
        """
        budget, conditions = self.budget, self.conditions
        is_bytes = budget is not None and budget.kind == "bytes"
        can_be = is_bytes and conditions.may_be_alone and is_plain(self.devices[0]) and not self.portable
        can_be = can_be and self.spill is None and self._has_process_promise
        if self.budget_scope == "process" and not can_be:
            text = "" if budget is None else f" '{budget.text}'"
            reason = f"--target {self.target}" if self.portable else "several devices or another one than the CPU"
            reason = reason if self.spill is None else "--spill"
            reason = reason if self._has_process_promise else "--session arena=off on a system without glibc"
            why = f"budget{text} is not bytes" if not is_bytes else f"it does not go with {reason}"
            raise ConfigError(f"--budget-scope process: {why}: write one such as 512MiB, or --budget-scope live")
        return "process" if self.budget_scope is None and can_be else self.scope

    @property
    def least_bounds(self) -> Literal["live", "process"]:
        """What `--budget min` makes least: the process on the CPU at one size, unless `--budget-scope` is given."""
        conditions = self.conditions
        is_alone = conditions.may_be_alone and is_plain(self.devices[0]) and self.spill is None
        is_known = is_alone and conditions.family is None and not self.portable and self._has_process_promise
        return "process" if self.budget_scope is None and is_known else "live"

    @property
    def _has_process_promise(self) -> bool:
        """Whether it is known how the session that was asked for takes memory from the system."""
        return self.session.arena or has_glibc()

    @property
    def summed(self) -> dict[str, Dim]:
        """The dimensions that are sums of others."""
        told = {name: dim_told(size) for name, size in self.dims.items() if isinstance(size, str)}
        return {name: total for name, total in told.items() if total is not None}

    @property
    def family(self) -> SizeFamily | None:
        """All sizes to compile for, where some dimensions are ranges.

        Raises:
            ConfigError: a sum or a limit speaks of a dimension that is not there, or a limit leaves nothing.
        """
        ranges = tuple(size for size in self.dims.values() if isinstance(size, SizeRange))
        fixed = {name: size for name, size in self.dims.items() if isinstance(size, int)}
        for name, total in self.summed.items():
            if missing := total.names - fixed.keys() - {each.name for each in ranges}:
                raise ConfigError(f"--dim {name}={total}: there is no --dim {min(missing)}; give its size or range too")
        for limit in self.limits:
            if unknown := [name for name in limit.names if isinstance(self.dims.get(name, ""), str)]:
                raise ConfigError(f"--limit {limit}: there is no --dim {unknown[0]}; give its range first")
            if not limit.holds(SizeFamily(ranges, fixed=fixed).least):
                raise ConfigError(f"--limit {limit}: no sizes keep it: the least ones are above it already")
        return SizeFamily(ranges, self.limits, fixed) if ranges else None

    @property
    def conditions(self) -> Conditions:
        """What stages need to know about the model and the machine.

        Raises:
            ConfigError: values cannot be paged from these devices to that memory, or there are several targets.
        """
        if len(self.targets) > 1:
            raise ConfigError(
                f"--target {','.join(self.targets)}: only `compile` (`compile_for` in Python) takes several"
            )
        if self.spill is not None:
            _check_spill(self.spill, self.devices)
        family = self.family
        corner = {} if family is None else family.corners[0]  # the sizes that a plan for a family is made for
        return Conditions(
            devices=self.devices,
            dims={name: size for name, size in self.dims.items() if isinstance(size, int)} | corner,
            summed=self.summed,
            family=family,
            input_shapes=self.input_shapes,
            inputs=self.inputs,
            more_inputs=self.input_files[1:],
            seed=self.seed,
            portable=self.portable,
            target=self.target if self.target not in ("here", "any") else "",
            heap_bytes=HEAP_BYTES.get(self.target),
            runtimes=self.runtimes,
            plain=self.plain,
            session=self.session,
            estimate=self.estimate,
            intra_op_threads=self.intra_op_threads,
            custom_ops=tuple(str(library.resolve()) for library in self.custom_ops),
            cache_dir=self.cache_dir,
            forgets_costs=cache_place.is_temporary(self.cache_dir),
            run_seconds=self.run_limit_seconds,
            spill=self.spill,
        )

    @property
    def checks(self) -> Checks:
        """How a plan is verified."""
        return Checks(self.verify, self.capped_run, self.svg is not None or self.trace is not None)

    @property
    def splits(self) -> SplitOptions:
        """Which splits may be made."""
        return SplitOptions(
            self.split,
            self.max_tiles,
            self.split_axis,
            self.allow_reassociation,
            self.race_share,
            self.max_tensor_bytes,
        )


class Outputs(msgspec.Struct, frozen=True):
    """Where `compile` writes: the model, its plan, the model if verification fails, and the same with gates.

    That with gates is written for one device that needs sessions of remat's otherwise.
    """

    model: Path
    plan: Path
    failed: Path
    gated: Path


def load_settings(
    flags: Mapping[str, Any], file: Path | None = None, defaults: Mapping[str, Any] | None = None
) -> Settings:
    """Settings from a YAML file, if any, under the flags that were given (None and empty: not given).

    `defaults` are a command's own, in place of those of `Settings`.

    Raises:
        ConfigError: an unknown key, or a value that cannot be used; the text names key, value and a next step.
    """
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    values = _parse(defaults or {}, "") | (_parse(read_yaml(file), f"{file}: ") if file else {})
    for key, value in _parse(given, "").items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) else value
    if "cache_dir" not in values:
        values["cache_dir"] = cache_place.usable_cache_dir(os.environ)
    settings = converted(values, Settings)
    _check_values(settings)
    # One CPU with threads is the CPU under `intra_op_threads`; without a budget the devices' own ones hold.
    devices, threads = with_threads(settings.devices, settings.intra_op_threads)
    of_session = settings.session.threads
    if of_session and threads not in (0, of_session):
        raise ConfigError(f"--session threads={of_session}: {threads} threads are given too: leave one of them out")
    threads = of_session or threads
    budget = settings.budget or described_budget(devices)
    portable = settings.portable or settings.targets != ("here",)
    spill = settings.spill or next((spec.spill for spec in devices if spec.spill is not None), None)
    return msgspec.structs.replace(
        settings, devices=devices, intra_op_threads=threads, budget=budget, spill=spill, portable=portable
    )


def allows_color() -> bool:
    """Whether the environment says nothing against colors."""
    return not os.environ.get("NO_COLOR")


def keep_kernels() -> None:
    """Let numba keep compiled kernels where it can; to be called before it is imported."""
    cache_place.keep_kernels(os.environ)


def _check_spill(spill: SpillSpec, devices: Sequence[DeviceSpec]) -> None:
    """Refuse memories to page to that do not lie behind the device's: a disk behind the CPU's, the host behind others.

    Raises:
        ConfigError: not behind these.
    """
    names = ", ".join(spec.name for spec in devices)
    if len(devices) > 1:
        raise ConfigError(f"--spill {spill.name}: values are paged from one device's memory only, not from {names}")
    if spill.memory != HOST and devices[0].provider != CPU:
        raise ConfigError(
            f"--spill {spill.name}: values are paged from the CPU's memory only, not from {names}; write host"
        )
    if spill.memory == HOST and devices[0].memory == HOST_MEMORY:
        raise ConfigError(
            f"--spill host: {names} uses the host's memory itself; name a device with its own, or disk:DIR"
        )


def require_budget(settings: Settings) -> AskedBudget:
    """The budget as it was written; where only tensors are to be small, what the model needs.

    Raises:
        ConfigError: none was given.
    """
    if settings.budget is not None:
        return settings.budget
    if settings.max_tensor_bytes is None:
        raise ConfigError("no budget: add --budget 512MiB, --budget 80% or --budget min")
    return WHOLE


def asked_budget(settings: Settings, scope: Scope) -> AskedBudget:
    """The budget of each memory, and what it bounds: all that is known before a baseline is.

    Raises:
        ConfigError: there is none; a memory has none or two, or the budget cannot hold for each of several.
    """
    return by_memory(require_budget(settings), settings.devices).bounding(scope)


def output_paths(model: Path, settings: Settings) -> Outputs:
    """Where `compile` writes, checked before any work; defaults stand beside the model.

    Raises:
        ConfigError: a path cannot be written, exists without --force, or is the model itself.
    """
    output = settings.output or model.with_name(f"{model.stem}.remat.onnx")
    name = output.name.removesuffix(".onnx")
    plan = settings.plan or output.with_name(f"{name.removesuffix('.remat')}.plan.json")
    check_target(output, sources=(model,), overwrite=settings.force)
    check_target(plan, sources=(model, output), overwrite=settings.force)
    gated = output.with_name(f"{name}.gated.onnx")
    spec, provider = settings.devices[0], PROVIDERS[settings.devices[0].provider]
    is_one_accelerator = len(settings.devices) == 1 and spec.provider != CPU
    # Sessions of remat's are needed by some providers, and by devices that a file describes.
    if is_one_accelerator and provider.gates is not None and (provider.needs_sessions or not is_plain(spec)):
        check_target(gated, sources=(model, output, plan), overwrite=settings.force)
    return Outputs(output, plan, output.with_name(f"{name}.failed.onnx"), gated)


def _parse(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values in the form that `Settings` takes; `where` opens the messages."""
    known = [field.encode_name for field in msgspec.structs.fields(Settings)]
    for key in values:
        if key not in (*known, *PRINTING):
            raise ConfigError(f"{where}unknown key '{key}'{suggest(key, known)}")
    try:
        return {key: PARSERS[key](value) if key in PARSERS else value for key, value in values.items() if key in known}
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def _check_values(settings: Settings) -> None:
    """Check values that have no parser."""
    for name in ("seed", "threads", "intra_op_threads"):
        if getattr(settings, name) < 0:
            raise ConfigError(f"{name} = {getattr(settings, name)} must not be negative")
    if settings.max_tiles < 2:
        raise ConfigError(f"max_tiles = {settings.max_tiles} must be at least 2; to keep ops whole write --split off")
    _check_session(settings)
    names = [spec.name for spec in settings.devices]
    if twice := [spec for spec in settings.devices if names.count(spec.name) > 1]:
        which = "one" if all(map(is_plain, twice)) else f"'{twice[0].name}'"
        raise ConfigError(f"devices {', '.join(names)}: {which} is named twice")
    if absent := [file for file in settings.input_files if not file.is_file()]:
        raise ConfigError(f"inputs file {absent[0]} does not exist")
    if missing := [library for library in settings.custom_ops if not library.is_file()]:
        raise ConfigError(f"custom operator library {missing[0]} does not exist")
    if settings.work_dir is not None and not settings.work_dir.is_dir():
        raise ConfigError(f"work directory {settings.work_dir} does not exist: create it")


def _check_session(settings: Settings) -> None:
    """Refuse session options, and versions of the runtime, of which nothing is promised.

    Raises:
        ConfigError: options that are not promised together, or some where sessions are not the caller's alone.
    """
    asked, is_alone = settings.session, len(settings.devices) == 1 and settings.devices[0].provider == CPU
    if settings.runtimes is not None and (settings.spill is not None or not is_alone):
        other = "--spill" if is_alone else "several devices or another one than the CPU"
        raise ConfigError(
            f"--runtime {settings.runtimes}: nothing is promised of it with {other}: leave one of them out"
        )
    if asked.contradiction:
        raise ConfigError(f"--session {asked.contradiction}: nothing is promised of both together: leave one out")
    reasons = {
        "--portable": settings.portable,
        f"--target {','.join(settings.targets)}": settings.targets != ("here",),
        "--spill": settings.spill is not None,
        "several devices or another one than the CPU": not is_alone,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if asked.changed and why is not None:
        raise ConfigError(f"--session {asked.words[0]}: nothing is promised of it with {why}: leave one of them out")
