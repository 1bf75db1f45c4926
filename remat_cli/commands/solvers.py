"""`remat solvers`: the registry, each solver described by its class."""

from typing import Any

import msgspec

from remat_cli import solvers
from remat_cli.report.solve import OptionEntry, SolverEntry, SolversReport


def list_solvers() -> SolversReport:
    """Every solver of the registries, described by its class."""
    return SolversReport(
        tuple(_describe(solvers.solver_class(name)) for name in solvers.SOLVERS),
        tuple(_describe(solvers.pager_class(name)) for name in solvers.PAGERS),
    )


def _describe(solver: Any) -> SolverEntry:
    """Name, sentences and options of a solver class; its fields are its options."""
    entries = []
    for field in msgspec.structs.fields(solver):
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        entries.append(OptionEntry(field.encode_name, _type_name(field.type), msgspec.to_builtins(default)))
    return SolverEntry(solver.name, solver.summary, solver.takes, solver.proves, tuple(entries))


def _type_name(annotation: Any) -> str:
    """`int`, `int of at least 2`, `int, none`, `one of a, b` for literals, or the annotation as written."""
    if hasattr(annotation, "__metadata__"):  # Annotated: a type with limits
        least = [f" of at least {meta.ge}" for meta in annotation.__metadata__ if meta.ge is not None]
        return _type_name(annotation.__origin__) + "".join(least)
    choices = getattr(annotation, "__args__", ())
    if type(None) in choices:
        return ", ".join(["none" if choice is type(None) else _type_name(choice) for choice in choices])
    if "Literal[" in str(annotation) and choices and all(isinstance(choice, str) for choice in choices):
        return f"one of {', '.join(choices)}"
    return getattr(annotation, "__name__", str(annotation)) if not choices else str(annotation)
