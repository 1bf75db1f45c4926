"""A bench file: which solvers run on which instances, checked before any work, and the list of runs it asks for."""

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.processes import available_cores
from remat_cli.contest.report.bench_run import BenchCase
from remat_cli.core.values.budget import AskedBudget, parse_budget, parse_share
from remat_cli.settings.parsers import parse_seconds
from remat_cli.settings.yaml_file import read_yaml

Scalar: TypeAlias = str | int | float
GLOB = re.compile(r"[*?\[]")
DEFAULTS = ("seeds", "time_limit", "threads", "gap", "orders", "budgets", "solvers", "reference", "work")


class SuiteSolver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A solver in a suite; `label` (default: the name) tells apart two entries with other options.

    `time_limit` and `seeds` replace the suite's.
    """

    name: str
    label: str = ""
    options: dict[str, Any] = {}
    time_limit: Scalar | None = None
    seeds: tuple[int, ...] | None = None

    @property
    def title(self) -> str:
        """What tables call the solver."""
        return self.label or self.name


class InstanceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Instance files, by path or pattern; `budgets` replace the suite's, `targets` map budgets to overheads in %."""

    path: str
    budgets: tuple[Scalar, ...] | None = None
    targets: dict[Scalar, float] = {}


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Solvers x instances x budgets x orders x seeds.

    `kind: tight` looks for the smallest budget with a plan instead, on a grid of fractions of `step`, by bisection;
    `time_limit` is then that of each attempt. An `optional` suite leaves out instances that are not there. `reference`
    is the solver (by label) with which times are compared, `threads` 0 all cores, `gap` the proved gap at which a run
    may end.
    """

    name: str
    solvers: tuple[str | SuiteSolver, ...]
    instances: tuple[str | InstanceEntry, ...]
    budgets: tuple[Scalar, ...] = ()
    orders: tuple[Literal["free", "keep"], ...] = ("free",)
    seeds: tuple[int, ...] = (0,)
    time_limit: Scalar = "30s"
    threads: int = 0
    gap: Scalar = "0%"
    work: int | None = None
    optional: bool = False
    kind: Literal["runs", "tight"] = "runs"
    step: float = 0.01
    reference: str | None = None


@dataclass(frozen=True)
class Target:
    """A case with what is needed to run it: the instance's file, and for tight suites the step of the grid."""

    case: BenchCase
    path: Path
    step: float | None = None


