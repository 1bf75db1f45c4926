from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from remat_cli.base.errors import ConfigError
from remat_cli.core.values.profile import LinkCost, OpCost, Provenance, Unsupported
from remat_cli.runtime.measure.profile_cache import CacheScope, ProfileCache

SOURCE = Provenance("some cpu", "Linux", "onnxruntime", "1.31.1", "CPUExecutionProvider", 1, "all", 10, 2)
SCOPE = CacheScope("cpu", SOURCE)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "made" / "when needed"


def test_costs_come_back_by_signature(folder):
    with ProfileCache(folder) as cache:
        cache.store_ops(SCOPE, {"s1": OpCost("any", 100, 7, 1.5), "s2": OpCost("other", 5)})
    with ProfileCache(folder) as cache:
        assert cache.op_costs(SCOPE, ["s1", "s3", "s1", "s2"]) == {
            "s1": OpCost("s1", 100, 7, 1.5),
            "s2": OpCost("s2", 5),
        }


def test_the_lower_time_stays(folder):
    with ProfileCache(folder) as cache:
        for time_ns in (100, 90, 95):
            cache.store_ops(SCOPE, {"s": OpCost("", time_ns, time_ns)})
        assert cache.op_costs(SCOPE, ["s"])["s"] == OpCost("s", 90, 90)


@pytest.mark.parametrize(("time_ns", "noise_percent", "kept_ns"), [(120, 0.0, 100), (200, 0.0, 200), (200, 90.0, 100)])
def test_a_time_that_noise_cannot_explain_does_not_stay(folder, time_ns, noise_percent, kept_ns):
    with ProfileCache(folder) as cache:
        cache.store_ops(SCOPE, {"s": OpCost("", 100)})
        cache.store_ops(SCOPE, {"s": OpCost("", time_ns, 0, noise_percent)})
        assert cache.op_costs(SCOPE, ["s"])["s"].time_ns == kept_ns


def test_times_can_be_replaced(folder):
    with ProfileCache(folder) as cache:
        cache.store_ops(SCOPE, {"s": OpCost("", 100)})
        cache.store_ops(SCOPE, {"s": OpCost("", 110)}, replace=True)
        assert cache.op_costs(SCOPE, ["s"])["s"].time_ns == 110


@pytest.mark.parametrize(
    "changes", [{"cpu": "x"}, {"runtime_version": "1.0"}, {"intra_op_threads": 2}, {"optimization": "extended"}]
)
def test_other_conditions_are_other_entries(folder, changes):
    with ProfileCache(folder) as cache:
        cache.store_ops(SCOPE, {"s": OpCost("", 1)})
        cache.store_model(SCOPE, "hash", b"{}")
        other = CacheScope("cpu", msgspec.structs.replace(SOURCE, **changes))
        assert cache.op_costs(other, ["s"]) == {}
        assert cache.model(other, "hash") is None
        assert cache.model(CacheScope("cuda:0", SOURCE), "hash") is None
        same = CacheScope("cpu", msgspec.structs.replace(SOURCE, runs=99))
        assert cache.op_costs(same, ["s"])


def test_models_come_back_by_hash(folder):
    with ProfileCache(folder) as cache:
        assert cache.model(SCOPE, "hash") is None
        cache.store_model(SCOPE, "hash", b"one")
        cache.store_model(SCOPE, "hash", b"two")
        assert cache.model(SCOPE, "hash") == b"two"
        assert cache.model(SCOPE, "other") is None


def test_what_does_not_run_comes_back_by_signature(folder):
    with ProfileCache(folder) as cache:
        cache.store_unsupported(SCOPE, Unsupported("s1", "no kernel"))
        cache.store_unsupported(SCOPE, Unsupported("s1", "it crashed"))
    with ProfileCache(folder) as cache:
        assert cache.unsupported(SCOPE, ["s1", "s2"]) == {"s1": Unsupported("s1", "it crashed")}
        assert cache.unsupported(CacheScope("cuda:0", SOURCE), ["s1"]) == {}
        assert cache.op_costs(SCOPE, ["s1"]) == {}
        assert cache.clear() == 1
        assert cache.unsupported(SCOPE, ["s1"]) == {}


def test_links_come_back_by_key(folder):
    link = LinkCost("a", "b", 2000, 1.5e9, noise_percent=2.5)
    with ProfileCache(folder) as cache:
        cache.store_link("key", msgspec.structs.replace(link, latency_ns=1))
        cache.store_link("key", link)
    with ProfileCache(folder) as cache:
        assert cache.link("key", ("a", "b")) == link
        assert cache.link("other", ("a", "b")) is None
        assert cache.clear() == 1


def test_clear_counts_and_forgets(folder):
    with ProfileCache(folder) as cache:
        assert cache.clear() == 0
        cache.store_ops(SCOPE, {"a": OpCost("", 1), "b": OpCost("", 2)})
        cache.store_model(SCOPE, "hash", b"{}")
        assert cache.clear() == 3
        assert cache.op_costs(SCOPE, ["a"]) == {}


def fill(folder, count=200):
    with ProfileCache(folder) as cache:
        cache.store_ops(SCOPE, {f"signature {i}": OpCost("", i) for i in range(count)})
        return cache.path


@pytest.mark.parametrize("content", [b"", b"this is no database " * 100, b"SQLite format 3\x00" + bytes(200)])
def test_damaged_file_is_replaced(folder, content):
    path = fill(folder)
    path.write_bytes(content)
    with ProfileCache(folder) as cache:
        assert cache.op_costs(SCOPE, ["signature 1"]) == {}
        cache.store_ops(SCOPE, {"s": OpCost("", 1)})
        assert cache.op_costs(SCOPE, ["s"])


def test_file_damaged_in_the_middle_is_replaced(folder):
    path = fill(folder)
    data = bytearray(path.read_bytes())
    data[5000:9000] = bytes([255]) * 4000
    path.write_bytes(data)
    with ProfileCache(folder) as cache:
        assert cache.op_costs(SCOPE, ["signature 1"]) == {}


def test_file_of_another_version_is_replaced(folder):
    path = fill(folder)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE costs")
        database.execute("CREATE TABLE costs (something TEXT)")
        database.execute("PRAGMA user_version = 99")
    database.close()
    with ProfileCache(folder) as cache:
        cache.store_ops(SCOPE, {"s": OpCost("", 1)})
        assert cache.op_costs(SCOPE, ["s"])


def test_two_at_once(folder):
    start = threading.Barrier(4)

    def store(writer: int) -> None:
        start.wait()
        for number in range(20):
            with ProfileCache(folder) as cache:
                cache.store_ops(SCOPE, {f"{writer} {number}": OpCost("", 1)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store, range(4)))
    with ProfileCache(folder) as cache:
        assert cache.clear() == 80


def test_unusable_place_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="set REMAT_CACHE_DIR") as caught, ProfileCache(tmp_path / "file"):
        pass
    assert "\n" not in str(caught.value)


def test_database_that_stays_locked_is_one_line(folder, monkeypatch):
    path = fill(folder)
    monkeypatch.setattr("remat_cli.runtime.measure.profile_cache.BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with ProfileCache(folder) as cache, pytest.raises(ConfigError, match="database is locked"):
        cache.store_ops(SCOPE, {"s": OpCost("", 1)})
    other.execute("ROLLBACK")
    other.close()


def test_use_outside_the_block_is_a_bug(folder):
    with pytest.raises(RuntimeError, match="outside its `with` block"):
        ProfileCache(folder).clear()
