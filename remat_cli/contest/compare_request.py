"""What one `remat compare` command asks for, checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat_cli.base.errors import ConfigError
from remat_cli.base.files import check_target
from remat_cli.core.budget import Budget, parse_budget
from remat_cli.settings.settings import Settings
from remat_cli.solvers import SOLVERS, make_solver

BUDGETS = "0.9,0.8,0.7"
SECONDS = 4.0  # per run: all solvers at three budgets then end within two minutes on two cores
FOR_MODELS = ("dims", "input_shapes", "inputs", "portable", "intra_op_threads", "devices", "work_dir")


@dataclass(frozen=True)
class CompareRequest:
    """A model or an instance, budgets, and solvers with their options, in the order of the registry."""

    path: Path
    budgets: tuple[Budget, ...]
    solvers: Mapping[str, Mapping[str, Any]]
    svg: Path | None = None

    @property
    def is_instance(self) -> bool:
        """Whether the file is an abstract instance, not a model."""
        return is_instance(self.path)


def is_instance(path: Path) -> bool:
    """Instances are JSON, by their name or by how they begin."""
    if path.suffix.lower() == ".json":
        return True
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1] == b"{"


def compare_request(path: Path, budgets: str | None, solvers: str | None, config: Settings) -> CompareRequest:
    """Read the flags of the command.

    Raises:
        ConfigError: a flag makes no sense, or the picture cannot be written.
        MissingDependency: a picture is asked for, but matplotlib is not installed.
    """
    if config.svg is not None:
        from remat_cli.report.svg_chart import require_matplotlib

        check_target(config.svg, sources=(path,), overwrite=config.force)
        require_matplotlib()
    chosen = _with_options(_parse_names(solvers), config)
    return CompareRequest(path, parse_budgets(BUDGETS if budgets is None else budgets), chosen, config.svg)


def refuse_model_flags(path: Path, flags: Mapping[str, Any]) -> None:
    """An instance has neither inputs nor devices.

    Raises:
        ConfigError: a flag was given that only means something for a model.
    """
    given = [name for name in FOR_MODELS if flags.get(name) not in (None, ())]
    if given and is_instance(path):
        flag = {"dims": "dim", "input_shapes": "input-shape", "devices": "device"}.get(given[0], given[0])
        raise ConfigError(f"--{flag.replace('_', '-')} is for models; {path} is an abstract instance: leave it out")


def parse_budgets(text: str) -> tuple[Budget, ...]:
    """Budgets from `0.9,80%,512MiB`, as they come.

    Raises:
        ConfigError: one is no budget, is `min`, or is there twice; or there is none.
    """
    budgets = tuple(parse_budget(part) for part in _parts(text, "budgets", "--budgets 0.9,0.8,0.7"))
    seen: dict[tuple[Any, ...], str] = {}
    for budget in budgets:
        if any(part.kind == "min" for part in (budget, *(inner for _, inner in budget.devices))):
            raise ConfigError("budget 'min' is another one for each solver: name budgets to compare at")
        key = (budget.kind, budget.bytes, budget.fraction, budget.devices)
        if key in seen:
            raise ConfigError(f"budgets '{text}': '{seen[key]}' and '{budget.text}' are the same")
        seen[key] = budget.text
    return budgets


def _parse_names(text: str | None) -> list[str]:
    """The solvers to compare, in the order of the registry; all unless the user named some."""
    if text is None:
        return list(SOLVERS)
    names = [part.replace("_", "-") for part in _parts(text, "solvers", "--solvers auto,rotor")]
    for name in names:
        if name not in SOLVERS:
            raise ConfigError(f"no solver named '{name}'; there are: {', '.join(SOLVERS)}")
        if names.count(name) > 1:
            raise ConfigError(f"solvers '{text}': '{name}' is there twice")
    return [name for name in SOLVERS if name in names]


def _parts(text: str, what: str, example: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{what} '{text}' has an empty entry: write {example}")
    return parts


def _with_options(names: list[str], config: Settings) -> dict[str, dict[str, Any]]:
    """The options of each solver: the file's under those of the command line, `rotor.close_gaps=false`."""
    chosen = {name: dict(config.solvers.get(name, {})) for name in names}
    for key, value in config.options.items():
        solver, dot, option = key.partition(".")
        name = solver.replace("_", "-")
        if not dot or name not in chosen:
            raise ConfigError(f"option '{key}' names none of the solvers compared: write --option rotor.NAME=VALUE")
        chosen[name][option] = value
    for name, options in chosen.items():
        make_solver(name, options)
    return chosen
