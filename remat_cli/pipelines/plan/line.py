"""A graph laid along a line: where each op of its forward pass is, where the way back passes, what crosses each cut.

Any place between two forward ops is a cut. A backward op is where what it reads is at hand, as far along the line as
the gradients that reach it allow; so one cut parts both ways. Inputs of the model are fed where they are read. What a
training step keeps from step to step has a home: the first place that reads it. Elsewhere it arrives like any tensor.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph


class UpdateGroup(msgspec.Struct, frozen=True):
    """States (inputs of a step that its outputs become) that are updated together, and the gradients this takes."""

    states: tuple[str, ...]
    gradients: tuple[str, ...]


class StepLinks(msgspec.Struct, frozen=True):
    """How outputs of a step become inputs of the next one, by name; nothing for a model that only infers.

    `forward_states` maps outputs of the forward pass, such as running statistics, to the inputs they become.
    `shared` are states that every update reads and makes anew, such as a count of steps.
    """

    groups: tuple[UpdateGroup, ...] = ()
    shared: tuple[str, ...] = ()
    forward_states: dict[str, str] = {}


@dataclass(frozen=True)
class Line:
    """Ops of both ways in the order in which they run; `place` is where on the line each op of the graph is.

    Attributes:
        homes: by input tensor that is kept from step to step, the place where it is kept.
        gradient_homes: by gradient, the home of what it updates.
        glued: cuts that no stage may end at, since an input of one step is an output of the last.
    """

    graph: Graph
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    place: tuple[int, ...]
    homes: Mapping[int, int]
    gradient_homes: Mapping[int, int]
    glued: frozenset[int]

    @property
    def has_gradients(self) -> bool:
        """Whether there is a way back."""
        return bool(self.backward)

    @cached_property
    def backward_ops(self) -> frozenset[int]:
        """The ops of the way back."""
        return frozenset(self.backward)

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """By tensor, the one whose storage it shares."""
        roots: list[int] = []
        for number, tensor in enumerate(self.graph.tensors):
            roots.append(number if tensor.view_of is None else roots[tensor.view_of])
        return tuple(roots)

    @cached_property
    def made(self) -> dict[int, tuple[bool, int]]:
        """By tensor: whether the backward pass makes it, and where; inputs are there at home, others nowhere."""
        found = {tensor: (False, home) for tensor, home in self.homes.items()}
        for is_backward, ops in ((False, self.forward), (True, self.backward)):
            found |= {tensor: (is_backward, self.place[op]) for op in ops for tensor in self.graph.ops[op].outputs}
        return found

    @cached_property
    def last_forward_read(self) -> dict[int, int]:
        """By tensor, the last place of the forward pass that reads it."""
        found: dict[int, int] = {}
        for op in self.forward:
            found.update(dict.fromkeys(self.graph.ops[op].inputs, self.place[op]))
        return found

    @cached_property
    def backward_reads(self) -> dict[int, tuple[int, int]]:
        """By tensor, the lowest and the highest place of the way back that reads it; an update reads at home."""
        places: dict[int, list[int]] = defaultdict(list)
        for op in self.backward:
            for tensor in self.graph.ops[op].inputs:
                places[tensor].append(self.place[op])
        for tensor, home in self.gradient_homes.items():
            places[tensor].append(home)
        return {tensor: (min(each), max(each)) for tensor, each in places.items()}

    def goes_forward(self, tensor: int) -> range:
        """The cuts that a tensor crosses on the way there."""
        is_backward, place = self.made.get(tensor, (True, 0))
        if is_backward:
            return range(0)
        reads = self.backward_reads.get(tensor)
        last = max(self.last_forward_read.get(tensor, place), reads[1] if reads else place)
        return range(place + 1, last + 1)

    def goes_back(self, tensor: int) -> range:
        """The cuts that a tensor crosses on the way back."""
        reads = self.backward_reads.get(tensor)
        if tensor not in self.made or reads is None:
            return range(0)
        return range(reads[0] + 1, self.made[tensor][1] + 1)

    def crossing(self, cut: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tensors that cross a cut there, and those that cross it on the way back."""
        there = tuple(tensor for tensor in sorted(self.made) if cut in self.goes_forward(tensor))
        return there, tuple(tensor for tensor in sorted(self.made) if cut in self.goes_back(tensor))

    @cached_property
    def cut_bytes(self) -> list[int]:
        """By cut 1..n-1 (0 and n: none), what crosses it on the way on which more does."""
        count = len(self.forward) + 1
        there, back = [0] * (count + 1), [0] * (count + 1)
        for tensor in self.made:
            size = self.graph.tensors[tensor].size_bytes
            for changes, cuts in ((there, self.goes_forward(tensor)), (back, self.goes_back(tensor))):
                if cuts:
                    changes[cuts.start] += size
                    changes[cuts.stop] -= size
        return [max(pair) for pair in zip(accumulate(there), accumulate(back), strict=True)][:count]


