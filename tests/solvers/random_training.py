"""Random and regular training steps: graphs whose ops are marked forward, backward and update."""

from __future__ import annotations

import random

import msgspec

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec

Op = tuple[tuple[int, ...], int, str]


class _Step:
    """A problem that grows op by op."""

    def __init__(self) -> None:
        self.ops: list[OpSpec] = []
        self.tensors: list[TensorSpec] = []

    def add(self, reads: list[int], sizes: list[int], phase: str, **facts) -> tuple[int, ...]:
        outputs = tuple(range(len(self.tensors), len(self.tensors) + len(sizes)))
        kept, base = facts.pop("kept", False), facts.pop("view_of", None)
        self.tensors += [TensorSpec(size, len(self.ops), base, kept) for size in sizes]
        pairs = tuple((source, outputs[0]) for source in facts.pop("in_place", ()))
        facts = {"time_ns": (1,), "workspace_bytes": (0,), **facts}
        self.ops.append(OpSpec(tuple(dict.fromkeys(reads)), outputs, in_place=pairs, phase=phase, **facts))
        return outputs

    def problem(self, fixed: int = 0) -> Problem:
        return Problem(tuple(self.ops), tuple(self.tensors), (Memory("cpu", 2**40, fixed),), (Device("cpu", 0),))


def chain_training(stages: int, size: int = 1, forward_ns: int = 1) -> Problem:
    """A loss after a chain; each gradient reads the gradient before it and the value of its own op and of its input."""
    step = _Step()
    values: list[int] = []
    for _ in range(stages + 1):
        values += step.add(values[-1:], [size], "forward", time_ns=(forward_ns,))
    gradient: list[int] = []
    for stage in reversed(range(stages)):
        gradient = list(step.add([*gradient, values[stage], values[stage + 1]], [size], "backward"))
    return step.problem()


def random_training(seed: int, count: int = 10) -> Problem:
    """Several outputs, views, in-place results, kept values, ops run once only, zeros, parts that do not connect.

    Now and then an update comes early, or a forward op after the first backward op.
    """
    rng = random.Random(seed)
    step = _Step()
    for _ in range(count):
        _forward(step, rng, "forward" if rng.random() < 0.9 else "none")
        if rng.random() < 0.1:
            step.add(_near(step, rng), [1], "update", kept=True)
    made = list(step.tensors)
    gradients: list[int] = []
    for op in reversed(range(len(step.ops))):
        spec = step.ops[op]
        read = [t for t in (*spec.inputs, *spec.outputs) if rng.random() < 0.7]
        read += rng.sample(gradients[-3:], min(len(gradients), 1))
        gradients += step.add(read, [made[spec.outputs[0]].size_bytes], "backward", time_ns=(rng.randint(0, 20),))
        if rng.random() < 0.3:
            step.add(gradients[-1:], [rng.choice([0, 2])], "update", kept=rng.random() < 0.5)
        if rng.random() < 0.1:
            _forward(step, rng, "forward")
    return step.problem(fixed=rng.choice([0, 11]))


def _near(step: _Step, rng: random.Random) -> list[int]:
    near = range(max(0, len(step.tensors) - 6), len(step.tensors))
    return rng.sample(near, min(len(near), rng.choice([0, 1, 1, 2, 2, 3])))


def _forward(step: _Step, rng: random.Random, phase: str) -> None:
    reads = _near(step, rng)
    nature = rng.choice(["plain"] * 4 + ["view", "in_place"]) if reads else "plain"
    sizes = [rng.choice([0, 1, 5, 9, 20]) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    facts = {"time_ns": (rng.randint(0, 50),), "repeatable": rng.random() < 0.9, "kept": rng.random() < 0.1}
    if nature == "plain":
        step.add(reads, sizes, phase, workspace_bytes=(rng.choice([0, 0, 7]),), **facts)
    elif nature == "view":
        step.add(reads[:1], [step.tensors[reads[0]].size_bytes], phase, view_of=reads[0], **facts)
    else:
        step.add(reads, [step.tensors[reads[0]].size_bytes], phase, in_place=reads[:1], **facts)


def step_of(*ops: Op, **changes) -> Problem:
    """Ops with one output each, as (inputs, bytes, phase); `changes` are fields of single ops by number."""
    specs = [OpSpec(reads, (op,), (op + 1,), (0,), phase=phase) for op, (reads, _, phase) in enumerate(ops)]
    for number, change in changes.items():
        op = int(number.removeprefix("op"))
        specs[op] = msgspec.structs.replace(specs[op], **change)
    tensors = [TensorSpec(size, op) for op, (_, size, _) in enumerate(ops)]
    return Problem(tuple(specs), tuple(tensors), (Memory("cpu", 2**40),), (Device("cpu", 0),))


def keeping(problem: Problem, *kept: int) -> Problem:
    """The problem with these tensors kept to the end, and no others."""
    tensors = tuple(msgspec.structs.replace(spec, kept=t in kept) for t, spec in enumerate(problem.tensors))
    return msgspec.structs.replace(problem, tensors=tensors)


class _BlockStep:
    """Blocks of one to three ops with side inputs, metrics, workspace, weight gradients and updates."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ops: list[Op] = [((), self.rng.randint(1, 9), "forward")]
        self.facts: dict[str, dict] = {}
        self.kept: list[int] = []
        self.mask = [self.add([], "forward")] if self.rng.random() < 0.4 else []

    def add(self, reads: list[int], phase: str) -> int:
        rng, op = self.rng, len(self.ops)
        self.ops.append((tuple(dict.fromkeys(reads)), rng.choice([0, rng.randint(1, 9)]), phase))
        is_repeatable = phase != "forward" or rng.random() < 0.95
        self.facts[f"op{op}"] = {"workspace_bytes": (rng.choice([0, 0, 5]),), "repeatable": is_repeatable}
        if rng.random() < 0.05:
            self.kept.append(op)
        return op

    def block(self, value: int) -> list[int]:
        """Forward ops after a value, the last of which makes the next."""
        rng, made = self.rng, [value]
        for _ in range(rng.randint(1, 3)):
            reads = [made[-1], *rng.sample(made, 1), *(self.mask if rng.random() < 0.5 else [])]
            if rng.random() < 0.2:
                reads.append(self.add([], "forward"))
            made.append(self.add(reads, "forward"))
        if rng.random() < 0.3:
            self.add(made[-2:], "none")
        return made

    def turn(self, made: list[int], gradient: int, scale: list[int]) -> int:
        """The backward of a block, with gradients of weights and some of their updates."""
        for value in reversed(made[1:]):
            weight = self.add([gradient, value], "backward")
            if self.rng.random() < 0.5:
                self.kept.append(self.add([weight, *scale], "update"))
            gradient = self.add([gradient, value], "backward")
        return self.add([gradient, made[0]], "backward")


def random_chain_step(seed: int) -> Problem:
    """Two to five blocks, one after the other, and back through them: always a chain."""
    step = _BlockStep(seed)
    blocks = [step.block(0)]
    for _ in range(step.rng.randint(1, 4)):
        blocks.append(step.block(blocks[-1][-1]))
    scale = [step.add([], "update")] if step.rng.random() < 0.5 else []
    gradient = step.add([blocks[-1][-1]], "backward")
    for made in reversed(blocks):
        gradient = step.turn(made, gradient, scale)
    return keeping(step_of(*step.ops, **step.facts), *step.kept)
