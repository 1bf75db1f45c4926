"""Parts of a stage whose forward runs again in its backward, instead of keeping what it made.

Each part (a range of places) keeps what comes into it from outside, and makes anew what its own backward reads, right
before that. What others read of it is kept as ever.
"""

from dataclasses import dataclass

from remat_cli.pipelines.plan.line import Line

WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""What bodies read has one name; such ops read what is kept."""


@dataclass(frozen=True)
class Reruns:
    """Ranges of places that run again, the second end excluded; none: nothing does."""

    line: Line
    parts: tuple[tuple[int, int], ...] = ()

    def comes_again(self, op: int, tensor: int) -> bool:
        """Whether an op of the backward, or one that runs again, reads a tensor as it is made anew."""
        graph = self.line.graph
        maker = graph.tensors[tensor].producer
        if maker is None or maker in self.line.backward_ops or graph.ops[op].op_type in WITH_BODIES:
            return False
        part = self._part(self.line.place[maker])
        return part is not None and part == self._part(self.line.place[op]) and graph.ops[maker].repeatable

    def in_order(self, backward: tuple[int, ...]) -> tuple[int, ...]:
        """Backward ops with those that run again among them: each right before what first needs it."""
        done: set[int] = set()
        order: list[int] = []
        for op in backward:
            # All that must run again for it.
            needed: set[int] = set()
            waiting = [op]
            while waiting and self.parts:
                reader = waiting.pop()
                for tensor in self.line.graph.ops[reader].inputs:
                    maker = self.line.graph.tensors[tensor].producer
                    if maker is not None and maker not in needed and self.comes_again(reader, tensor):
                        needed.add(maker)
                        waiting.append(maker)
            needed = needed - done
            order += sorted(needed, key=self.line.place.__getitem__)
            order.append(op)
            done |= needed
        return tuple(order)

    def _part(self, place: int) -> int | None:
        return next((number for number, (first, last) in enumerate(self.parts) if first <= place < last), None)
