"""Keeps measured costs between runs, with where they come from: this machine, this runtime, these settings.

One SQLite file per user. Losing it costs a second measurement, nothing else.
"""

import contextlib
import platform
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.core.values.profile import LinkCost, OpCost, Provenance, Unsupported
from remat_cli.runtime.sessions.providers import parse_device
from remat_cli.runtime.sessions.session import runtime_version


def provenance(device: str, intra_op_threads: int, optimization: str, runs: int, warmups: int) -> Provenance:
    """The record that goes with figures measured here and now under these settings."""
    provider = parse_device(device).provider
    return Provenance(
        cpu=cpu_name(),
        os=f"{platform.system()} {platform.release()}",
        runtime=provider.package,
        runtime_version=runtime_version(),
        provider=provider.runtime_name,
        intra_op_threads=intra_op_threads,
        optimization=optimization,
        runs=runs,
        warmups=warmups,
    )


def cpu_name() -> str:
    """The processor's name and widest vector extension (which decides the runtime's kernels), for people."""
    path = Path("/proc/cpuinfo")  # only Linux has it
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())  # those of the first processor
    name = fields.get("model name") or fields.get("Hardware") or platform.processor() or platform.machine()
    flags = fields.get("flags", fields.get("Features", "")).split()
    widest = next((flag for flag in ("amx_tile", "avx512f", "avx2", "avx", "sve", "asimd") if flag in flags), "")
    return f"{name} ({widest})" if widest else name


FILE_NAME: Final = "profiles.sqlite3"
VERSION: Final = 6
"""Of the tables; a file of another version is replaced."""
PLAUSIBLE_SHARE: Final = 0.25
"""How far a new time may lie above a known one, noise aside, before the known one is not believed."""
BUSY_SECONDS: Final = 10.0
TABLES: Final = """
CREATE TABLE IF NOT EXISTS costs (
    signature TEXT NOT NULL, scope TEXT NOT NULL,
    time_ns INTEGER NOT NULL, workspace_bytes INTEGER NOT NULL, noise_percent REAL NOT NULL,
    PRIMARY KEY (signature, scope)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS models (
    sha256 TEXT NOT NULL, scope TEXT NOT NULL, facts BLOB NOT NULL,
    PRIMARY KEY (sha256, scope)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bodies (
    signature TEXT NOT NULL, scope TEXT NOT NULL, requests BLOB NOT NULL,
    PRIMARY KEY (signature, scope)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unsupported (
    signature TEXT NOT NULL, scope TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (signature, scope)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS links (
    scope TEXT PRIMARY KEY,
    latency_ns INTEGER NOT NULL, bytes_per_second REAL NOT NULL, noise_percent REAL NOT NULL
) WITHOUT ROWID;
"""
TABLE_NAMES: Final = ("costs", "bodies", "models", "unsupported", "links")
NOT_A_DATABASE: Final = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})


class DamagedCache(sqlite3.DatabaseError):
    """The file is a database, but not a sound one."""


@dataclass(frozen=True)
class CacheScope:
    """What decides a cost besides the op: device, CPU kind, runtime and its version, threads, optimisation level."""

    device: str
    provenance: Provenance

    @property
    def key(self) -> str:
        """The scope as text; runs and warm-ups do not matter."""
        source = self.provenance
        fields = (
            self.device,
            source.cpu,
            source.runtime,
            source.runtime_version,
            source.provider,
            str(source.intra_op_threads),
            source.optimization,
        )
        return "|".join(fields)


