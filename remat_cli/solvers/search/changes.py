"""Kernels that change a schedule by way of a log, so that a search can take back what it did."""

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.profile import follower, insert, remove
from remat_cli.solvers.search.shifts import shift
from remat_cli.solvers.search.state import Ints, fragment, kernel

INSERT, REMOVE, SHIFT_STEP = 0, 1, 2  # kinds of change


@kernel
def _perform(net: Ints, s: Ints) -> None:
    """Make the change that stands last in the log, and note there what taking it back needs.

    One kernel for all kinds: whatever compiles against it does so once.
    """
    k = s[rows.NUM, rows.LOGGED] - 1
    kind, what, anchor = s[rows.LOG, k], s[rows.LOG_WHAT, k], s[rows.LOG_AT, k]
    if kind == INSERT:
        s[rows.LOG_WHAT, k] = insert(net, s, what, anchor)
    else:
        s[rows.LOG_AT, k] = follower(s, what)
        if kind == REMOVE:
            s[rows.LOG_WHAT, k] = s[rows.OP, what]
            remove(net, s, what)
        else:
            shift(net, s, what, anchor)


@fragment
def _write(s: Ints, kind: int, what: int, anchor: int) -> None:
    k = s[rows.NUM, rows.LOGGED]
    s[rows.LOG, k], s[rows.LOG_WHAT, k], s[rows.LOG_AT, k] = kind, what, anchor
    s[rows.NUM, rows.LOGGED] = k + 1


@kernel
def take_out(net: Ints, s: Ints, step: int) -> None:
    """Remove a removable step."""
    _write(s, REMOVE, step, step)
    _perform(net, s)


@kernel
def move(net: Ints, s: Ints, step: int, anchor: int) -> None:
    """Shift a step to directly before step `anchor`, between `earliest` and `latest`."""
    _write(s, SHIFT_STEP, step, anchor)
    _perform(net, s)


@kernel
def insert_bundle(net: Ints, s: Ints, anchor: int, count: int) -> None:
    """Insert the gathered bundle before step `anchor`."""
    for j in range(count):
        _write(s, INSERT, s[rows.BUNDLE, j], anchor)
        _perform(net, s)


@kernel
def undo(net: Ints, s: Ints, mark: int) -> None:
    """Take back the latest changes until the log has `mark` entries."""
    while s[rows.NUM, rows.LOGGED] > mark:
        k = s[rows.NUM, rows.LOGGED] - 1
        kind = s[rows.LOG, k]
        s[rows.LOG, k] = REMOVE if kind == INSERT else INSERT if kind == REMOVE else SHIFT_STEP
        _perform(net, s)
        s[rows.NUM, rows.LOGGED] = k