def lay_out(graph: Graph, links: StepLinks) -> Line:
    """Lay a forward graph, or one of a forward and a backward pass, along a line.

    Raises:
        ModelError: the graph has no op of a forward pass, or updates what it trains.
    """
    is_backward: list[bool] = []
    for each in graph.ops:
        if each.phase == "update":
            raise ModelError(f"op {each.name} is an update: cut the step into gradients and updates first")
        makers = (graph.tensors[tensor].producer for tensor in each.inputs)
        is_backward.append(each.phase == "backward" or any(is_backward[op] for op in makers if op is not None))
    forward = _forward_order(graph, is_backward, links)
    if not forward:
        raise ModelError("a model without ops of a forward pass cannot be cut into stages")
    place = [0] * len(graph.ops)
    for at, op in enumerate(forward):
        place[op] = at
    backward = tuple(op for op in range(len(graph.ops)) if is_backward[op])
    # Where each backward op is: no further than the gradients it reads, else where its forward tensors are at hand.
    names = {name for group in links.groups for name in group.states} | set(links.forward_states.values())
    states = frozenset(tensor for tensor in graph.model_inputs if graph.tensors[tensor].name in names)
    at_hand: dict[int, tuple[int, int]] = {}
    for op in forward:
        here = place[op]
        for tensor in graph.ops[op].inputs:
            if graph.tensors[tensor].producer is not None or tensor in states:
                at_hand[tensor] = (at_hand.get(tensor, (here, here))[0], here)
        at_hand.update(dict.fromkeys(graph.ops[op].outputs, (here, here)))
    made = {tensor: op for op in backward for tensor in graph.ops[op].outputs}
    for op in backward:
        inputs = graph.ops[op].inputs
        most = min((place[made[tensor]] for tensor in inputs if tensor in made), default=len(forward) - 1)
        reads = [at_hand[tensor] for tensor in inputs if tensor in at_hand]
        wanted = max(*(first for first, _ in reads), min(last for _, last in reads)) if reads else most
        place[op] = min(most, wanted)
    homes, gradient_homes, glued = _homes(graph, links, forward, place)
    _sink(graph, backward, place, (gradient_homes, states))
    return Line(graph, forward, backward, tuple(place), homes, gradient_homes, glued)


def _forward_order(graph: Graph, is_backward: list[bool], links: StepLinks) -> tuple[int, ...]:
    """Forward ops in the graph's order, but those that lead to no output of the pass right after what they read.

    A session runs ops that nobody waits for at the very end; such an op would keep its inputs along the whole line.
    """
    # Aside are forward ops that lead to no output but states, and to no forward op that does.
    on_line: set[int] = set()
    readers: dict[int, list[int]] = defaultdict(list)
    for op, each in enumerate(graph.ops):
        for tensor in each.inputs:
            readers[tensor].append(op)
    for op in reversed(range(len(graph.ops))):
        made = graph.ops[op].outputs
        leads = any(reader in on_line for tensor in made for reader in readers[tensor])
        gives = any(graph.tensors[t].kept and graph.tensors[t].name not in links.forward_states for t in made)
        if not is_backward[op] and (leads or gives):
            on_line.add(op)
    aside = frozenset(op for op, backward in enumerate(is_backward) if not backward and op not in on_line)
    key: dict[int, int | None] = {}
    for op, backward in enumerate(is_backward):
        if not backward:
            makers = [key[maker] for tensor in graph.ops[op].inputs if (maker := graph.tensors[tensor].producer) in key]
            key[op] = max((k for k in makers if k is not None), default=None) if op in aside else op
    for op in sorted(key, reverse=True):
        for tensor in graph.ops[op].inputs if key[op] is not None else ():
            maker = graph.tensors[tensor].producer
            if maker in aside and (key[maker] is None or _is_rootless(maker, graph, key, op)):
                key[maker] = key[op]
    return tuple(sorted(key, key=lambda op: (op if key[op] is None else key[op], op in aside, op)))


