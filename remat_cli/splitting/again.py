"""What to make again for late readers, so that a model in bands holds less at its peak.

Rematerialisation of whole tensors, before they are cut: a tensor that nothing reads around the peak is dropped, and
its maker, with what that needs, runs once more for those who read it later.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from remat_cli.splitting.estimate import held_at_peak
from remat_cli.splitting.recast import Copied, Recast
from remat_cli.splitting.steps import RunStep, Step, WholeStep, reads_of, results_of

MOST_OPS = 8  # that one tensor is made again from
SMALL_SHARES = (0.5, 0.1)  # of what is dropped: so much is rather held for it than made again in turn
LEAST_GAIN = 0.25  # of what is dropped, that must not be held instead
MOST_CHOICES = 2


def copies_at_peak(cast: Recast, steps: Sequence[Step], lasting: frozenset[str]) -> tuple[Copied, ...]:
    """Ops to run again, each choice by itself, those of least time per byte first; none where nothing would be gained.

    `lasting` are the tensors held to the end.
    """
    peak = _Peak(cast, tuple(steps), lasting)
    found = (peak.choice(name, share) for name in peak.held for share in SMALL_SHARES)
    choices = list({choice.copied: choice for choice in found if choice is not None}.values())
    choices.sort(key=lambda choice: choice.time_ns / choice.gain_bytes)
    return tuple(choice.copied for choice in choices[:MOST_CHOICES])


@dataclass(frozen=True)
class _Choice:
    copied: Copied
    gain_bytes: int
    time_ns: int


@dataclass(frozen=True)
class _Peak:
    """The step at which most is held, and who reads what before and after it."""

    cast: Recast
    steps: tuple[Step, ...]
    lasting: frozenset[str]

    @cached_property
    def _found(self) -> tuple[int, dict[str, int]]:
        index, held = held_at_peak(self.cast.view, self.cast.costs, self.steps, self.lasting)
        tensor = {piece.name: piece.tensor for step in self.steps for piece in results_of(step)}
        sums: dict[str, int] = defaultdict(int)
        for name, size in held.items():
            sums[tensor.get(name, name)] += size
        return index, sums

    @property
    def held(self) -> dict[str, int]:
        """By tensor the bytes of it that are held."""
        return self._found[1]

    @cached_property
    def _reads(self) -> dict[str, list[tuple[int, int]]]:
        """By tensor the steps that run something on it, and what they run."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, step in enumerate(self.steps):
            if isinstance(step, RunStep | WholeStep):
                op = step.op if isinstance(step, WholeStep) else step.work.op
                for piece in reads_of(step):
                    found[piece.tensor].append((index, op))
        return found

    def choice(self, name: str, small_share: float) -> _Choice | None:
        """How to make a tensor again for those who read it after the peak; None where that gains nothing."""
        index, reads = self._found[0], self._reads[name]
        begun = {op for at, op in reads if at <= index}
        late = {op for at, op in reads if at > index} - begun
        if not late or name in self.lasting:
            return None
        first = min(at for at, op in reads if op in late)
        ops: list[int] = []
        going_on = sum(op in begun for at, op in reads if at > index) / max(1, sum(op in begun for _, op in reads))
        longer = self._add(name, first, small_share * self.held[name], ops)
        gain = int(self.held[name] * (1 - going_on)) - longer
        if not ops or len(ops) > MOST_OPS or gain < max(1, LEAST_GAIN * self.held[name]):
            return None
        place = {op: at for at, op in enumerate(self.cast.order)}
        time_ns = sum(self.cast.costs[op].time_ns for op in ops)
        return _Choice(Copied(tuple(sorted(ops, key=place.__getitem__)), frozenset(late)), gain, time_ns)

    def _add(self, name: str, first: int, small_bytes: float, ops: list[int]) -> int:
        """Add the maker of a tensor, and of what it reads if that is large and gone by then; bytes held longer now."""
        view = self.cast.view
        maker = view.tensors[name].producer
        if maker is None or len(ops) > MOST_OPS or not view.graph.ops[maker].repeatable:
            return self.cast.view.tensors[name].size_bytes
        if maker in ops:
            return 0
        ops.append(maker)
        longer = 0
        for source in dict.fromkeys(view.reads[maker]):
            tensor = view.tensors.get(source)
            if tensor is None or tensor.producer is None:
                continue
            is_there = source in self.lasting or any(at >= first for at, _ in self._reads[source])
            if is_there:
                continue
            is_small = tensor.size_bytes < small_bytes
            longer += tensor.size_bytes if is_small else self._add(source, first, small_bytes, ops)
        return longer
