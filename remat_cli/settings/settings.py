"""Everything a user can set: a YAML file under flags, checked once; the only reader of the environment."""

import os
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.files import check_target
from remat_cli.base.processes import available_cores
from remat_cli.core.budget import Budget, Scope, parse_budget, parse_share
from remat_cli.core.conditions import Conditions
from remat_cli.core.profile import DeviceSpec
from remat_cli.core.splits import DEFAULT_RACE_SHARE, SplitAxis, SplitMode, SplitOptions, parse_split_axis
from remat_cli.core.training import TrainOptions
from remat_cli.core.verification import Checks, VerifyMode
from remat_cli.devices.provider_table import is_plain, named_spec
from remat_cli.settings.devices import described_budget, memory_budgets, parse_devices, with_threads
from remat_cli.settings.train import parse_pairs, parse_train
from remat_cli.settings.yaml_file import converted, read_yaml, suggest

PRINTING = ("format", "quiet", "verbose", "color")
"""Keys of a file that are none of the work's: the command line reads them."""


class Settings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={
        "time_limit_seconds": "time_limit",
        "gap_share": "gap",
        "max_overhead_share": "max_overhead",
        "race_share": "race",
    },
):
    """All settings of a run. Keys of a YAML file are these names, without units (`time_limit`, `gap`, `max_overhead`).

    `devices` may be given as names or description files; `estimate` admits devices that are not here, at estimated
    costs; `overlap` lets copies between memories run beside ops.
    `threads` are the solver's (0: all cores), `intra_op_threads` the profile's and the run's (0: the runtime's own
    default). `max_tiles` is the most tiles of one region; `allow_reassociation` admits splits that add in another
    order, which changes the last bits of outputs. `options` are the chosen solver's, `solvers` those of any solver by
    name. `gap_share` and `max_overhead_share` are shares of the baseline time; `race_share` is the share of the time
    limit after which no more rival splits are measured. `work_dir` keeps intermediate files
    (None: a temporary directory, removed afterwards). `cache_dir` holds measured profiles.
    """

    budget: Budget | None = None
    budget_scope: Scope = "total"
    max_overhead_share: Fraction = Fraction(1, 5)
    devices: tuple[DeviceSpec, ...] = (named_spec("cpu"),)
    estimate: bool = False
    overlap: bool = False
    portable: bool = False
    intra_op_threads: int = 0

    split: SplitMode = "auto"
    max_tiles: int = 32
    split_axis: SplitAxis = SplitAxis()
    allow_reassociation: bool = False
    race_share: Fraction = DEFAULT_RACE_SHARE

    train: TrainOptions = TrainOptions()

    solver: str = "auto"
    solvers: dict[str, dict[str, Any]] = {}
    options: dict[str, Any] = {}
    order: Literal["free", "keep"] = "free"
    time_limit_seconds: float = 30.0
    gap_share: Fraction = Fraction(1, 1000)
    seed: int = 0
    threads: int = 0

    dims: dict[str, int] = {}
    input_shapes: dict[str, tuple[int, ...]] = {}
    inputs: Path | None = None
    custom_ops: tuple[Path, ...] = ()

    verify: VerifyMode = "on"
    capped_run: bool = True
    output: Path | None = None
    plan: Path | None = None
    svg: Path | None = None
    force: bool = False
    work_dir: Path | None = None
    cache_dir: Path = Path()

    @property
    def solver_options(self) -> dict[str, Any]:
        """Options of the chosen solver: the file's under the command line's."""
        return {**self.solvers.get(self.solver, {}), **self.options}

    @property
    def workers(self) -> int:
        """Threads the solver may use: `threads`, or every core this process may run on."""
        return self.threads or available_cores()

    @property
    def conditions(self) -> Conditions:
        """What stages need to know about the model and the machine."""
        return Conditions(
            devices=self.devices,
            dims=self.dims,
            input_shapes=self.input_shapes,
            inputs=self.inputs,
            seed=self.seed,
            portable=self.portable,
            estimate=self.estimate,
            intra_op_threads=self.intra_op_threads,
            custom_ops=tuple(str(library.resolve()) for library in self.custom_ops),
            cache_dir=self.cache_dir,
        )

    @property
    def checks(self) -> Checks:
        """How a plan is verified."""
        return Checks(self.verify, self.capped_run)

    @property
    def splits(self) -> SplitOptions:
        """Which splits may be made."""
        return SplitOptions(self.split, self.max_tiles, self.split_axis, self.allow_reassociation, self.race_share)

    @property
    def budgets(self) -> dict[str, Budget]:
        """The budget of each memory.

        Raises:
            ConfigError: a memory without budget or with two, or a budget that cannot hold for each of several.
        """
        return memory_budgets(self.budget, self.devices)


