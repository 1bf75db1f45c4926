"""Orders that need less memory without recomputing anything: list scheduling with noise, then search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat_cli.solvers._search.state import Ints, make_net
from remat_cli.solvers._search.tracks import Track, chunk_work, make_track
from remat_cli.solvers._sharing import Condensed

HEATS = (0.0005, 0.01, 0.002, 0.05)  # of the excess; no single one is best on all graphs


def greedy_starts(track: Track, starts: Sequence[Sequence[int]], tries: int) -> None:
    """Set the track to the best of the given orders and `tries` greedy ones, by bytes above budget."""
    best = track.ops
    least = track.excess
    for order in starts:
        track.begin(order)
        if track.excess < least:
            best, least = track.ops, track.excess
    for attempt in range(tries):
        noise = 0.0 if attempt == 0 else track.random()
        recency = 0.0 if attempt <= 1 else track.random()
        track.begin_greedy(noise, recency)
        if track.excess < least:
            best, least = track.ops, track.excess
    track.begin(best)


def search_order(track: Track, work: int, patience: int, is_over: Callable[[], bool]) -> None:
    """Improve the track's order in chunks of `work` moves until it fits or time is over.

    Ends early when `patience` chunks in a row bring nothing.
    """
    chunks = 0
    while track.excess > 0 and not is_over() and track.idle_chunks < patience:
        idle = track.idle_chunks
        if idle > 0:
            track.begin(track.ops)
            track.idle_chunks = idle
        track.reorder(work, HEATS[chunks % len(HEATS)])
        chunks += 1


def least_peak_order(condensed: Condensed, seed: int, is_over: Callable[[], bool], patience: int = 6) -> list[int]:
    """An order of all ops once whose peak is as low as the search gets it.

    Ids and peak are those of the condensed problem; its budget is not used. Targets lie an eighth below the peak
    reached, and nearer each time one is missed: a search towards a low target sees more of the steps that matter than
    one that only has to shave off the highest.
    """
    net: Ints = make_net(condensed.problem, condensed.in_place)
    track = make_track(net, 0, seed, is_pinned=False)
    best, least = track.ops, track.peak_bytes()
    step = least // 8
    track.set_budget(least - step)
    greedy_starts(track, (), 60)
    while step > least // 400 and not is_over():
        search_order(track, chunk_work(net), patience, is_over)
        peak = track.peak_bytes()
        if peak < least:
            best, least = track.ops, peak
        if track.excess > 0:
            step //= 2
        track.begin(best)
        track.set_budget(least - step)
    return best
