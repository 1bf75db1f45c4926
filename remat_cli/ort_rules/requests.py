"""What a session asks of its allocator, step by step: requests derived from a plan, as the simulators want them."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import own_bytes, tensor_ids
from remat_cli.ort_rules.heaps.kernel_heap import HeapUse
from remat_cli.ort_rules.reuse import KeptBuffers
from remat_cli.ort_rules.workspaces import WorkspaceRules, parts_before_result, workspace_parts


@dataclass(frozen=True)
class Request:
    """Memory that is asked for (`takes`) or given back, known by a number of its own.

    `in_block`: it has a place in the block that later runs take; workspace and model outputs have none. What is not
    `is_written` has an address and no pages. What a kernel takes of the process's `heap` the session's allocator
    does not see.
    """

    number: int
    bytes: int
    takes: bool
    in_block: bool = True
    is_written: bool = True
    heap: HeapUse | None = None


@dataclass(frozen=True)
class InKernels:
    """What else ops ask for, by op: bodies of theirs, in the form of `body_requests`; and their kernels of the heap."""

    bodies: Mapping[str, Sequence[int]] = field(default_factory=dict)
    heaps: Mapping[str, Sequence[HeapUse]] = field(default_factory=dict)


NOTHING_INSIDE: Final = InKernels()
RESERVED: Final = frozenset({("com.microsoft", "MatMulNBits")})
"""Ops, by domain and type, whose workspace the session's allocator asks of the process's heap, past its arena.

Noted by a library that sees every request of malloc (1.32.0; rows in bytes with their scales and sums, at level 4).
"""


def run_requests(
    graph: Graph,
    plan: Plan,
    kept: KeptBuffers,
    rules: WorkspaceRules,
    inside: InKernels = NOTHING_INSIDE,
    *,
    with_views: bool = False,
) -> tuple[Request, ...]:
    """What one run of a plan asks for: in each step its results, then mostly workspace; then what died is given back.

    `kept` says which results go into dead buffers instead. What holds no bytes is never asked for, and outputs of the
    model are not given back: that is for the caller to do. `with_views`: values that lie in buffers of others are
    requests for no bytes.
    """
    ids, own = tensor_ids(graph), own_bytes(graph)
    outputs = {i.storage for i in plan.instances if graph.tensors[ids[i.tensor]].kept}
    sizes: dict[int, int] = {}
    for instance in plan.instances:
        sizes.setdefault(instance.storage, own[ids[instance.tensor]])
    births, deaths = _lives(plan, kept)
    views = _views(plan) if with_views else {}
    found: list[Request] = []
    ops, numbers = plan.schedule.op_ids(), itertools.count(-1, -1)
    for step, total in enumerate(plan.memory_bytes[0]):
        born = [Request(each, sizes[each], True, each not in outputs) for each in births[step] if sizes[each]]
        op = graph.ops[ops[step]]
        workspace_bytes = total - plan.live_bytes[0][step]
        if op.name in inside.bodies:
            found += _of_body(inside.bodies[op.name], born, numbers)
        else:
            in_heap = inside.heaps.get(op.name, ())
            if (op.domain, op.op_type) in RESERVED and workspace_bytes:
                in_heap, workspace_bytes = (*in_heap, HeapUse(workspace_bytes)), 0
            before = parts_before_result(graph, op, workspace_bytes, rules)
            parts = before or workspace_parts(graph, op, workspace_bytes, rules)
            blocks = [Request(next(numbers), part, True, False) for part in parts if part]
            found += [*blocks[: len(before)], *born, *blocks[len(before) :]]
            uses = [Request(next(numbers), use.bytes, True, False, heap=use) for use in in_heap]
            found += [*uses, *(replace(block, takes=False) for block in reversed([*blocks, *uses]))]
        found += [Request(each, 0, takes) for each, takes in views.get(step, ()) if takes]
        found += [Request(each, sizes[each], False) for each in deaths[step] if sizes[each] and each not in outputs]
        found += [Request(each, 0, takes) for each, takes in views.get(step, ()) if not takes]
    return tuple(found)


def _of_body(body: Sequence[int], born: Sequence[Request], numbers: Iterator[int]) -> list[Request]:
    """What an op with a body asks for.

    Of what the body does not give back, what is as long as a result is that result: it is asked for where the body
    makes it, the other results before it begins.
    """
    held: list[Request] = []
    found: list[Request] = []
    for number in body:
        if number > 0:
            held.append(Request(next(numbers), number, True, False))
            found.append(held[-1])
        else:
            found.append(replace(held.pop(-1 - number), takes=False))
    results: dict[int, Request] = {}
    for result in reversed(born):
        same = (each for each in reversed(held) if each.bytes == result.bytes and each.number not in results)
        made = next(same, None)
        if made is not None:
            results[made.number] = result
    before = [each for each in born if each not in results.values()]
    after = [replace(each, takes=False) for each in reversed(held) if each.number not in results]
    return [*before, *(results.get(each.number, each) for each in found), *after]


def outputs_of(requests: Sequence[Request]) -> tuple[Request, ...]:
    """What a run does not give back: its results."""
    given_back = {request.number for request in requests if not request.takes}
    return tuple(request for request in requests if request.takes and request.number not in given_back)


def _views(plan: Plan) -> Mapping[int, list[tuple[int, bool]]]:
    """By step, values that begin (True) or die and lie in a buffer that another value asked for, by numbers of theirs.

    A result of the model is given back with its buffer, by the caller.
    """
    owners: set[int] = set()
    found = defaultdict[int, list[tuple[int, bool]]](list)
    for number, instance in enumerate(plan.instances, 1 + max((each.storage for each in plan.instances), default=0)):
        if instance.storage in owners and instance.death < len(plan.schedule.steps) - 1:
            found[instance.birth].append((number, True))
            found[instance.death].append((number, False))
        owners.add(instance.storage)
    return found


def _lives(plan: Plan, kept: KeptBuffers) -> tuple[defaultdict[int, list[int]], defaultdict[int, list[int]]]:
    """Buffers by the step in which they are asked for, and by the one in which they are given back.

    A buffer is known by the storage that asked for it; the last one that goes into it gives it back.
    """
    born: dict[int, int] = {}
    dies: dict[int, int] = {}
    for instance in plan.instances:
        born.setdefault(instance.storage, instance.birth)
        dies[instance.storage] = max(dies.get(instance.storage, 0), instance.death)
    for storage, before in reversed(kept.takes_over):
        dies[before] = dies.pop(storage)
        del born[storage]
    births, deaths = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for found, steps in ((births, born), (deaths, dies)):
        for storage, step in steps.items():
            found[step].append(storage)
    return births, deaths