class Outputs(msgspec.Struct, frozen=True):
    """Where `compile` writes: the model, its plan, and the model if verification fails."""

    model: Path
    plan: Path
    failed: Path


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
    values.setdefault("cache_dir", default_cache_dir(os.environ))
    settings = converted(values, Settings)
    _check_values(settings)
    return _settled(settings)


def allows_color() -> bool:
    """Whether the environment says nothing against colors."""
    return not os.environ.get("NO_COLOR")


def default_cache_dir(environment: Mapping[str, str]) -> Path:
    """REMAT_CACHE_DIR, else `remat` in XDG_CACHE_HOME, else in ~/.cache."""
    if chosen := environment.get("REMAT_CACHE_DIR"):
        return Path(chosen).expanduser()
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "remat"


def parse_seconds(value: object) -> float:
    """Seconds from `30s`, `2m`, `500ms`, `1h` or a number of seconds.

    Raises:
        ConfigError: not a positive duration.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|min|h|)\s*", str(value))
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"time limit '{value}' is not a duration: write 30s, 2m or 500ms")
    return float(match[1]) * {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[match[2]]


def parse_dims(value: object) -> dict[str, int]:
    """Bound dimensions from `batch=8` texts, or the mapping of a YAML file.

    Raises:
        ConfigError: not NAME=SIZE with a positive size.
    """
    dims: dict[str, int] = {}
    for name, size in parse_pairs(value, "=", "dimension", "--dim batch=8").items():
        if not re.fullmatch(r"[0-9]+", str(size)) or int(size) < 1:
            raise ConfigError(f"dimension {name}={size}: the size must be a positive integer, such as --dim batch=8")
        dims[name] = int(size)
    return dims


def parse_input_shapes(value: object) -> dict[str, tuple[int, ...]]:
    """Input shapes from `x:1,3,224,224` texts, or the mapping of a YAML file.

    Raises:
        ConfigError: not NAME:SIZES with sizes of at least 0.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, sizes in parse_pairs(value, ":", "input shape", "--input-shape x:1,3,224,224").items():
        texts = [str(size) for size in sizes] if isinstance(sizes, list | tuple) else str(sizes).split(",")
        texts = [] if texts == [""] else [text.strip() for text in texts]
        if not all(re.fullmatch(r"[0-9]+", text) for text in texts):
            raise ConfigError(f"input shape {name}:{sizes} must be integers, such as --input-shape x:1,3,224,224")
        shapes[name] = tuple(int(text) for text in texts)
    return shapes


def parse_options(value: object) -> dict[str, Any]:
    """Solver options from `name=value` texts, or the mapping of a YAML file.

    Raises:
        ConfigError: not NAME=VALUE.
    """
    return {key.replace("-", "_"): v for key, v in parse_pairs(value, "=", "option", "--option max_copies=2").items()}


def _settled(settings: Settings) -> Settings:
    """The settings with devices checked.

    One CPU with threads is the CPU under `intra_op_threads`; without a budget the devices' own ones hold.

    Raises:
        ConfigError: threads are given twice and differently, or a budget of a device cannot be read.
    """
    devices, threads = with_threads(settings.devices, settings.intra_op_threads)
    budget = settings.budget or described_budget(devices)
    return msgspec.structs.replace(settings, devices=devices, intra_op_threads=threads, budget=budget)


def require_budget(settings: Settings) -> Budget:
    """The budget.

    Raises:
        ConfigError: none was given.
    """
    if settings.budget is None:
        raise ConfigError("no budget: add --budget 512MiB, --budget 80% or --budget min")
    return settings.budget


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
    return Outputs(output, plan, output.with_name(f"{name}.failed.onnx"))


