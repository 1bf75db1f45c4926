"""Run a model in a process to which the system gives so much memory and no more, and see whether it survives.

A memory cgroup counts what is resident and kills; RLIMIT_DATA counts what is reserved, and lets allocations fail. The
two are not the same question. Under RLIMIT_DATA the runtime notices that a large region cannot be had and goes on with
smaller ones, so a model whose later runs would take twice the first one's memory often passes (U-Net, 26 and 52 MiB
above 3 MiB once loaded: 36 MiB suffice for all runs). In a cgroup a region can always be had, and the process dies
while it writes to it, as under a container's limit (40 MiB kill the same model's second run).

A cgroup belongs to whoever made it, who may count and kill by it: a service manager, a container's keeper, a batch
system. So a child is made only in one that was delegated to us, or that the caller names.
"""

import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from remat_cli.base.errors import ConfigError, MissingDependency, RuntimeFailure
from remat_cli.base.files import WORK_FOLDER
from remat_cli.base.processes import ProcessDied, Silent, started
from remat_cli.core.values.resident import LimitKind
from remat_cli.runtime.observe.resident import held_runs, ready, status_bytes
from remat_cli.runtime.sessions._ort import Advance, Doing, PackedArray, runtime_errors, too_long
from remat_cli.runtime.sessions.error_text import OUT_OF_MEMORY, one_line
from remat_cli.runtime.sessions.session import SessionSettings, open_session

SURVIVED: Final = "all runs ended"
KILLED: Final = "killed"
NO_MEMORY: Final = (*OUT_OF_MEMORY, "pthread_create failed")
"""Parts of what the runtime says under RLIMIT_DATA; a thread that cannot have its stack is one more."""
REMOVAL_SECONDS: Final = 2.0


class HardLimitJob(msgspec.Struct, frozen=True):
    """Load and run a model under a limit; `runs` and `held` as in `ResidentJob`.

    `limit_bytes` are on top of what a process has before it loads a model: the baseline of `ResidentFigures`. `cgroup`
    is the folder of a cgroup in which a child may be made; empty: the one that was delegated to us, if any.
    """

    model: str
    feeds: tuple[PackedArray, ...]
    limit_bytes: int
    settings: SessionSettings = SessionSettings(exact=False)
    runs: int = 3
    held: int = 1
    cgroup: str = ""


class HardLimitAnswer(msgspec.Struct, frozen=True):
    """Whether all runs ended under the limit, how many did, what kind of limit it was, and how it ended in one line."""

    survived: bool
    runs_done: int
    kind: LimitKind
    ended: str


class MemoryCgroup(msgspec.Struct, frozen=True):
    """A folder in which the system shows a group of processes whose memory it counts."""

    kind: Literal["cgroup v2", "cgroup v1"]
    folder: str

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)


class _LimitedJob(msgspec.Struct, frozen=True):
    """What the limited process is told; `cgroup` is its own one, None: RLIMIT_DATA."""

    job: HardLimitJob
    cgroup: MemoryCgroup | None

    @property
    def kind(self) -> LimitKind:
        return self.cgroup.kind if self.cgroup else "RLIMIT_DATA"


def limit_kind(cgroup: str = "") -> LimitKind | None:
    """What kind of limit a job would have; None where this system has none.

    Raises:
        ConfigError: the folder is no memory cgroup.
    """
    place = _parent(cgroup)
    if place is not None:
        return place.kind
    return "RLIMIT_DATA" if sys.platform == "linux" and "VmData" in status_bytes() else None


def runs_under_limit(job: HardLimitJob) -> HardLimitAnswer:
    """Run a model in a process of its own under a limit.

    In a cgroup, what counts is resident memory that cannot be dropped: mapped weight files can, and then only make
    runs slow. Within 2 MiB of the anonymous bytes of `ResidentFigures`, above or below, chance decides (page tables,
    the system's stock of pages per core). With RLIMIT_DATA it is private writable memory, touched or not: whole arena
    regions, weight files while they are mapped (the runtime maps them private and writable), and 8 MiB of stack for
    each further thread of the session.

    Raises:
        RuntimeFailure: it failed for another reason than memory, or showed no end for `run_seconds`.
        MissingDependency: this system limits no process.
        ConfigError: the job names a folder that is no memory cgroup, or one that cannot be divided.
    """
    if limit_kind(job.cgroup) is None:
        raise MissingDependency("this system cannot limit the memory of a process: run this on Linux")
    place = _parent(job.cgroup)
    if place is None:
        return _answer(_LimitedJob(job, None))
    with child_cgroup(place) as child:
        return _answer(_LimitedJob(job, child))


