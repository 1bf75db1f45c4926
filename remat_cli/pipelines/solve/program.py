"""The variables and rows of the integer program of `integer_program.py`; numbers in brackets are its equations.

Task k of 1..2n belongs to layer k or 2n + 1 - k; a pattern has every task once, ending within the period. Both tasks
of a layer are on one device, so devices are compared per layer (z). Where the source sets big constants free, a
literal switches a row on.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import combinations, pairwise, permutations
from typing import Any, TypeAlias

from ortools.sat.python import cp_model

from remat_cli.base.errors import InputError
from remat_cli.pipelines.plan.chain import MemoryModel, PeriodicSchedule, PipelineChain

Literal: TypeAlias = Any  # a variable of CP-SAT of 0 or 1, or a constant of that kind
Expression: TypeAlias = Any  # a linear one of CP-SAT


class PipelineProgram:
    """One model: make it, limit its memory, minimise its period, solve `model`, read the schedule."""

    def __init__(
        self, chain: PipelineChain, devices: int, memory_model: MemoryModel, allocation: Sequence[int] | None = None
    ) -> None:
        """Raises InputError where the allocation does not fit."""
        self._chain = chain
        self._n = chain.layers
        self._kind = memory_model
        self.model: Any = cp_model.CpModel()
        self._always = self.model.new_constant(1)
        self._never = self.model.new_constant(0)
        self._longest = max(1, chain.longest_period)
        least = -(-(sum(chain.forward) + sum(chain.backward)) // devices)
        self.period = self.model.new_int_var(max(1, least), self._longest, "T")
        self._together = self._devices(devices, allocation)
        self._start = {k: self._begin(f"t{k}", self._duration(k)) for k in self._tasks}
        self.model.add(self._start[1] == 0)
        self._before = self._orders()
        self._moves = {}  # begin of the transfer after each task; between tasks of one device it takes no time (3.4)
        for k, q in pairwise(self._tasks):
            if self._z(k, q) is not self._always:
                self._moves[k] = self._begin(f"tc{k}", self._nominal(k) * (1 - self._z(k, q)))
        self._links()
        self._shift = {k: self._shifts(k) for k in self._tasks[:-1]}

    @property
    def _tasks(self) -> range:
        return range(1, 2 * self._n + 1)

    def _layer(self, task: int) -> int:
        return min(task, 2 * self._n + 1 - task)

    def _duration(self, task: int) -> int:
        chain = self._chain
        return chain.forward[task - 1] if task <= self._n else chain.backward[2 * self._n - task]

    def _output(self, task: int) -> int:
        return self._chain.sizes[task if task <= self._n else 2 * self._n - task]

    def _nominal(self, task: int) -> int:
        """Time of the transfer after a task; none after the last forward."""
        is_still = task == self._n or (task > self._n and not self._chain.has_gradients)
        return 0 if is_still else self._chain.transfers[min(task, 2 * self._n - task) - 1]

    def _bool(self, name: str) -> Literal:
        return self.model.new_bool_var(name)

    def _z(self, task: int, other: int) -> Literal:
        """Whether two tasks are on one device."""
        return self._together[self._layer(task), self._layer(other)]

    def _devices(self, devices: int, allocation: Sequence[int] | None) -> dict[tuple[int, int], Literal]:
        if allocation is not None and (len(allocation) != self._n or len(set(allocation)) > devices):
            raise InputError(f"allocation {list(allocation)} must give {self._n} layers one of {devices} devices each")
        layers = range(1, self._n + 1)
        z = {(layer, layer): self._always for layer in layers}
        for one, other in combinations(layers, 2):
            z[one, other] = self._bool(f"z{one},{other}")
            z[other, one] = z[one, other]
            if allocation is not None:
                same = allocation[one - 1] == allocation[other - 1]
                z[one, other] = z[other, one] = self._always if same else self._never
        if allocation is None:
            # Part the layers among devices: (3.1) in all orientations, and (3.2).
            for one, middle, other in permutations(layers, 3):
                if one < other:
                    self.model.add_bool_or(~z[one, middle], ~z[middle, other], z[one, other])
            is_lowest = [self._bool(f"f{layer}") for layer in layers]
            for layer in layers:
                self.model.add_bool_or(is_lowest[layer - 1], *(z[other, layer] for other in range(1, layer)))
            self.model.add(sum(is_lowest) <= devices)
        return z

    def _begin(self, name: str, duration: Expression) -> Any:
        """(3.7): what begins ends within the period; it may begin before it."""
        begin = self.model.new_int_var(-self._longest, self._longest, name)
        self.model.add(begin + duration >= 0)
        self.model.add(begin + duration <= self.period)
        return begin

    def _one_after_other(self, first: tuple[Any, int], second: tuple[Any, int], literal: Literal) -> None:
        """(3.3) and (3.8), where a literal says that first comes before second in the pattern."""
        self.model.add(second[0] >= first[0] + first[1]).only_enforce_if(literal)
        self.model.add(self.period >= second[0] + second[1] - first[0]).only_enforce_if(literal)

    def _orders(self) -> dict[tuple[int, int], Literal]:
        """w[k,q]: same device, and k before q in the pattern."""
        before: dict[tuple[int, int], Literal] = {(k, k): self._never for k in self._tasks}
        for k, q in combinations(self._tasks, 2):
            same = self._z(k, q)
            if same is self._never:
                before[k, q] = before[q, k] = self._never
                continue
            for one, other in ((k, q), (q, k)):
                literal = before[one, other] = self._bool(f"w{one},{other}")
                timed = [(self._start[task], self._duration(task)) for task in (one, other)]
                self._one_after_other(timed[0], timed[1], literal)
            self.model.add(before[k, q] + before[q, k] == same)
        return before

    def _links(self) -> None:
        """(3.5) and (3.6): transfers between the same two devices, either way, one at a time."""
        timed = [k for k in self._moves if self._nominal(k)]
        for k, q in combinations(timed, 2):
            ways = (((k, q), (k + 1, q + 1)), ((k, q + 1), (k + 1, q)))
            pairs = [[self._z(*one), self._z(*other)] for one, other in ways]
            pairs = [pair for pair in pairs if self._never not in pair]
            if not pairs:
                continue
            orders = [self._bool(f"v{k},{q}"), self._bool(f"v{q},{k}")]
            for pair in pairs:
                self.model.add_bool_or(*orders, *(~same for same in pair), self._z(k, k + 1))
            moves = [(self._moves[each], self._nominal(each)) for each in (k, q)]
            self._one_after_other(moves[0], moves[1], orders[0])
            self._one_after_other(moves[1], moves[0], orders[1])

    def _shifts(self, k: int) -> Expression:
        """R[k] (3.9): how many periods pass on the way from task k to the next, by its transfer if there is one."""
        end = self._start[k] + self._duration(k)
        following = self._start[k + 1]
        if k not in self._moves:
            return self._crossings(end, following, f"{k}")
        arrives = self._moves[k] + self._nominal(k) * (1 - self._z(k, k + 1))
        return self._crossings(end, self._moves[k], f"{k}a") + self._crossings(arrives, following, f"{k}b")

    def _crossings(self, end: Expression, following: Expression, name: str) -> Expression:
        once, twice = self._bool(f"r{name}"), self._bool(f"rr{name}")
        self.model.add(end <= following).only_enforce_if(~once)
        self.model.add(end <= following + self.period).only_enforce_if(~twice)
        self.model.add_implication(twice, once)
        return once + twice

    @cached_property
    def _saved(self) -> dict[tuple[int, int], Any]:
        """(3.10), sg[l,m]: mini-batches of layer m saved at the begin of the pattern, if on the device of l."""
        found = {}
        for one, other in self._pairs():
            same = self._together[one, other]
            shift = sum(self._shift[k] for k in range(other, 2 * self._n - other + 1))
            found[one, other] = count = self.model.new_int_var(0, 8 * self._n, f"sg{one},{other}")
            self.model.add(count >= shift).only_enforce_if(same)
        return found

    @cached_property
    def _cut(self) -> dict[tuple[int, int], Literal]:
        """(3.12), bf: the device of a layer has a buffer for the cut after another."""
        found = {}
        for layer in range(1, self._n + 1):
            for cut in range(1, self._n):
                here, there = self._together[layer, cut], self._together[layer, cut + 1]
                literal = found[layer, cut] = self._bool(f"bf{layer},{cut}")
                self.model.add_bool_or(literal, ~here, there)
                self.model.add_bool_or(literal, here, ~there)
        return found

    def _pairs(self) -> list[tuple[int, int]]:
        layers = range(1, self._n + 1)
        return [(one, other) for one in layers for other in layers if self._together[one, other] is not self._never]

    def limit_memory(self, memory: Expression) -> None:
        """No device may hold more bytes: a number, or a variable of the model."""
        # Without what tasks work on memory peaks only when a forward begins.
        peaks = []
        for k in self._tasks if self._kind == "full" else range(1, self._n + 1):
            # What the device of the task holds while it runs (3.13).
            chain, layer = self._chain, self._layer(k)
            held: Expression = chain.saved_bytes[layer - 1] if k <= self._n else 0
            for one, other in self._pairs():
                if one == layer:
                    held += chain.copies * chain.weights[other - 1] * self._together[layer, other]
                    alive = (
                        self._saved[layer, other] + self._before[other, k] - self._before[2 * self._n + 1 - other, k]
                    )
                    held += chain.saved_bytes[other - 1] * alive
            if self._kind != "nca":
                held += sum(chain.ways * chain.sizes[cut] * self._cut[layer, cut] for cut in range(1, self._n))
            if self._kind == "full":
                work = chain.forward_work_bytes if k <= self._n else chain.backward_work_bytes
                # Outputs that wait on the device of task k for the task after theirs (3.11).
                waiting: Expression = 0
                for q, after in pairwise(self._tasks):
                    if k in (q, after) or self._never in (self._z(k, q), self._z(k, after)) or not self._output(q):
                        continue
                    waits = self._bool(f"o{k},{q}")
                    self.model.add(waits >= self._before[q, k] + self._before[k, after] + self._before[after, q] - 1)
                    waiting += self._output(q) * waits
                held += work[layer - 1] + waiting
            peaks.append(held)
        for peak in peaks:
            self.model.add(peak <= memory)

    def schedule(self, value: Callable[[Any], int]) -> PeriodicSchedule:
        """What a solution says, with no wait of a period or more."""
        period = value(self.period)
        devices: list[int] = []
        for layer in range(1, self._n + 1):
            same = (devices[other - 1] for other in range(1, layer) if value(self._together[other, layer]))
            devices.append(next(same, max(devices, default=-1) + 1))
        starts = [value(self._start[1])]
        moves: list[int | None] = []
        for k in self._tasks[:-1]:
            ready = starts[-1] + self._duration(k)
            if devices[self._layer(k) - 1] != devices[self._layer(k + 1) - 1]:
                move = _next_at(ready, value(self._moves[k]), period)
                moves.append(move)
                ready = move + self._nominal(k)
            else:
                moves.append(None)
            starts.append(_next_at(ready, value(self._start[k + 1]), period))
        return PeriodicSchedule(period, tuple(devices), (tuple(starts),), (tuple(moves),))


def _next_at(ready: int, offset: int, period: int) -> int:
    """The first time from `ready` on that is an offset of the pattern."""
    return ready + (offset - ready) % period
