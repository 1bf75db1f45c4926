"""What a command is asked for: keywords as settings, and settings as what stages take."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.solve import Search
from remat_cli.core.files.plan_file import is_plan
from remat_cli.core.values.budget import Scope
from remat_cli.core.values.resident import WeightFiles
from remat_cli.report.pictures.svg_chart import require_matplotlib
from remat_cli.settings.keywords import as_flags
from remat_cli.settings.settings import Settings, asked_budget, load_settings
from remat_cli.settings.yaml_file import suggest
from remat_cli.solvers import SOLVERS, make_pager, make_solver, pager_class, solver_class
from remat_cli.solvers.base import Limits

R = TypeVar("R")
SEARCH_WORDS: Mapping[str, str] = MappingProxyType(
    {
        word: f"--{word.replace('_', '-')}"
        for word in ("max_overhead", "max_tensor", "split", "max_tiles", "split_axis", "allow_reassociation", "race")
    }
    | {"device": "--device", "devices": "--device"}
)
"""Words of `inspect` that say how a plan is to be made, as the command line and Python name them."""
BUDGET_WORDS: Mapping[str, str] = MappingProxyType({"max_overhead": "--max-overhead", "budget_scope": "--budget-scope"})
"""Words that speak of a budget."""
NO_WORDS = frozenset({"model", "file", "instance", "on_progress", "options", "config"})


def settings_of(words: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Settings:
    """Settings from the keywords of a Python function: those that are no settings are options of the solver.

    Raises:
        ConfigError: a keyword that is neither, or a value that cannot be used.
    """
    given = {key: value for key, value in {**words, **words.get("options", {})}.items() if key not in NO_WORDS}
    config = words.get("config")
    flags, options = as_flags(given)
    settings = load_settings({**flags, "options": options}, None if config is None else Path(config), defaults)
    kind = solver_class(settings.solver) if settings.spill is None else pager_class(settings.solver)
    own = [field.encode_name for field in msgspec.structs.fields(kind)]
    understood = [*own, *(word for word in given if word not in options)]
    for key in options:
        if key.partition(".")[0] not in (*own, *(name.replace("-", "_") for name in SOLVERS)):
            raise ConfigError(f"unknown keyword '{key}'{suggest(key, understood)}")
    return settings


def search_of(settings: Settings) -> Search:
    """The solver, its limits and what else says how plans are searched for.

    Raises:
        ConfigError: no such solver, no such option, a value that it cannot have, or a least budget for plans that page.
    """
    limits = Limits(
        seconds=settings.search_seconds,
        workers=settings.workers,
        seed=settings.seed,
        gap=float(settings.gap_share),
        order=settings.order,
    )
    if settings.spill is not None:
        pager = make_pager(settings.solver, settings.solver_options)
        asked = settings.budget
        if asked is not None and any(part.kind == "min" for part in asked.parts):
            raise ConfigError(f"budget '{asked.text}' is not found with --spill: write bytes, or a share such as 50%")
        return Search(make_solver("auto"), limits, settings.least_overhead_share, pager, settings.max_overhead_share)
    solver = make_solver(settings.solver, settings.solver_options)
    found = Search(solver, limits, settings.least_overhead_share, None, settings.max_overhead_share)
    return replace(found, may_be_brief=settings.time_limit_seconds is None and settings.solver == "auto")


def request_of(settings: Settings, scope: Scope | None = None) -> CompileRequest:
    """What a compile is asked for; `scope` in place of the one that the settings say.

    Raises:
        ConfigError: there is no budget, or it or the solver cannot be used.
    """
    return CompileRequest(
        conditions=settings.conditions,
        asked=asked_budget(settings, settings.scope if scope is None else scope),
        search=search_of(settings),
        splits=settings.splits,
        overlap=settings.overlap,
        checks=settings.checks,
        files=WeightFiles(settings.external_data, settings.packed_weights),
        count_mapped=settings.count_mapped,
        least=settings.least_bounds,
    )


def refuse_ranges(settings: Settings, what: str) -> None:
    """Refuse ranges of sizes for what is made for one.

    Raises:
        ConfigError: a dimension has a range.
    """
    if settings.family is not None:
        each = settings.family.ranges[0]
        raise ConfigError(f"--dim {each}: {what} of one size: write --dim {each.name}={each.high}")


def refuse_idle(file: Path, given: Mapping[str, Any], settings: Settings) -> None:
    """Refuse words of `inspect` that would change nothing: of a plan, how one is searched; of either, half a budget.

    Raises:
        ConfigError: such a word is given.
    """
    words = [word for word, value in given.items() if value is not None and value not in ((), False)]
    if is_plan(file) and (idle := [SEARCH_WORDS[word] for word in words if word in SEARCH_WORDS]):
        raise ConfigError(f"{', '.join(idle)}: {file} is a plan, made already: leave that out, or compile again")
    if settings.budget is None and (idle := [BUDGET_WORDS[word] for word in words if word in BUDGET_WORDS]):
        raise ConfigError(f"{', '.join(idle)}: nothing is judged without a budget: add --budget 512MiB or 80%")


def with_picture(
    settings: Settings, source: Path, report: Callable[[], R], draw: Callable[[R], bytes], progress: Progress
) -> R:
    """A report, and its picture in the file that is asked for, if one is; whether that can be written is checked first.

    Raises:
        ConfigError: the file cannot be written, exists without --force, or is the source.
        MissingDependency: matplotlib is not installed.
    """
    if settings.svg is None:
        return report()
    check_target(settings.svg, sources=(source,), overwrite=settings.force)
    require_matplotlib()
    found = report()
    atomic_write(settings.svg, draw(found))
    progress.note(f"wrote {settings.svg}")
    return found