def _is_rootless(maker: int, graph: Graph, key: Mapping[int, int | None], reader: int) -> bool:
    """Whether an op that reads nothing made on the line got its key from a later reader than this one."""
    makers = (graph.tensors[tensor].producer for tensor in graph.ops[maker].inputs)
    own, new = key[maker], key[reader]
    return not any(each is not None for each in makers) and own is not None and new is not None and new < own


def _sink(
    graph: Graph, backward: tuple[int, ...], place: list[int], kept: tuple[Mapping[int, int], frozenset[int]]
) -> None:
    """Move backward ops that read no forward tensor down to who reads them, where they make no less than they read.

    What they read often goes there anyway, as where one op reads a gradient and another its reshaped copy.
    """
    gradient_homes, states = kept
    ways = set(backward)
    readers: dict[int, list[int]] = defaultdict(list)
    for op in backward:
        for tensor in graph.ops[op].inputs:
            readers[tensor].append(op)
    for op in reversed(backward):
        each = graph.ops[op]
        read = [graph.tensors[tensor] for tensor in each.inputs]
        if any(t.producer is not None and t.producer not in ways for t in read) or states & set(each.inputs):
            continue
        made = sum(graph.tensors[tensor].size_bytes for tensor in each.outputs)
        wanted = [place[reader] for tensor in each.outputs for reader in readers[tensor]]
        wanted += [gradient_homes[tensor] for tensor in each.outputs if tensor in gradient_homes]
        if wanted and sum(t.size_bytes for t in read if t.producer is not None) <= made:
            place[op] = min(place[op], max(wanted))


def _homes(
    graph: Graph, links: StepLinks, forward: tuple[int, ...], place: list[int]
) -> tuple[dict[int, int], dict[int, int], frozenset[int]]:
    ids = {tensor.name: number for number, tensor in enumerate(graph.tensors)}
    first: dict[int, int] = {}
    for op in forward:
        for tensor in graph.ops[op].inputs:
            first.setdefault(tensor, place[op])
    homes: dict[int, int] = {}
    gradient_homes: dict[int, int] = {}
    for group in links.groups:
        states = [ids[name] for name in group.states if name in ids]
        gradients = [ids[name] for name in group.gradients]
        reads = [first[state] for state in states if state in first]
        makers = [graph.tensors[gradient].producer for gradient in gradients]
        home = min([*reads, *(place[maker] for maker in makers if maker is not None)])
        homes |= dict.fromkeys(states, home)
        gradient_homes |= dict.fromkeys(gradients, home)
    glued: set[int] = set()
    for output, name in links.forward_states.items():
        producer = graph.tensors[ids[output]].producer
        made = 0 if producer is None else place[producer]
        homes[ids[name]] = min(first.get(ids[name], made), made)
        glued.update(range(homes[ids[name]] + 1, made + 1))
    return homes, gradient_homes, frozenset(glued)


def merge_places(line: Line, times: list[int], most: int) -> tuple[int, ...]:
    """Ends of at most so many blocks: neighbours become one where they are short together and much crosses between.

    Args:
        line: places.
        times: load of each place, both ways.
        most: at least 1.
    """
    sums = [0, *accumulate(times)]
    cuts = [cut for cut in range(1, len(times)) if cut not in line.glued]
    while len(cuts) >= most:
        bounds = [0, *cuts, len(times)]
        worth = [
            (1 + sums[bounds[at + 2]] - sums[bounds[at]]) / (1 + line.cut_bytes[cut]) for at, cut in enumerate(cuts)
        ]
        least = sorted(range(len(cuts)), key=worth.__getitem__)[: max(1, (len(cuts) - most) // 8)]
        # No neighbours of one taken before: joining one pair changes the worth of the next.
        taken: list[int] = []
        for at in sorted(least):
            if not taken or at > taken[-1] + 1:
                taken.append(at)
        joined = frozenset(taken)
        cuts = [cut for at, cut in enumerate(cuts) if at not in joined]
    return (*cuts, len(times))
