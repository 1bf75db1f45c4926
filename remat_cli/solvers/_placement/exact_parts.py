"""What the exact model of placement consists of: a dataclass for each family of variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Compute
from remat_cli.solvers._placement.exact_units import Caps, Choice, Choices, Units


@dataclass(frozen=True)
class Excess:
    """Asks for schedules that go beyond some cap and take less than `below_ns` (None: any time).

    `compute_ns[v]` and `copy_ns[x]` are what the first step beyond a cap costs at least, None where there is none.
    """

    compute_ns: tuple[int | None, ...]
    copy_ns: tuple[int | None, ...]
    below_ns: int | None


@dataclass(frozen=True)
class Question:
    """What a model is of; `in_order` asks for first computes in baseline order.

    With an `excess` it is a relaxation: of what happens beyond a cap no more is asked than that it happens after the
    last step within it, and costs at least once; readers may take its results wherever they are, and these take bytes
    only while they are read.
    """

    problem: Problem
    choices: Choices
    caps: Caps
    units: Units
    in_order: bool
    excess: Excess | None = None

    @property
    def horizon(self) -> int:
        """The last event."""
        return self.caps.total - 1


@dataclass(frozen=True)
class Event:
    """Number `copy` of the computes of an op, or of the copies of a tensor; `index` is that op or tensor.

    `literals` stand beside `choices`; `reading[m]` and `making[m]` say which memory is read and written.
    """

    index: int
    copy: int
    reads: tuple[int, ...]
    earliest: int
    start: Any
    present: Any
    choices: tuple[Choice, ...]
    literals: tuple[Any, ...]
    reading: dict[int, Any]
    making: dict[int, Any]

    @property
    def is_compute(self) -> bool:
        """Whether this is a compute, not a copy."""
        return isinstance(self.choices[0].step, Compute)


@dataclass(frozen=True)
class Instance:
    """What an event makes of one tensor: held from `born` to `end`.

    `born` is the start, or the event after it where the op works in place on tensor s and `in_place[s]` is true.
    `kept` is the literal "this one lasts to the end", for tensors that are kept; `length` is of its interval.
    """

    tensor: int
    event: Event
    end: Any
    born: Any
    length: Any
    kept: Any
    in_place: dict[int, Any]


@dataclass(frozen=True)
class Further:
    """Literal: there are computes, or copies, beyond a cap, after `last`; `time_ns` is what one costs at least."""

    literal: Any
    last: Event | None
    time_ns: int


@dataclass(frozen=True)
class Pair:
    """Literal: `reader` takes its input from `instance`."""

    reader: Event
    instance: Instance
    literal: Any


@dataclass(frozen=True)
class Derived:
    """A literal that follows from others: true if any of them is, or if all are."""

    literal: Any
    parts: tuple[Any, ...]
    rule: Callable[[Iterable[bool]], bool]


@dataclass(frozen=True)
class Model:
    """A built model. `computes[v][i]`, `copies[x][j]`; instances[x] by computes, then by copies; all other variables.

    `held[w, m]` says that memory m holds weight w; `used[d]` that device d computes, `entry[d]` that it does so first.
    """

    question: Question
    cp: Any
    computes: tuple[tuple[Event, ...], ...]
    copies: tuple[tuple[Event, ...], ...]
    instances: tuple[tuple[Instance, ...], ...]
    pairs: tuple[Pair, ...]
    held: dict[tuple[int, int], Any]
    used: tuple[Any, ...]
    entry: tuple[Any, ...]
    derived: tuple[Derived, ...]

    @property
    def events(self) -> list[Event]:
        """Computes, then copies."""
        return [event for family in (*self.computes, *self.copies) for event in family]
