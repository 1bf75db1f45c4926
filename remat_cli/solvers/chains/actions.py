"""Chains of stages and operations on them (the model of Shilova 2021, ch. 2), and the plainest sequences of these."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["all", "keep", "move", "drop", "back"]


class Action(NamedTuple):
    """One operation on a stage of a chain, such as to run it and keep what its backward needs.

    Forward, given the stage's input: `all` (the thesis' F-all) makes everything that the backward needs, `keep` (F-ck)
    only the output; both leave the input. `move` (F-empty) is `keep` that deletes its input, which must be bare; `drop`
    is `all` that does (not in the thesis). `back` (B) turns the gradient of the output into that of the input.
    """

    kind: Kind
    stage: int


@dataclass(frozen=True)
class Chain:
    """Stages 1..N, the loss among them; every tuple has N + 1 entries, and entry 0 means nothing for stages.

    `value_bytes[l]` (a) is the output of stage l, entry 0 the chain's input. `saved_bytes[l]` (abar) is what the
    backward of l needs of its forward, with the output, without the input. `gradient_bytes[l]` (delta) is the gradient
    of `value_bytes[l]`. The `extra` are transient: while a forward makes only the output (oF), while it makes all
    (oF of F-all), while a backward runs (oB).
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    value_bytes: tuple[int, ...]
    saved_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]
    forward_extra_bytes: tuple[int, ...]
    saving_extra_bytes: tuple[int, ...]
    backward_extra_bytes: tuple[int, ...]

    @property
    def stages(self) -> int:
        """How many stages there are, the loss among them."""
        return len(self.forward_ns) - 1

    def keep_all(self) -> tuple[int, int]:
        """Time and peak bytes of every forward once, keeping all that the backwards need."""
        held = list(accumulate(self.saved_bytes[1:], initial=self.value_bytes[0]))
        last = self.gradient_bytes[-1]
        stages = range(1, self.stages + 1)
        forward = (held[stage] + self.saving_extra_bytes[stage] + last for stage in stages)
        backward = (held[s] + sum(self.gradient_bytes[s - 1 : s + 1]) + self.backward_extra_bytes[s] for s in stages)
        return sum(self.forward_ns[1:]) + sum(self.backward_ns[1:]), max(*forward, *backward)


def periodic(stages: int, segments: int) -> tuple[Action, ...]:
    """Keep the input of each of `segments` runs of stages of one length; the last takes the rest.

    The practice that optimal schedules are compared with. Each run but the last goes forward twice: for its output, and
    before its backwards with all that they need.
    """
    length = stages // segments
    starts = [1 + number * length for number in range(segments)]
    actions = []
    for start in starts[:-1]:
        actions += [Action("keep", start), *(Action("move", stage) for stage in range(start + 1, start + length))]
    ends = [*(start + length - 1 for start in starts[:-1]), stages]
    for start, end in reversed(list(zip(starts, ends, strict=True))):
        actions += [Action("all", stage) for stage in range(start, end + 1)]
        actions += [Action("back", stage) for stage in range(end, start - 1, -1)]
    return tuple(actions)
