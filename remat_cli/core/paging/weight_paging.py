"""Weights that page: sessions that are opened when it is their turn, from weights read for them, and closed after it.

A kernel packs a weight only while a session opens, and the bits of a product depend on whether its weight is packed. So
what comes and goes is not a weight but a session: its large weights are read into pages, it is opened over them, packs
what it packs, runs, and is closed. Weights lie in a file already, so nothing is ever written.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

MIB = 2**20


class HostedWeight(msgspec.Struct, frozen=True):
    """A weight that may page, by its number.

    `image_bytes` is what it takes in whole pages, as it is read; `packed_bytes` the most that a kernel's own copy of it
    takes, after which the pages go (0: it is read where it is, and the pages stay while its session runs).
    """

    weight: int
    image_bytes: int
    packed_bytes: int = 0


class LoadCosts(msgspec.Struct, frozen=True):
    """What it takes to open a session in a run: so long, and so long for each MiB of weights that it packs."""

    open_ns: int
    pack_ns_per_mib: int

    def time_ns(self, packed_bytes: int) -> int:
        """Opening a session that packs so many bytes."""
        return self.open_ns + -(-packed_bytes * self.pack_ns_per_mib // MIB)


class WeightPaging(msgspec.Struct, frozen=True, kw_only=True):
    """Which weights page: the `weights` that the `sessions` read, those sessions by their numbers, in order."""

    sessions: tuple[int, ...] = ()
    weights: tuple[HostedWeight, ...] = ()
    costs: LoadCosts = LoadCosts(0, 0)

    def of_sessions(self, sessions: Iterable[int], read: Mapping[int, Sequence[int]]) -> "WeightPaging | None":
        """The same for these sessions, with the weights that they read; None where they read none that may page."""
        mine = {weight for session in sessions for weight in read.get(session, ())}
        kept = tuple(each for each in self.weights if each.weight in mine)
        may = {each.weight for each in kept}
        away = tuple(session for session in sorted(sessions) if may.intersection(read.get(session, ())))
        return WeightPaging(sessions=away, weights=kept, costs=self.costs) if away else None


NO_WEIGHTS = WeightPaging()