def _parent(cgroup: str) -> MemoryCgroup | None:
    """Where a child is made; None: nowhere."""
    return named_cgroup(cgroup) if cgroup else divisible_cgroup()


def _answer(job: _LimitedJob) -> HardLimitAnswer:
    runs_done = 0

    def count(done: int, total: int) -> None:
        nonlocal runs_done
        runs_done = done

    try:
        with started(run_limited, job, silence_seconds=job.job.settings.run_seconds) as worker:
            return worker.answer(count)
    except Silent:
        name, seconds = Path(job.job.model).name, job.job.settings.run_seconds
        raise Doing("a limited run of ", name, " was ended").failed(too_long(seconds)) from None
    except ProcessDied as died:
        by_system = died.code == -signal.SIGKILL
        is_by_limit = died.code < 0 and not by_system
        if by_system and job.cgroup:  # the system counts those that it killed for a cgroup's limit
            counter = {"cgroup v2": "memory.events", "cgroup v1": "memory.oom_control"}[job.cgroup.kind]
            is_by_limit = _counts(job.cgroup.path / counter).get("oom_kill", 0) > 0
        if not is_by_limit:
            name = Path(job.job.model).name
            raise RuntimeFailure("a limited run of ", name, f" broke down, not by its limit: {died}") from None
        return HardLimitAnswer(False, runs_done, job.kind, KILLED if by_system else str(died))


def run_limited(job: _LimitedJob, advance: Advance) -> HardLimitAnswer:
    """Limit this process, then load the model and run it; the other side of `runs_under_limit`.

    Raises:
        RuntimeFailure: it failed for another reason than memory.
    """
    work, runs_done = job.job, 0
    if job.cgroup:
        _write(job.cgroup.path / "cgroup.procs", "0")  # before anything large is allocated; 0 is this process
    feeds, _tiny = ready(work.feeds, work.settings)
    path = Path(work.model)
    with _limited(job.cgroup, work.limit_bytes):
        try:
            runs = held_runs(open_session(path, work.settings), (feeds,), deque(maxlen=work.held))
            with runtime_errors(Doing("", path.name, f" under a limit of {work.limit_bytes} bytes")):
                for _ in range(work.runs):
                    next(runs)
                    runs_done += 1
                    advance(runs_done, work.runs)
        except (RuntimeFailure, MemoryError) as error:
            # One line on an error that the limit has caused; any other goes on.
            if isinstance(error, MemoryError):
                reason = "Python has no memory left"
            else:
                cause = error.__cause__ or error
                if not any(sign in str(cause) for sign in NO_MEMORY):
                    raise error
                reason = "bad_alloc" if "bad_alloc" in str(cause) else f"the runtime: {one_line(cause)}"
            return HardLimitAnswer(False, runs_done, job.kind, reason)
    return HardLimitAnswer(True, runs_done, job.kind, SURVIVED)


