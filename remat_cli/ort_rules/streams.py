"""A plan on the host and one device beside it as one session: the runtime copies by itself, and where it does.

What an op reads that another memory has is copied by an op that the runtime adds: one for each value and direction,
numbered behind all others. A priority-based session puts its ops in an order in which, of those that are ready, the one
of the lowest number is next; so copies come late, and with them what waits for them. It then deals the ops out to a
queue for each device, copies to that of the device, and runs one queue until an op has to wait for another queue's. As
soon as that has run, the waiting queue goes on, inside the other one's turn. All of this is in one thread, and so the
order is always the same. It is followed here and judged like any other: it is not the plan's, but a schedule of the
same computes. Inputs that only the device reads are there before the first op and stay to the end; those that both read
are copied by an op. (Seen on ONNX Runtime 1.31.1; the queues are its logic streams.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.orders import ranked_order
from remat_cli.core.schedule.plan import Compute, Copy, Plan, Schedule, Step
from remat_cli.core.schedule.segments import kept_instances
from remat_cli.core.schedule.shared_session import Shared, origins
from remat_cli.core.schedule.simulate import simulate

MOST_TURNS = 16  # of numbering ops anew
Move = tuple[int, bool]
"""An instance, and whether it is copied to the device; else it is copied from there."""
Names = Callable[[Plan], Sequence[str]]


class HostValues(msgspec.Struct, frozen=True):
    """What ops on a device read from the host, as (op, tensor), and tensors that they make there: shapes, above all."""

    inputs: frozenset[tuple[int, int]] = frozenset()
    outputs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class OneSession:
    """A plan that is to run in one session.

    `early` are ops that a session runs as soon as it can. `names` are those of instances in the model of a plan: the
    runtime numbers copies by them.
    """

    shared: Shared
    names: Names
    early: frozenset[int]
    host_values: HostValues

    def in_its_order(self) -> Plan | None:
        """The plan in the order in which the session runs it, with the runtime's copies; None where there is none.

        A read takes the newest value of a tensor, as in every schedule; so ops are written, numbered and ordered anew
        until that changes nothing. There is none where it does not end, or where an op would be repeated for nobody.
        """
        session = self
        for _ in range(MOST_TURNS):
            try:
                judged = simulate(self.shared.problem, _Layout(session).schedule())
            except InvalidSchedule:
                return None
            if judged.schedule == session.shared.plan.schedule:
                needed = {instance for reads in judged.reads for instance in reads}
                needed |= kept_instances(self.shared.problem, judged)
                runs = Counter(judged.schedule.op_ids())
                steps = enumerate(judged.schedule.steps)
                again = (number for number, step in steps if isinstance(step, Compute) and runs[step.op] > 1)
                return None if any(needed.isdisjoint(judged.makes[number]) for number in again) else judged
            session = replace(session, shared=replace(self.shared, plan=judged))
        return None


@dataclass(frozen=True)
class _Layout:
    """One order of a session's ops, and what follows for the runtime's copies."""

    session: OneSession

    def schedule(self) -> Schedule:
        """Order the steps: inputs, copies of those that the device alone reads, then computes and copies when ready."""
        steps, given_ops = self.plan.schedule.steps, self.shared.given_ops
        wanted = {number: self._moves(number) for number in self.computes}
        moves = {move for each in wanted.values() for move in each}
        sides = (side for number in self.computes for side in self._sides_read(number))
        read_on_host = {origin for origin, is_there in sides if not is_there}
        # An input that the device alone reads is copied before the first op.
        first = sorted(move for move in moves if self.shared.is_given(move[0]) and move[0] not in read_on_host)
        moves -= set(first)
        keys: list[int | Move] = [*self.computes, *sorted(moves, key=self._rank)]
        numbers = {key: number for number, key in enumerate(keys)}
        maker = {made: numbers[step] for step in self.computes for made in self.plan.makes[step]}
        sources: list[set[int]] = []
        for key in keys:
            read, needed = ((key[0],), []) if isinstance(key, tuple) else (self.reads(key), wanted[key])
            made = {maker[origin] for origin in read if origin in maker}
            sources.append(made | {numbers[move] for move in needed if move in numbers})
        nodes = [self._copy(key) if isinstance(key, tuple) else steps[key] for key in keys]
        ranks = [not (isinstance(node, Compute) and node.op in self.session.early) for node in nodes]
        there = {n for n, node in enumerate(nodes) if isinstance(node, Copy) or node.device == self.shared.sides[1]}
        order = queued_order(ranked_order(sources, ranks), sources, there)
        given = [step for step in steps if isinstance(step, Compute) and step.op < given_ops]
        return Schedule((*given, *map(self._copy, first), *self._told([keys[number] for number in order], first)))

    def _told(self, order: Sequence[int | Move], first: Collection[Move]) -> Iterator[Step]:
        """Steps for computes and copies; also a copy before an op that reads from another memory where it is."""
        done = set(first)
        for key in order:
            if isinstance(key, int):
                device = self.computes[key].device
                runs_there, memory = device == self.shared.sides[1], self.shared.problem.devices[device].memory
                elsewhere = (read for read in self.reads(key) if self.plan.instances[read].memory != memory)
                moves = [(read, runs_there) for read in elsewhere]
            else:
                moves = [key]
            for move in moves:
                if move not in done:
                    done.add(move)
                    yield self._copy(move)
            if isinstance(key, int):
                yield self.plan.schedule.steps[key]

    @property
    def shared(self) -> Shared:
        """The plan in this order, and its devices."""
        return self.session.shared

    @property
    def plan(self) -> Plan:
        """The plan whose order it is."""
        return self.shared.plan

    @cached_property
    def computes(self) -> dict[int, Compute]:
        """Steps that compute, by number."""
        steps = enumerate(self.plan.schedule.steps)
        return {n: step for n, step in steps if isinstance(step, Compute) and step.op >= self.shared.given_ops}

    def reads(self, number: int) -> tuple[int, ...]:
        """What a compute reads: the instances that were made, not copies of them."""
        return tuple(self._origins[instance] for instance in self.plan.reads[number])

    @cached_property
    def _origins(self) -> tuple[int, ...]:
        return origins(self.plan)

    @cached_property
    def _names(self) -> Sequence[str]:
        return self.session.names(self.plan)

    def _sides_read(self, number: int) -> list[tuple[int, bool]]:
        """For each instance that a compute reads, whether it reads it on the device."""
        op, runs_there = self.computes[number].op, self.computes[number].device == self.shared.sides[1]
        from_host, instances = self.session.host_values.inputs, self.plan.instances
        return [(read, runs_there and (op, instances[read].tensor) not in from_host) for read in self.reads(number)]

    def _moves(self, number: int) -> list[Move]:
        """The copies that a compute waits for: of what is not made on the side where it is read."""
        found: list[Move] = []
        made_on_host = self.session.host_values.outputs
        for origin, is_read_there in self._sides_read(number):
            is_on_device = self.shared.is_there(origin)
            is_made_there = is_on_device and self.plan.instances[origin].tensor not in made_on_host
            if is_made_there != is_read_there:
                found.append((origin, is_read_there))
        return found

    def _rank(self, move: Move) -> tuple[object, ...]:
        """How the runtime numbers copies: inputs, then what goes to the device, then what comes from it, by name."""
        origin, is_to_device = move
        is_input = self.shared.is_given(origin)
        return not is_input, not is_to_device, origin if is_input else 0, self._names[origin]

    def _copy(self, move: Move) -> Copy:
        origin, is_to_device = move
        sides = self.shared.sides if is_to_device else self.shared.sides[::-1]
        return Copy(self.plan.instances[origin].tensor, *sides)


def queued_order(order: Sequence[int], sources: Sequence[Collection[int]], there: Collection[int]) -> list[int]:
    """The order in which two queues run the nodes of an order, those that are `there` in one queue, others in another.

    `sources` are by node the nodes that it waits for. The queue of the first node begins. At a node that waits for one
    of the other queue there is a barrier for each, which both must have reached: the queue itself, and the other when
    that node has run.
    """
    queue_of = {node: (node in there) != (order[0] in there) for node in order}
    queues = [[node for node in order if queue_of[node] == which] for which in (False, True)]
    steps: list[list[tuple[int, int]]] = [[], []]  # (node, -1): run it; (node, source): wait for that
    waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for which, queue in enumerate(queues):
        for node in queue:
            for source in sorted(source for source in sources[node] if queue_of[source] != which):
                waiting[source].append((which, len(steps[which])))
                steps[which].append((node, source))
            steps[which].append((node, -1))
    ran: list[int] = []
    reached: set[tuple[int, int]] = set()
    turns = [(1, 0), (0, 0)]
    while turns:
        which, at = turns.pop()
        while at < len(steps[which]):
            node, source = steps[which][at]
            if source >= 0 and (which, at) not in reached:
                reached.add((which, at))
                break
            at += 1
            if source < 0:
                ran.append(node)
                turns.append((which, at))
                turns += reversed(waiting[node])
                break
    return ran
