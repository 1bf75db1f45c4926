"""A plan that says where ops run as a plan file, and the model that it speaks of."""

from collections import defaultdict
from pathlib import Path
from platform import machine
from typing import Any

import msgspec

from remat_cli import __version__
from remat_cli.compiling.planned import Answered, Sessions
from remat_cli.compiling.runs_on import runs_on_of
from remat_cli.core.files.plan_file import ExactSession, Promise
from remat_cli.core.schedule.plan import Compute
from remat_cli.core.schedule.problem import input_ops
from remat_cli.core.values.profile import Placement
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.onnx_io.read.phases import annotate
from remat_cli.onnx_io.read.seeds import without_seeds
from remat_cli.onnx_io.write.least_imports import asking_least
from remat_cli.onnx_io.write.processor_guard import guard_for, with_lone_guards
from remat_cli.onnx_io.write.rewrite import set_model_metadata
from remat_cli.onnx_io.write.save import has_data_file, save


def save_noted(planned: Sessions, path: Path, *, external: bool | None) -> RunsOn:
    """Write the optimised model, from which sessions are cut; it says where it runs, which is given back.

    Its weights lie beside it where that was asked for (`external`), or they are many.

    Raises:
        ConfigError: the path cannot be written.
        RematError: the disk is full or failed.
    """
    model = asking_least(without_seeds(noted_model(planned)))
    runs_on = runs_on_of(model, planned.prepared, is_packed=False, is_cut=True)
    for key, text in runs_on.metadata.items():
        set_model_metadata(model, key, text)
    save(model, path, external=has_data_file(model, external))
    return runs_on


def load_snippet(path: Path) -> str:
    """Python that runs a plan by its sessions, ready to paste."""
    return (
        "import remat_cli\n\n"
        f'plan = remat_cli.load("{path.as_posix()}")\n'
        "outputs = plan.run(inputs)  # inputs and outputs: dicts of numpy arrays by name\n"
    )


def load_line(path: Path) -> str:
    """The same in a line, without what it imports."""
    return f'outputs = remat_cli.load("{path.as_posix()}").run(inputs)'


def noted_model(planned: Sessions) -> Any:
    """The optimised model, which says of each op where and when it runs; a cut plan's schedule indexes it."""
    problem, platform = planned.answer.question.problem, planned.platform
    first = input_ops(platform.graph, problem)
    runs: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for number, step in enumerate(planned.plan.schedule.steps):
        if isinstance(step, Compute) and step.op >= first:
            runs[platform.graph.ops[step.op - first].name].append((problem.devices[step.device].name, number))
    about = {
        "remat.version": __version__,
        "remat.source_sha256": planned.prepared.source.sha256,
        "remat.source": planned.prepared.source.path.name,
        "remat.devices": ",".join(device.name for device in problem.devices),
        "remat.budget_bytes": ",".join(f"{memory.name}={memory.budget_bytes}" for memory in problem.memories),
    }
    noted = annotate(planned.prepared.reference, runs, about)
    guard = guard_for(machine(), planned.prepared.layout_block)
    return noted if guard is None else with_lone_guards(noted, guard)


def placed_promise(planned: Sessions) -> Promise:
    """What a run does, in figures of the first memory; those of the others are in the placement."""
    question, plan, cut = planned.answer.question, planned.plan, planned.cut
    graph, first = planned.platform.graph, input_ops(planned.platform.graph, question.problem)
    computes = (step.op for step in plan.schedule.steps if isinstance(step, Compute))
    fixed = question.problem.memories[0].fixed_bytes
    return Promise(
        order=tuple(graph.ops[op - first].name for op in computes if op >= first),
        gates=(),
        peak_bytes=cut.peak_bytes[0],
        live_peak_bytes=plan.live_peak - fixed,
        fixed_bytes=fixed,
        baseline_peak_bytes=question.baseline.peak,
        memory_bytes=plan.memory_bytes[0],
        baseline_memory_bytes=question.baseline.memory_bytes[0],
        exact_session=ExactSession(),
        holds_by_default=False,
    )


def known_placement(planned: Answered) -> Placement:
    """What is known of a plan across devices before there is one: devices, budgets, and what links cost."""
    platform, question = planned.platform, planned.answer.question
    return Placement(
        devices=platform.specs,
        profiles=platform.profiles,
        links=platform.links,
        budgets=question.budgets,
        overlap=question.problem.overlap,
        peak_bytes={},
        session_bytes=dict(platform.session_bytes),
    )


def placement_of(planned: Sessions) -> Placement:
    """All that a plan across devices holds besides its schedule."""
    problem, profiles = planned.answer.question.problem, planned.platform.profiles
    names = [memory.name for memory in problem.memories]
    has_power = any(profile.power_watts is not None for profile in profiles)
    energy = {device.name: nj for device, nj in zip(problem.devices, planned.plan.energy_nj, strict=True)}
    return msgspec.structs.replace(
        known_placement(planned),
        single=planned.single,
        way=planned.way,
        peak_bytes=planned.peaks,
        memory_bytes=dict(zip(names, planned.cut.memory_bytes, strict=True)),
        segments=planned.cut.segments,
        energy_nj=energy if has_power else {},
    )
