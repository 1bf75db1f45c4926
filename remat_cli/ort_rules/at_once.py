"""What a session's arena holds while several runs are under way in it: how their requests meet is chance, so drawn."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_cli.ort_rules.arena import BLOCK, LoadedSession, RunMemory, pattern_bytes
from remat_cli.ort_rules.requests import Request, outputs_of

ROUNDS = 6
"""Times that so many runs begin together; what was ever touched stays, so later ones hold more."""
DRAWN = 12
"""Ways in which they meet."""
PACES = (0.5, 2.0)
"""How fast a run goes on beside another one, at least and at most."""


def simulate_at_once(requests: Sequence[Request], count: int, session: LoadedSession) -> tuple[RunMemory, ...]:
    """What each round of so many runs at once leaves behind at most, with the outputs of the round before held.

    As of single runs, the first ask for tensors one by one, later ones for a block each. What kernels take of the heap
    is left out.
    """
    requests = [request for request in requests if request.heap is None]
    block_bytes = pattern_bytes([request for request in requests if request.in_block], session.rules)
    # A run takes a block for all that have a place in it.
    block = Request(BLOCK, block_bytes, takes=True, in_block=False)
    apart = [each for each in requests if not each.in_block]
    crowd = _Crowd(
        count=count,
        first=requests,
        later=[block, *apart, replace(block, takes=False)] if block_bytes else requests,
        outputs=outputs_of(requests),
        shift=2 * (1 + max((abs(request.number) for request in requests), default=0)),
    )
    drawn = [crowd.drawn(session, random.Random(seed)) for seed in range(DRAWN)]
    return tuple(max((each[at] for each in drawn), key=lambda run: run.resident_bytes) for at in range(ROUNDS))


@dataclass(frozen=True)
class _Crowd:
    """So many runs at once: what each asks for in the first round and in later ones, and which of that are its outputs.

    Numbers of requests of one run lie `shift` behind those of the run before.
    """

    count: int
    first: Sequence[Request]
    later: Sequence[Request]
    outputs: Sequence[Request]
    shift: int

    def drawn(self, session: LoadedSession, rng: random.Random) -> tuple[RunMemory, ...]:
        """What each round leaves behind where requests meet in one of the ways that they may."""
        arena, found = session.arena(), list[RunMemory]()
        loaded_bytes = arena.resident_bytes
        for number in range(ROUNDS):
            before, first = len(arena.regions), number * self.count
            # So many runs begin together, each at a pace of its own.
            requests, done = self.later if number else self.first, [0] * self.count
            paces = [rng.uniform(*PACES) for _ in range(self.count)]
            while under_way := [run for run in range(self.count) if done[run] < len(requests)]:
                (run,) = rng.choices(under_way, [paces[run] for run in under_way])
                request = requests[done[run]]
                offset = (2 * BLOCK if request.number == BLOCK else self.shift) * (first + run)
                arena.run([request], offset)
                done[run] += 1
            for run in range(first - self.count, first) if number else ():
                for output in self.outputs:
                    arena.give_back(output.number + self.shift * run)
            resident_bytes = arena.resident_bytes - loaded_bytes
            found.append(RunMemory(resident_bytes, arena.reserved_bytes, tuple(arena.regions[before:])))
        return tuple(found)
