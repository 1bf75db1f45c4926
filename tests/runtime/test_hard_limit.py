"""Models under limits of the system: what survives, what does not and why, and that the caller goes on unharmed."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest

from remat_cli.base.errors import ConfigError, MissingDependency, RuntimeFailure
from remat_cli.base.processes import ProcessDied
from remat_cli.runtime.observe import hard_limit
from remat_cli.runtime.observe.hard_limit import (
    HardLimitAnswer,
    HardLimitJob,
    MemoryCgroup,
    child_cgroup,
    divisible_cgroup,
    is_delegated,
    limit_kind,
    memory_cgroups,
    named_cgroup,
    runs_under_limit,
)
from remat_cli.runtime.sessions._ort import pack_all
from tests.runtime.models import MIB
from tests.runtime.test_resident import ONE, ONE_THREAD, heavy_model, sample, wide_model

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which enforces RLIMIT_DATA")


@pytest.fixture
def reserved_only(monkeypatch):
    """No cgroup to divide, so that the limit is RLIMIT_DATA."""
    if sys.platform != "linux":
        pytest.skip("only Linux enforces RLIMIT_DATA")
    monkeypatch.setattr(hard_limit, "divisible_cgroup", lambda: None)


reserved = pytest.mark.usefixtures("reserved_only")


@pytest.fixture
def cgroup():
    """A cgroup in which a child can be made, named by REMAT_TEST_CGROUP or delegated to us."""
    folder = os.environ.get("REMAT_TEST_CGROUP", "")
    place = named_cgroup(folder) if folder else divisible_cgroup()
    if place is None:
        pytest.skip("no memory cgroup was delegated to this process; name one in REMAT_TEST_CGROUP")
    before = set(place.path.iterdir())
    yield place
    assert set(place.path.iterdir()) == before


def under(mebibytes: float, name: str = "unet", **how) -> HardLimitAnswer:
    model, feeds = sample(name)
    return runs_under_limit(HardLimitJob(model, feeds, int(mebibytes * MIB), ONE_THREAD, **how))


def die(monkeypatch, died):
    def start(*_, **__):
        raise died

    monkeypatch.setattr(hard_limit, "started", start)


@reserved
def test_what_fits_is_granted():
    assert limit_kind() == "RLIMIT_DATA"
    assert under(120) == HardLimitAnswer(True, 3, "RLIMIT_DATA", "all runs ended")


@reserved
def test_a_run_that_does_not_fit_fails_with_the_runtimes_words():
    answer = under(20)
    assert (answer.survived, answer.runs_done, answer.kind) == (False, 0, "RLIMIT_DATA")
    assert answer.ended.startswith("the runtime: ")
    assert "Failed to allocate memory" in answer.ended
    assert "\n" not in answer.ended


@reserved
def test_a_model_that_cannot_be_loaded_fails_before_the_first_run():
    assert under(1) == HardLimitAnswer(False, 0, "RLIMIT_DATA", "bad_alloc")


@reserved
def test_a_thread_that_cannot_have_its_stack_counts_too():
    model, feeds = sample("unet")
    settings = hard_limit.SessionSettings(exact=False, intra_op_threads=2)
    answer = runs_under_limit(HardLimitJob(model, feeds, 4 * MIB, settings))
    assert (answer.survived, answer.runs_done) == (False, 0)
    assert "pthread_create failed" in answer.ended


@reserved
def test_later_runs_make_do_with_smaller_regions():
    """A block for all tensors of a later run cannot be had; they are taken one by one instead."""
    assert under(45).survived


@reserved
@pytest.mark.parametrize(("held", "runs_done"), [(0, 3), (1, 1), (2, 1)])
def test_outputs_that_are_held_are_reserved(tmp_path, held, runs_done):
    job = HardLimitJob(wide_model(tmp_path / "m.onnx"), ONE, 28 * MIB, ONE_THREAD, held=held)
    answer = runs_under_limit(job)
    assert (answer.runs_done, answer.survived) == (runs_done, held == 0)


@reserved
def test_mapped_weights_are_reserved(tmp_path):
    model = heavy_model(tmp_path / "m.onnx", beside=True)
    answers = [runs_under_limit(HardLimitJob(model, ONE, limit * MIB, ONE_THREAD)) for limit in (40, 120)]
    assert [answer.survived for answer in answers] == [False, True]


@reserved
def test_the_caller_has_no_limit_afterwards():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    under(20)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@reserved
def test_another_failure_is_no_answer():
    wrong = pack_all({"x": np.zeros((3, 3), np.float32)})
    with pytest.raises(RuntimeFailure, match="under a limit of 1048576000 bytes"):
        runs_under_limit(HardLimitJob(sample("resnet")[0], wrong, 1000 * MIB, ONE_THREAD))


@reserved
@pytest.mark.parametrize(
    ("died", "ended"),
    [(ProcessDied(-signal.SIGABRT, "what():  std::bad_alloc"), "killed by signal 6: what():  std::bad_alloc")],
)
def test_a_crash_under_the_limit_is_an_answer(monkeypatch, died, ended):
    die(monkeypatch, died)
    assert under(20) == HardLimitAnswer(False, 0, "RLIMIT_DATA", ended)


@reserved
@pytest.mark.parametrize("died", [ProcessDied(-signal.SIGKILL, ""), ProcessDied(1, "KeyError: 'x'")])
def test_what_the_limit_cannot_have_done_is_no_answer(monkeypatch, died):
    die(monkeypatch, died)
    with pytest.raises(RuntimeFailure, match=r"not by its limit: (killed by signal 9|ended with code 1)"):
        under(20)


def test_what_fits_stays_alive(cgroup):
    assert under(75, cgroup=cgroup.folder) == HardLimitAnswer(True, 3, cgroup.kind, "all runs ended")


@pytest.mark.parametrize(("name", "mebibytes"), [("unet", 40), ("resnet", 15)])
def test_a_limit_between_the_first_run_and_later_ones_kills_the_second(cgroup, name, mebibytes):
    assert under(mebibytes, name, cgroup=cgroup.folder) == HardLimitAnswer(False, 1, cgroup.kind, "killed")


def test_a_limit_below_the_first_run_kills_that(cgroup):
    assert under(20, cgroup=cgroup.folder) == HardLimitAnswer(False, 0, cgroup.kind, "killed")


@pytest.mark.parametrize(("held", "runs_done"), [(0, 3), (1, 1)])
def test_outputs_that_are_held_are_resident(cgroup, tmp_path, held, runs_done):
    model = wide_model(tmp_path / "m.onnx")
    answer = runs_under_limit(HardLimitJob(model, ONE, 26 * MIB, ONE_THREAD, held=held, cgroup=cgroup.folder))
    assert (answer.runs_done, answer.survived) == (runs_done, held == 0)


def test_mapped_weights_can_be_dropped(cgroup, tmp_path):
    inside, beside = (
        runs_under_limit(
            HardLimitJob(heavy_model(tmp_path / "m.onnx", beside=each), ONE, 52 * MIB, ONE_THREAD, cgroup=cgroup.folder)
        )
        for each in (False, True)
    )
    assert (inside.survived, beside.survived) == (False, True)


def test_an_interrupt_leaves_no_cgroup(cgroup, monkeypatch):
    def interrupted(*_):
        assert len(list(cgroup.path.glob("remat_*"))) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(hard_limit, "started", interrupted)
    with pytest.raises(KeyboardInterrupt):
        under(20, cgroup=cgroup.folder)
    assert not list(cgroup.path.glob("remat_*"))


def test_without_a_limit_of_the_system_nothing_is_run(monkeypatch):
    monkeypatch.setattr(hard_limit, "divisible_cgroup", lambda: None)
    monkeypatch.setattr(hard_limit, "status_bytes", dict)
    assert limit_kind() is None
    with pytest.raises(MissingDependency, match="run this on Linux"):
        under(20)


def test_a_named_folder_must_be_a_memory_cgroup(tmp_path):
    with pytest.raises(ConfigError, match="no cgroup that limits the memory"):
        under(20, cgroup=str(tmp_path))
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert named_cgroup(str(tmp_path)) == MemoryCgroup("cgroup v2", str(tmp_path))
    with pytest.raises(ConfigError, match="does not limit memory"):
        under(20, cgroup=str(tmp_path))
    assert not list(tmp_path.glob("remat_*"))
    (tmp_path / "memory.limit_in_bytes").write_text("0")
    assert limit_kind(str(tmp_path)) == "cgroup v1"
    with (
        pytest.raises(ConfigError, match="no cgroup can be made in it: No such file"),
        child_cgroup(MemoryCgroup("cgroup v1", str(tmp_path / "gone"))),
    ):
        pass


V1 = "33 24 0:28 / /sys/fs/cgroup/memory rw,relatime shared:16 - cgroup cgroup rw,memory"
V1_SEEN_FROM_INSIDE = "33 24 0:28 /box/7 /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n34 24 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
USER = "/user.slice/app.slice/shell.scope"


@pytest.mark.parametrize(
    ("membership", "mounts", "folders"),
    [
        ("9:cpu:/\n4:memory:/box/7\n0::/\n", OTHERS + V1, ["/sys/fs/cgroup/memory/box/7"]),
        ("4:memory:/box/7/a\n", V1_SEEN_FROM_INSIDE, ["/sys/fs/cgroup/memory/a"]),
        ("4:memory:/box/8\n", V1_SEEN_FROM_INSIDE, []),
        (f"0::{USER}\n", OTHERS + V2, [f"/sys/fs/cgroup{USER}", "/sys/fs/cgroup/user.slice/app.slice"]),
        ("0::/\n", V2, ["/sys/fs/cgroup"]),
        ("0::/../other\n", V2, []),
        ("", OTHERS + V1 + "\n" + V2, []),
    ],
)
def test_cgroups_are_found_where_the_system_shows_them(membership, mounts, folders):
    found = memory_cgroups(membership, mounts)
    assert [place.folder for place in found] == folders
    assert {place.kind for place in found} <= {"cgroup v1" if "memory" in membership else "cgroup v2"}


@linux_only
def test_root_divides_only_what_was_delegated(tmp_path, monkeypatch):
    assert not is_delegated(tmp_path)  # no cgroup
    (tmp_path / "cgroup.procs").touch()
    marks = {}
    monkeypatch.setattr(os, "getxattr", lambda folder, name: marks.get((folder, name), b"0"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert is_delegated(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not is_delegated(tmp_path)
    marks[tmp_path.parent, "user.delegate"] = b"1"
    assert is_delegated(tmp_path)