@dataclass(frozen=True)
class Bench:
    """All runs that a bench file asks for, and the instances that optional suites did not find."""

    targets: tuple[Target, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class Overrides:
    """What the command line says about all suites; None and empty: nothing."""

    only: tuple[str, ...] = ()
    seed: int | None = None
    threads: int | None = None
    time_limit: float | None = None


def load_bench(file: Path, overrides: Overrides) -> Bench:
    """Read a bench file and list its runs, suite by suite.

    Raises:
        ConfigError: the file is wrong, names what does not exist, or lacks a suite that `overrides.only` names.
    """
    values = read_yaml(file)
    raw = values.pop("suites", None)
    for key in values:
        if key not in DEFAULTS:
            raise ConfigError(f"{file}: unknown key '{key}'{_suggest(key, ['suites', *DEFAULTS])}")
    if not isinstance(raw, list) or not raw:
        raise ConfigError(f"{file}: `suites` must be a list with at least one suite")
    suites = tuple(_read_suite(file, number, item, values) for number, item in enumerate(raw, 1))
    _refuse_doubles(f"{file}: two suites are named", [suite.name for suite in suites])
    names = [suite.name for suite in suites]
    for name in overrides.only:
        if name not in names:
            raise ConfigError(f"{file} has no suite '{name}'; there are: {', '.join(names)}")
    targets: list[Target] = []
    skipped: list[str] = []
    for suite in suites:
        if not overrides.only or suite.name in overrides.only:
            # The suite under what the command line says about all.
            seeds = None if overrides.seed is None else (overrides.seed,)
            given = {"threads": overrides.threads, "time_limit": overrides.time_limit, "seeds": seeds}
            changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
            own = {key: None for key in ("time_limit", "seeds") if key in changes}
            solvers = tuple(msgspec.structs.replace(solver, **own) for solver in _solvers(suite))
            asked = msgspec.structs.replace(suite, solvers=solvers, **changes)
            found, missing = _find_instances(asked, file)
            skipped += missing
            targets += [target for one in found for target in _targets(asked, *one)]
    return Bench(tuple(targets), tuple(skipped))


def _read_suite(file: Path, number: int, raw: object, defaults: Mapping[str, Any]) -> Suite:
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: suite {number} must hold `key: value` lines")
    where = f"{file}: suite {raw.get('name', number)}"
    own = {key: value for key, value in defaults.items() if key != "budgets" or raw.get("kind") != "tight"}
    try:
        suite = msgspec.convert({**own, **raw}, Suite)
        _check_suite(suite)
    except msgspec.ValidationError as error:
        # In the words of the file.
        text, _, place = str(error).partition(" - at `$")
        key = place.strip("`.")
        told = f": {text}"
        if unknown := re.search(r"unknown field `(.*)`", text):
            kinds: dict[str, type[msgspec.Struct]] = {"solvers": SuiteSolver, "instances": InstanceEntry}
            kind = next((kind for start, kind in kinds.items() if key.startswith(start)), Suite)  # of `solvers[0]`, say
            known = [item.encode_name for item in msgspec.structs.fields(kind)]
            told = f": unknown key '{unknown[1]}'{_suggest(unknown[1], known)}"
        elif absent := re.search(r"missing required field `(.*)`", text):
            told = f": needs the key '{absent[1]}'"
        raise ConfigError(f"{where}{f' in {key}' if key else ''}{told}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return suite


def _suggest(key: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(key, known, 1, 0.5)
    return f"; did you mean '{nearest[0]}'?" if nearest else f"; known keys: {', '.join(known)}"


def _check_suite(suite: Suite) -> None:
    """Check values that their types do not."""
    from remat_cli.solvers import make_solver

    solvers, instances = _solvers(suite), _instances(suite)
    for solver in solvers:
        make_solver(solver.name, solver.options)
        parse_seconds(solver.time_limit or suite.time_limit)
    titles = [solver.title for solver in solvers]
    _refuse_doubles("give each a `label`: two solvers are named", titles)
    if suite.reference is not None and suite.reference not in titles:
        raise ConfigError(f"reference '{suite.reference}' is none of its solvers: {', '.join(titles)}")
    for entry in instances:
        budgets = [_budget(value) for value in (suite.budgets if entry.budgets is None else entry.budgets)]
        if suite.kind == "runs" and not budgets:
            raise ConfigError(f"{entry.path} has no budgets: add `budgets: [0.9, 0.8]`")
        if suite.kind == "tight" and budgets:
            raise ConfigError("a tight suite looks for the budget itself: leave out `budgets`")
        for value in entry.targets:
            if _budget(value) not in budgets:
                raise ConfigError(f"{entry.path} has a target for budget {value}, which is none of its budgets")
    _check_numbers(suite, solvers)
    parse_share(str(suite.gap), "gap")


def _check_numbers(suite: Suite, solvers: tuple[SuiteSolver, ...]) -> None:
    lengths = {"solvers": len(solvers), "instances": len(suite.instances), "orders": len(suite.orders)}
    seeds = {"seeds": suite.seeds} | {
        f"seeds of {solver.title}": solver.seeds for solver in solvers if solver.seeds is not None
    }
    for name, length in (lengths | {name: len(values) for name, values in seeds.items()}).items():
        if not length:
            raise ConfigError(f"{name} is empty")
    for name, values in seeds.items():
        if min(values) < 0:
            raise ConfigError(f"{name} must not be negative")
    if suite.threads < 0 or (suite.work is not None and suite.work < 1):
        raise ConfigError("threads must not be negative, and work must be positive")
    if not 0.001 <= suite.step <= 0.5:
        raise ConfigError(f"step {suite.step} must lie between 0.001 and 0.5")


def _refuse_doubles(complaint: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{complaint} '{name}'")


def _budget(value: Scalar) -> AskedBudget:
    """A budget that is known before the run; two that mean the same are equal."""
    budget = parse_budget(str(value))
    if budget.kind not in ("bytes", "fraction"):
        raise ConfigError(f"budget '{value}' is not one fraction or number of bytes")
    return msgspec.structs.replace(budget, text="")


def _solvers(suite: Suite) -> tuple[SuiteSolver, ...]:
    return tuple(SuiteSolver(item) if isinstance(item, str) else item for item in suite.solvers)


def _instances(suite: Suite) -> tuple[InstanceEntry, ...]:
    return tuple(InstanceEntry(item) if isinstance(item, str) else item for item in suite.instances)


def _find_instances(suite: Suite, file: Path) -> tuple[list[tuple[InstanceEntry, Path, str]], list[str]]:
    """The files of a suite with their paths as shown, and the entries of an optional suite that match none."""
    found: list[tuple[InstanceEntry, Path, str]] = []
    missing = []
    for entry in _instances(suite):
        paths = _match(entry.path, file.parent) or _match(entry.path, Path())
        if not paths and not suite.optional:
            where = f"{file}: suite {suite.name}: instance {entry.path}"
            if (file.parent / entry.path).is_dir() or Path(entry.path).is_dir():
                raise ConfigError(f"{where} is a folder: write {entry.path.rstrip('/')}/*.json for the files in it")
            raise ConfigError(
                f"{where} does not exist, neither from {file.parent} nor from here; `optional: true` would skip it"
            )
        folder = Path(entry.path).parent
        for path in paths:  # a results file never names an instance by a path of this machine
            found.append((entry, path, path.name if folder.is_absolute() else (folder / path.name).as_posix()))
        missing += [] if paths else [f"{suite.name}: {entry.path}"]
    return found, missing


def _match(pattern: str, folder: Path) -> list[Path]:
    """Files that a path or a pattern (in its last part) names, in order of their names."""
    path = folder / pattern
    if GLOB.search(path.name):
        return sorted(item for item in path.parent.glob(path.name) if item.is_file())
    return [path] if path.is_file() else []


def _targets(suite: Suite, entry: InstanceEntry, path: Path, shown: str) -> Iterator[Target]:
    """Every run of one instance, the solvers next to each other so that a busy hour hits all of them."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    budgets = entry.budgets if entry.budgets is not None else suite.budgets
    is_tight = suite.kind == "tight"
    solvers = list(enumerate(_solvers(suite)))
    seeds = {place: suite.seeds if solver.seeds is None else solver.seeds for place, solver in solvers}
    runs = sorted(
        ((seed, place, solver) for place, solver in solvers for seed in seeds[place]), key=lambda run: run[:2]
    )
    for budget, order in product(("tight",) if is_tight else budgets, suite.orders):
        wanted = None if is_tight else _budget(budget)
        target = next((percent for value, percent in entry.targets.items() if _budget(value) == wanted), None)
        for seed, _, solver in runs:
            case = BenchCase(
                suite=suite.name,
                probe=is_tight,
                instance=path.stem,
                instance_path=shown,
                instance_sha256=digest,
                budget=str(budget),
                order=order,
                solver=solver.name,
                label=solver.title,
                options=solver.options,
                seed=seed,
                threads=suite.threads or available_cores(),
                time_limit_seconds=parse_seconds(solver.time_limit or suite.time_limit),
                gap_percent_asked=float(100 * parse_share(str(suite.gap), "gap")),
                work=suite.work,
                target_percent=target,
                reference=suite.reference,
            )
            yield Target(case, path, suite.step if is_tight else None)
