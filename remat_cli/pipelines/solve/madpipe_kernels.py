"""Compiled loops of MadPipe's first phase: from the last layer to the first, the labels that no other label beats.

A label is a way to place all layers after some layer j, with p ordinary devices left. Its figures are all better when
smaller: the largest load so far, and of the special device the time, the bytes and the largest set of saved tensors;
and the delay V in front. Rows of `labels`, chained per (j, p) by `heads` and NEXT.
"""

import numpy as np
from numpy.typing import NDArray

from remat_cli.solvers.search.state import kernel

BOTTLENECK, TIME, BYTES, SAVED, DELAY, PARENT, LAST, SPECIAL, NEXT = range(9)
WIDTH = 9
FIGURES = 5  # the first of them, which labels are compared by
LOADS, SAVED_SUMS, WEIGHT_SUMS, BUFFERS, LINKS = range(5)  # rows of `chain`, by layer 0..n; sums from layer 1 on
MEMORY, PERIOD, CEILING, TIME_STEP, BYTES_STEP, SAVED_STEP, DELAY_STEP, IS_UP, IS_TIGHT = range(9)  # of `settings`
NONE = -1
NEVER = 2**62

Table = NDArray[np.int64]


@kernel
def rounded(value: int, step: int, is_up: int) -> int:
    """To a multiple of a step: up, so that what fits really fits, or down, so that nothing is missed."""
    return (value + (step - 1) * is_up) // step * step


@kernel
def add_to_delay(delay: int, load: int, period: int) -> int:
    """V after one more item: it joins the last group if it fits there."""
    groups = (delay + period - 1) // period
    return delay + load if (delay + load + period - 1) // period == groups else period * groups + load


@kernel
def is_beaten(labels: Table, one: int, other: int) -> bool:
    """Whether the other label is as good in every figure."""
    worse = 0
    for figure in range(FIGURES):
        worse += labels[other, figure] > labels[one, figure]
    return worse == 0


@kernel
def insert(labels: Table, heads: Table, j: int, p: int, new: int) -> bool:
    """Chain a label unless another is as good; those that it beats go. Says whether it stays."""
    at = heads[j, p]
    while at != NONE:
        if is_beaten(labels, new, at):
            return False
        at = labels[at, NEXT]
    before, at = NONE, heads[j, p]
    while at != NONE:
        after = labels[at, NEXT]
        if not is_beaten(labels, at, new):
            before = at
        elif before == NONE:
            heads[j, p] = after
        else:
            labels[before, NEXT] = after
        at = after
    labels[new, NEXT] = heads[j, p]
    heads[j, p] = new
    return True


@kernel
def place(labels: Table, new: int, label: int, stage: Table, chain: Table, settings: Table) -> bool:
    """Write label `new`: `label` with the stage (first layer, last layer, is it special) before it; False: no room."""
    i, j, special = stage[0], stage[1], stage[2]
    period, is_up = settings[PERIOD], settings[IS_UP]
    load = chain[LOADS, j] - chain[LOADS, i - 1]
    delay = labels[label, DELAY]
    alive = (delay + load + period - 1) // period
    saved = chain[SAVED_SUMS, j] - chain[SAVED_SUMS, i - 1]
    held = chain[WEIGHT_SUMS, j] - chain[WEIGHT_SUMS, i - 1] + (alive - special) * saved
    held += chain[BUFFERS, i - 1] + chain[BUFFERS, j]
    time, own, most = labels[label, TIME], labels[label, BYTES], labels[label, SAVED]
    if special:
        own = rounded(own + held, settings[BYTES_STEP], is_up)
        if settings[IS_TIGHT]:
            most = max(most, rounded(saved, settings[SAVED_STEP], is_up))
        if own + most > settings[MEMORY]:
            return False
        load_here = time + load
        time = rounded(load_here, settings[TIME_STEP], is_up)
    else:
        if held > settings[MEMORY]:
            return False
        load_here = load
    link = chain[LINKS, i - 1]
    worst = max(labels[label, BOTTLENECK], load_here, link)
    if max(worst, time) >= settings[CEILING]:
        return False
    delay = add_to_delay(add_to_delay(delay, load, period), link, period)
    labels[new, BOTTLENECK], labels[new, TIME], labels[new, BYTES] = worst, time, own
    labels[new, SAVED], labels[new, DELAY] = most, rounded(delay, settings[DELAY_STEP], is_up)
    labels[new, PARENT], labels[new, LAST], labels[new, SPECIAL] = label, j, special
    return True


@kernel
def is_hopeless(labels: Table, label: int, left: int, p: int, ceiling: int) -> bool:
    """Whether p ordinary devices and the special one cannot take the load that is left, each below the ceiling."""
    return int(left) > (p + 1) * (ceiling - 1) - int(labels[label, TIME])


@kernel
def extend(labels: Table, heads: Table, label: int, stage: Table, chain: Table, settings: Table) -> None:
    """Put one stage before a label, if that is allowed, fits and is not beaten."""
    i, special, rows = stage[0], stage[2], stage[4]
    p = stage[3] - 1 + special  # ordinary devices left afterwards
    if p < 0 or (special and p == 0 and i > 1 and not settings[IS_TIGHT]):
        return  # as printed: without ordinary devices what remains is one stage
    if not place(labels, rows, label, stage, chain, settings):
        return
    if settings[CEILING] < NEVER and is_hopeless(labels, rows, chain[LOADS, i - 1], p, settings[CEILING]):
        return
    stage[4] += insert(labels, heads, i - 1, p, rows)


@kernel
def label_all(labels: Table, heads: Table, stage: Table, chain: Table, settings: Table) -> bool:
    """Fill the table from its one label at (n, P-1); False: it is too small.

    `stage` is room for five numbers: first and last layer, is it special, ordinary devices left before it, rows used.
    """
    stage[4] = 1
    for j in range(heads.shape[0] - 1, 0, -1):
        for p in range(heads.shape[1] - 1, -1, -1):
            label = heads[j, p]
            stage[1], stage[3] = j, p
            while label != NONE:
                if stage[4] + 2 * j > labels.shape[0]:
                    return False
                for i in range(j, 0, -1):
                    for special in range(2):
                        stage[0], stage[2] = i, special
                        extend(labels, heads, label, stage, chain, settings)
                label = labels[label, NEXT]
    return True