class ProfileCache:
    """Tables in a file: what ops cost by (signature, scope), what was seen of models by (hash, scope), and links.

    Ops that a device cannot run are in a table of their own. A context manager, open for the time of the block.
    Several processes may use the file at the same time. A file that is damaged or of another version is replaced by an
    empty one; the directory is made when needed.

    Raises:
        ConfigError: the directory or the file cannot be used; from any method.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        """Open the file."""
        with self._errors():
            self._database = _connect(self.path)
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the file; every change was written when it was made."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def op_costs(self, scope: CacheScope, signatures: Iterable[str]) -> dict[str, OpCost]:
        """Known costs by signature, each named after it; unknown signatures are left out."""
        query = "SELECT time_ns, workspace_bytes, noise_percent FROM costs WHERE signature = ? AND scope = ?"
        with self._changes() as database:
            found = {key: database.execute(query, (key, scope.key)).fetchone() for key in dict.fromkeys(signatures)}
        return {key: OpCost(key, *row) for key, row in found.items() if row is not None}

    def store_ops(self, scope: CacheScope, costs: Mapping[str, OpCost], *, replace: bool = False) -> None:
        """Keep costs by signature, in place of what was known already if that is what `replace` says.

        Otherwise the lower time stays, since noise only adds; but not if it is so low that noise cannot explain it.
        """
        query = (
            "INSERT INTO costs VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET time_ns = excluded.time_ns, "
            "workspace_bytes = excluded.workspace_bytes, noise_percent = excluded.noise_percent "
            f"WHERE {int(replace)} OR excluded.time_ns < time_ns "
            f"OR excluded.time_ns > time_ns * ({1 + PLAUSIBLE_SHARE} + excluded.noise_percent / 100)"
        )
        rows = [(key, scope.key, c.time_ns, c.workspace_bytes, c.noise_percent) for key, c in costs.items()]
        with self._changes() as database:
            database.executemany(query, rows)

    def bodies(self, scope: CacheScope, signatures: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """What is known of requests in bodies of ops, by signature; other ops are left out."""
        query = "SELECT requests FROM bodies WHERE signature = ? AND scope = ?"
        with self._changes() as database:
            found = {key: database.execute(query, (key, scope.key)).fetchone() for key in dict.fromkeys(signatures)}
        return {key: msgspec.msgpack.decode(row[0], type=tuple[int, ...]) for key, row in found.items() if row}

    def store_bodies(self, scope: CacheScope, bodies: Mapping[str, tuple[int, ...]]) -> None:
        """Keep what bodies of ops ask for, by signature."""
        rows = [(key, scope.key, msgspec.msgpack.encode(requests)) for key, requests in bodies.items()]
        with self._changes() as database:
            database.executemany("INSERT OR REPLACE INTO bodies VALUES (?, ?, ?)", rows)

    def unsupported(self, scope: CacheScope, signatures: Iterable[str]) -> dict[str, Unsupported]:
        """What is known not to run, by signature, each named after it; other signatures are left out."""
        query = "SELECT reason FROM unsupported WHERE signature = ? AND scope = ?"
        with self._changes() as database:
            found = {key: database.execute(query, (key, scope.key)).fetchone() for key in dict.fromkeys(signatures)}
        return {key: Unsupported(key, row[0]) for key, row in found.items() if row is not None}

    def store_unsupported(self, scope: CacheScope, op: Unsupported) -> None:
        """Keep that an op, named by its signature, does not run, and why."""
        with self._changes() as database:
            row = (op.name, scope.key, op.reason)
            database.execute("INSERT OR REPLACE INTO unsupported VALUES (?, ?, ?)", row)

    def link(self, key: str, names: tuple[str, str]) -> LinkCost | None:
        """The link that was measured under this key, between memories of these names; None where none was."""
        query = "SELECT latency_ns, bytes_per_second, noise_percent FROM links WHERE scope = ?"
        with self._changes() as database:
            row = database.execute(query, (key,)).fetchone()
        return None if row is None else LinkCost(*names, row[0], row[1], noise_percent=row[2])

    def store_link(self, key: str, link: LinkCost) -> None:
        """Keep a measured link."""
        with self._changes() as database:
            row = (key, link.latency_ns, link.bytes_per_second, link.noise_percent)
            database.execute("INSERT OR REPLACE INTO links VALUES (?, ?, ?, ?)", row)

    def model(self, scope: CacheScope, sha256: str) -> bytes | None:
        """What was stored about a model, or None."""
        query = "SELECT facts FROM models WHERE sha256 = ? AND scope = ?"
        with self._changes() as database:
            row = database.execute(query, (sha256, scope.key)).fetchone()
        return None if row is None else bytes(row[0])

    def store_model(self, scope: CacheScope, sha256: str, facts: bytes) -> None:
        """Keep what is known about a model (JSON of the caller's own), in place of what was known."""
        with self._changes() as database:
            database.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?)", (sha256, scope.key, facts))

    def models(self, scope: CacheScope) -> dict[str, bytes]:
        """All that was stored in a scope, by the hash under which it was."""
        with self._changes() as database:
            rows = database.execute("SELECT sha256, facts FROM models WHERE scope = ?", (scope.key,)).fetchall()
        return {key: bytes(facts) for key, facts in rows}

    def forget_models(self, scope: CacheScope, keys: Iterable[str]) -> None:
        """Forget what was stored under these hashes."""
        with self._changes() as database:
            database.executemany("DELETE FROM models WHERE sha256 = ? AND scope = ?", [(k, scope.key) for k in keys])

    def clear(self) -> int:
        """Forget everything; returns how many op costs, models and links were known."""
        with self._changes() as database:
            return sum(database.execute(f"DELETE FROM {table}").rowcount for table in TABLE_NAMES)

    @contextlib.contextmanager
    def _changes(self) -> Iterator[sqlite3.Connection]:
        """One transaction, written when the block ends well."""
        if self._database is None:
            raise RuntimeError("the profile cache is used outside its `with` block")
        with self._errors(), self._database:
            yield self._database

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"the profile cache {self.path} cannot be used ({error}): set REMAT_CACHE_DIR to another directory, "
                "or delete the file"
            ) from None


def _connect(path: Path) -> sqlite3.Connection:
    """A connection to the file, made anew if it is no database any more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _open_in_turn(path)
    except sqlite3.DatabaseError as error:
        if not isinstance(error, DamagedCache) and getattr(error, "sqlite_errorcode", None) not in NOT_A_DATABASE:
            raise
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
        return _open_in_turn(path)


def _open_in_turn(path: Path) -> sqlite3.Connection:
    """Open, and again while another process is opening: changing the journal does not wait for locks by itself."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return _open(path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _open(path: Path) -> sqlite3.Connection:
    """A connection to a database that has our tables."""
    database = sqlite3.connect(path, timeout=BUSY_SECONDS)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise DamagedCache
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            database.executescript("".join(f"DROP TABLE IF EXISTS {table};" for table in TABLE_NAMES))
        if version != VERSION:
            database.executescript(TABLES)
            database.execute(f"PRAGMA user_version = {VERSION}")
            database.commit()
    except sqlite3.Error:
        database.close()
        raise
    return database