def _parse_gap(value: object) -> Fraction:
    return _parse_small_share(value, "gap", 1)


def _parse_max_overhead(value: object) -> Fraction:
    return _parse_small_share(value, "max overhead", 100)


def _parse_race(value: object) -> Fraction:
    return _parse_small_share(value, "race", 1)


def _parse_small_share(value: object, what: str, most: int) -> Fraction:
    """A share; without a percent sign a number above 1 is refused, since 20 would hardly mean 2000 %."""
    share = parse_share(str(value), what)
    if share > (most if "%" in str(value) else 1):
        raise ConfigError(f"{what} '{value}' is too large: write a percentage such as 20%, or a fraction such as 0.2")
    return share


def _parse_budget(value: object) -> Budget:
    if isinstance(value, dict):
        value = ",".join(f"{device}={amount}" for device, amount in value.items())
    return parse_budget(str(value))


def _parse_split(value: object) -> str:
    """A mode; YAML reads a bare `off` as false."""
    word = "off" if value is False else "on" if value is True else str(value)
    if word not in get_args(SplitMode):
        raise ConfigError(f"split '{word}' is not a mode: write auto, off or max")
    return word


def _parse_verify(value: object) -> str:
    """A mode; YAML and Python say true and false."""
    word = {"True": "on", "False": "off", "true": "on", "false": "off"}.get(str(value), str(value))
    if word not in get_args(VerifyMode):
        raise ConfigError(f"verify '{word}' is not a mode: write true, false, fast or thorough")
    return word


def _parse_axis(value: object) -> SplitAxis:
    return parse_split_axis(str(value))


def _parse_solvers(value: object) -> object:
    if not isinstance(value, dict):
        raise ConfigError("solvers must map solver names to their options, such as `moccasin: {max_copies: 2}`")
    return {str(name).replace("_", "-"): options or {} for name, options in value.items()}


def _parse_path(value: object) -> Path:
    return Path(str(value)).expanduser()


def _parse_paths(value: object) -> tuple[Path, ...]:
    return tuple(map(_parse_path, value if isinstance(value, list | tuple) else (value,)))


PARSERS: Mapping[str, Callable[[object], object]] = {
    "budget": _parse_budget,
    "max_overhead": _parse_max_overhead,
    "gap": _parse_gap,
    "race": _parse_race,
    "split": _parse_split,
    "split_axis": _parse_axis,
    "verify": _parse_verify,
    "time_limit": parse_seconds,
    "devices": parse_devices,
    "solvers": _parse_solvers,
    "options": parse_options,
    "dims": parse_dims,
    "input_shapes": parse_input_shapes,
    "train": parse_train,
    "inputs": _parse_path,
    "custom_ops": _parse_paths,
    "output": _parse_path,
    "plan": _parse_path,
    "svg": _parse_path,
    "work_dir": _parse_path,
    "cache_dir": _parse_path,
}


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
    """Check what no parser has looked at."""
    for name in ("seed", "threads", "intra_op_threads"):
        if getattr(settings, name) < 0:
            raise ConfigError(f"{name} = {getattr(settings, name)} must not be negative")
    if settings.max_tiles < 2:
        raise ConfigError(f"max_tiles = {settings.max_tiles} must be at least 2; to keep ops whole write --split off")
    names = [spec.name for spec in settings.devices]
    if twice := [spec for spec in settings.devices if names.count(spec.name) > 1]:
        which = "one" if all(map(is_plain, twice)) else f"'{twice[0].name}'"
        raise ConfigError(f"devices {', '.join(names)}: {which} is named twice")
    if settings.inputs is not None and not settings.inputs.is_file():
        raise ConfigError(f"inputs file {settings.inputs} does not exist")
    if missing := [library for library in settings.custom_ops if not library.is_file()]:
        raise ConfigError(f"custom operator library {missing[0]} does not exist")
    if settings.work_dir is not None and not settings.work_dir.is_dir():
        raise ConfigError(f"work directory {settings.work_dir} does not exist: create it")
