"""What a page shows: memory step by step with who is alive, tables, and commands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import msgspec

from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Instance, Plan
from remat_cli.core.schedule.problem import Problem, tensor_ids
from remat_cli.core.values.told_names import ToldNames


class PageTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor with storage of its own: `lives` are the steps, first and last inclusive, at which it is there."""

    name: str
    size_bytes: int
    shape: tuple[int, ...]
    maker: str
    readers: tuple[str, ...]
    lives: tuple[tuple[int, int], ...]
    why: str = ""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """A run, step by step: the op of each step, what is held during it, and the tensors that come and go."""

    title: str
    ops: tuple[str, ...]
    memory_bytes: tuple[int, ...]
    budget_bytes: int | None = None
    tensors: tuple[PageTensor, ...] = ()


class PageTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table under a heading; `about` is a sentence above it."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    about: str = ""


class Bar(msgspec.Struct, frozen=True):
    """What a process holds in a phase: of the original, promised or measured, as `kind` says."""

    phase: str
    kind: str
    bytes: int


class Point(msgspec.Struct, frozen=True):
    """What a budget costs."""

    bytes: int
    overhead_percent: float
    label: str


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """All that one page shows; what is empty is left out."""

    title: str
    verdict: str
    summary: str
    courses: tuple[Course, ...] = ()
    phases: tuple[Bar, ...] = ()
    curve: tuple[Point, ...] = ()
    tables: tuple[PageTable, ...] = ()
    commands: tuple[str, ...] = ()


def course_of(
    title: str, graph: Graph, problem: Problem, plan: Plan, names: ToldNames, whys: dict[str, str] | None = None
) -> Course:
    """The course of a plan without gates, in the first memory."""
    ops = tuple(names.op(graph.ops[op].name) for op in plan.schedule.op_ids())
    places = range(len(ops))
    tensors = page_tensors(graph, problem, plan, names, whys or {}, places)
    return Course(title=title, ops=ops, memory_bytes=plan.memory_bytes[0], tensors=tensors)


def written_course(title: str, file: PlanFile, plan: Plan, whys: dict[str, str]) -> Course:
    """The course of the written model of a plan, gates among its steps."""
    gates, order = set(file.promise.gates), file.promise.order
    places = [place for place, name in enumerate(order) if name not in gates]
    ops = tuple("gate" if name in gates else file.names.op(name) for name in order)
    tensors = page_tensors(file.graph, file.problem(), plan, file.names, whys, places)
    return Course(title=title, ops=ops, memory_bytes=file.promise.memory_bytes, tensors=tensors)


def page_tensors(
    graph: Graph, problem: Problem, plan: Plan, names: ToldNames, whys: dict[str, str], places: Sequence[int]
) -> tuple[PageTensor, ...]:
    """Tensors that have storage of their own, the largest first; `places` are where steps stand in what is shown."""
    ids = tensor_ids(graph)
    readers: dict[int, list[str]] = defaultdict(list)
    for op in graph.ops:
        for number in op.inputs:
            readers[number].append(names.op(op.name))
    lives: dict[int, list[tuple[int, int]]] = defaultdict(list)
    # Who owns each storage of the first memory, and the last step at which somebody uses it.
    owners: dict[int, Instance] = {}
    deaths: dict[int, int] = defaultdict(int)
    for each in plan.instances:
        if each.memory == 0:
            owners.setdefault(each.storage, each)
            deaths[each.storage] = max(deaths[each.storage], each.death)
    for storage, owner in owners.items():
        lives[ids[owner.tensor]].append((places[owner.birth], places[min(deaths[storage], len(places) - 1)]))
    found = []
    for number, spans in lives.items():
        tensor = graph.tensors[number]
        found.append(
            PageTensor(
                name=names.tensor(tensor.name),
                size_bytes=tensor.size_bytes,
                shape=tensor.shape,
                maker="" if tensor.producer is None else names.op(graph.ops[tensor.producer].name),
                readers=tuple(readers[number]),
                lives=tuple(spans),
                why=whys.get(tensor.name, ""),
            )
        )
    return tuple(sorted((one for one in found if one.size_bytes), key=lambda one: (-one.size_bytes, one.lives)))


def commands_of(file: PlanFile, plan: str) -> tuple[str, ...]:
    """What to type to get the plan again, to verify it, and to look at it."""
    request = file.request
    # Options that were given otherwise than by default.
    flags = [f"--dim {name}={size}" for name, size in request.dims.items()] if request.family is None else []
    for name, shape in request.input_shapes.items():
        flags.append(f"--input-shape {name}:{','.join(map(str, shape))}")
    if request.process_budget_bytes is None and request.budget_scope != "process" and request.budget[-1:] not in "%n":
        flags.append(f"--budget-scope {request.budget_scope}")
    if request.target:
        flags.append(f"--target {request.target}")
    flags += ["--plain"] if request.plain else []
    flags += ["--order keep"] if request.order == "keep" else []
    flags += [f"--session {word}" for word in request.session.words]
    flags += [f"--custom-ops {library}" for library in request.custom_ops]
    flags += [f"--max-tensor {request.max_tensor_bytes}"] if request.max_tensor_bytes is not None else []
    flags += _outputs(file, plan)
    words, named = ["remat compile", quote(file.source.path), f"--budget {request.budget}", *flags], quote(plan)
    return (" ".join(words), f"remat verify {named}", f"remat inspect {named}", f"remat run {named} --trace run.json")


def _outputs(file: PlanFile, plan: str) -> list[str]:
    """What to type for the files, where they have other names than a compile gives them by itself."""
    source, output, stated = Path(file.source.path), Path(file.output.path), Path(plan)
    is_named = output.name != f"{source.stem}.remat.onnx"
    stem = output.name.removesuffix(".onnx").removesuffix(".remat")
    flags = [f"-o {quote(str(output))}"] if is_named else []
    return [*flags, f"--plan {quote(plan)}"] if stated.name != f"{stem}.plan.json" else flags