@contextlib.contextmanager
def _limited(cgroup: MemoryCgroup | None, limit_bytes: int) -> Iterator[None]:
    """So many bytes more than now for this process. RLIMIT_DATA ends with the block, so that it can still answer."""
    if cgroup:
        # What is charged to a cgroup and cannot be dropped: all but pages of files.
        files = {"cgroup v2": ("memory.current", "file"), "cgroup v1": ("memory.usage_in_bytes", "cache")}
        usage, cache = files[cgroup.kind]
        stat = _counts(cgroup.path / "memory.stat")
        held_bytes = int((cgroup.path / usage).read_text(encoding="ascii")) - stat[cache] + stat.get("shmem", 0)
        # Set a cgroup's limit, without swap where the system counts that.
        allowed_bytes = held_bytes + limit_bytes
        names = {
            "cgroup v2": ("memory.max", "memory.swap.max", "0"),
            "cgroup v1": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", str(allowed_bytes)),
        }
        limit, swap, swap_limit = names[cgroup.kind]
        _write(cgroup.path / limit, str(allowed_bytes))
        with contextlib.suppress(OSError):
            _write(cgroup.path / swap, swap_limit)
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (status_bytes()["VmData"] + limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _counts(path: Path) -> dict[str, int]:
    """A file of lines `name number`."""
    return {
        name: int(count) for name, count in (line.split() for line in path.read_text(encoding="ascii").splitlines())
    }


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


@contextlib.contextmanager
def child_cgroup(parent: MemoryCgroup) -> Iterator[MemoryCgroup]:
    """A new cgroup in another one, for the time of the block; the processes that it is made for must end before that.

    Nobody removes it if this process is killed; it is empty then, since those that it has started end with it.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder = tempfile.mkdtemp(prefix=WORK_FOLDER, dir=parent.folder)
    except OSError as error:
        raise ConfigError(f"{parent.folder}: no cgroup can be made in it: {error.strerror}") from None
    try:
        if not (Path(folder) / ("memory.max" if parent.kind == "cgroup v2" else "memory.limit_in_bytes")).exists():
            raise ConfigError(f"{parent.folder}: a cgroup in it does not limit memory: enable that controller for it")
        yield MemoryCgroup(parent.kind, folder)
    finally:
        # Remove a cgroup, which the system allows a moment after its last process has ended.
        end = time.monotonic() + REMOVAL_SECONDS
        while Path(folder).exists() and time.monotonic() < end:
            try:
                Path(folder).rmdir()
            except OSError:
                time.sleep(0.01)


def named_cgroup(folder: str) -> MemoryCgroup:
    """The cgroup that a user names.

    Raises:
        ConfigError: the folder is no memory cgroup.
    """
    path = Path(folder)
    if (path / "memory.limit_in_bytes").exists():
        return MemoryCgroup("cgroup v1", folder)
    if _passes_memory_on(path):
        return MemoryCgroup("cgroup v2", folder)
    raise ConfigError(f"{folder}: no cgroup that limits the memory of those in it")


def divisible_cgroup() -> MemoryCgroup | None:
    """A cgroup in which this process may make a child and put processes: its own, or the one around it (version 2)."""
    try:
        membership = Path("/proc/self/cgroup").read_text(encoding="utf-8")
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    places = memory_cgroups(membership, mounts)
    for place in places:
        if (place.kind == "cgroup v1" or _passes_memory_on(place.path)) and is_delegated(place.path):
            return place
    return None


def memory_cgroups(membership: str, mounts: str) -> list[MemoryCgroup]:
    """Where a child could be, from the texts of /proc/self/cgroup and /proc/self/mountinfo, the likelier first."""
    paths = {
        tuple(names.split(",")): path for _, names, path in (line.split(":", 2) for line in membership.splitlines())
    }
    found = []
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        system, _, options = right.split(" ", 2)
        if system == "cgroup" and "memory" in options.split(","):
            path = next((path for names, path in paths.items() if "memory" in names), None)
            if path and (folder := _under(path, root, point)):
                found.append(MemoryCgroup("cgroup v1", str(folder)))
        elif system == "cgroup2" and ("",) in paths and (folder := _under(paths["",], root, point)):
            around = [folder.parent] if folder != Path(point) else []
            found.extend(MemoryCgroup("cgroup v2", str(each)) for each in (folder, *around))
    return found


def _under(path: str, root: str, point: str) -> Path | None:
    """Where a cgroup's path is to be found, if the mount shows it."""
    if ".." in Path(path).parts or not Path(path).is_relative_to(root):
        return None
    return Path(point) / Path(path).relative_to(root)


def _passes_memory_on(folder: Path) -> bool:
    """Whether children of a cgroup of version 2 have limits of memory."""
    try:
        return "memory" in (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return False


def is_delegated(folder: Path) -> bool:
    """Whether a cgroup is ours to divide: we may write to it, and for root, who may always, it bears systemd's mark."""
    if not (os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)):
        return False
    if os.geteuid() != 0:
        return True
    for each, name in itertools.product((folder, *folder.parents), ("trusted.delegate", "user.delegate")):
        with contextlib.suppress(OSError):
            if os.getxattr(each, name) == b"1":
                return True
    return False
