"""Abstract instances of real ONNX models: what the compiler would plan for, without the model.

The model goes the way of `remat compile`: optimised by the runtime, one run looked at, every op measured. Views and
in-place ops are merged with the op whose storage they share. An instance has one output per op, nothing kept and no
workspace, so: several outputs of an op become one of their joint size, a last op without cost reads the model's
outputs and so keeps them to the end, and workspace is left out.
"""

from __future__ import annotations

from pathlib import Path

from bench.draft import Draft
from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import prepare, work_folder
from remat_cli.compiling.profile import profile_model
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.settings.settings import Settings, load_settings
from remat_cli.solvers._sharing import condense

KEEPER_BYTES = 1


def extract(name: str, model: Path) -> Draft:
    """The instance of a model; costs are nanoseconds measured here and now, so a second call differs a little."""
    config = load_settings({})
    problem, names, fixed = _problem(model, config)
    condensed = condense(problem)
    source = f"extracted from the model {model.stem}: optimised by ONNX Runtime, views and in-place ops merged"
    draft = Draft(name, source, "nanoseconds, measured", fixed_memory_bytes=fixed)
    _fill(draft, condensed.problem, [names[group[0]] for group in condensed.groups])
    return draft


def _problem(model: Path, config: Settings) -> tuple[Problem, list[str], int]:
    """The problem, the names of its ops, and the bytes of weights and inputs."""
    progress = silent()
    with work_folder(model, config.work_dir) as work:
        prepared = prepare(model, config.conditions, work, progress)
        profile = profile_model(prepared, config.conditions, progress).profile
    return make_problem(prepared.graph, profile), [op.name for op in prepared.graph.ops], profile.fixed_bytes


def _fill(draft: Draft, problem: Problem, names: list[str]) -> None:
    """One op per condensed op, then the one that keeps the outputs."""
    producer = [tensor.producer for tensor in problem.tensors]
    for op, name in zip(problem.ops, names, strict=True):
        memory = sum(problem.tensors[output].size_bytes for output in op.outputs)
        draft.add(name, (op.time_ns[0] or 0, memory), sorted(producer[tensor] for tensor in op.inputs))
    kept = sorted({tensor.producer for tensor in problem.tensors if tensor.kept})
    if kept:
        draft.add("outputs_are_kept", (0, KEEPER_BYTES), kept)
