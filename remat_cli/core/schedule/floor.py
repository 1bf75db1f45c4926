"""The least budget any schedule can meet, as far as single steps tell, and the op that causes it."""

from dataclasses import dataclass

from remat_cli.core.schedule.problem import OpSpec, Problem


@dataclass(frozen=True)
class Floor:
    """Per memory: a proved least total budget in bytes, and the op whose step needs it (None: the fixed part)."""

    bytes: tuple[int, ...]
    ops: tuple[int | None, ...]


def working_set_floor(problem: Problem) -> Floor:
    """Largest working set per memory over the ops that can run nowhere else; valid in every search space."""
    # A memory holds its fixed part in any schedule, and the weights of ops that can run nowhere else.
    fixed = [memory.fixed_bytes for memory in problem.memories]
    if len(fixed) > 1:
        for homes, weight in {(_homes(problem, op), weight) for op in problem.ops for weight in op.weights}:
            if len(homes) == 1:
                fixed[min(homes)] += problem.weight_bytes[weight]
    least = list(fixed)
    cause: list[int | None] = [None] * len(least)
    for index, op in enumerate(problem.ops):
        homes = _homes(problem, op)
        if len(homes) > 1:
            continue
        memory = min(homes)
        workspace = min(op.workspace_bytes[d] for d, time in enumerate(op.time_ns) if time is not None)
        need = fixed[memory] + working_set_bytes(problem, op) + workspace
        if need > least[memory]:
            least[memory], cause[memory] = need, index
    return Floor(tuple(least), tuple(cause))


def _homes(problem: Problem, op: OpSpec) -> frozenset[int]:
    """The memories in which an op can be computed."""
    return frozenset(problem.devices[d].memory for d, time in enumerate(op.time_ns) if time is not None)


def working_set_bytes(problem: Problem, op: OpSpec) -> int:
    """Least bytes that the inputs and outputs of an op take while it runs, in any schedule.

    Shares wherever a schedule might: a view with its base, an in-place result with its source. Only an output that is
    kept always takes bytes of its own, in the step that makes its last instance; where there are several memories that
    may be a copy, and the output itself may share; a view may be copied there without its base.
    """
    is_last_made_here = len(problem.memories) == 1
    roots: dict[int, int] = {}
    for read in op.inputs:
        # An instance lies in storage of its base, or where there are several memories of any view that was copied.
        root, sizes = read, [problem.tensors[read].size_bytes]
        while (base := problem.tensors[root].view_of) is not None:
            root = base
            sizes.append(problem.tensors[root].size_bytes)
        storage_bytes = sizes[-1] if len(problem.memories) == 1 else min(sizes)
        roots[root] = max(roots.get(root, 0), storage_bytes)
    total = sum(roots.values())
    taken: set[int] = set()
    for output in op.outputs:
        tensor = problem.tensors[output]
        is_own = tensor.kept and is_last_made_here
        if not is_own and tensor.view_of is not None:
            continue
        source = next((i for i, o in op.in_place if o == output and i not in taken), None)
        if source is not None and not is_own:
            taken.add(source)
            continue
        total += tensor.size_bytes
    return total


def storage_root(problem: Problem, tensor: int) -> int:
    """The tensor at the bottom of a chain of views."""
    spec = problem.tensors[tensor]
    while spec.view_of is not None:
        tensor = spec.view_of
        spec = problem.tensors[tensor]
    return tensor
