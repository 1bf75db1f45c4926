"""The profile cache under several processes, kills, full disks and damage: what was stored is whole, or all gone."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from remat_cli.core.values.profile import OpCost
from remat_cli.runtime.measure.profile_cache import FILE_NAME, ProfileCache
from tests.fuzz.shared_files import DIED, DONE, REFUSED, SCOPE, Mishap, Store, elsewhere, store_costs, store_half

KEYS = ("a", "b", "c", "d")
TIMES = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 10**12), min_size=1)
MANY = st.integers(200, 400).map(lambda count: {f"long {'n' * 300} {index}": index for index in range(count)})


class CacheStates(RuleBasedStateMachine):
    """A cache, one process that has it open all the time, and what must be in it."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz_"))
        self.cache = ProfileCache(self.folder).__enter__()
        self.times: dict[str, int] = {}

    @rule(times=TIMES)
    def store(self, times):
        self.cache.store_ops(SCOPE, {key: OpCost(key, time) for key, time in times.items()}, replace=True)
        self.times |= times

    @rule(times=TIMES)
    def another_process_stores(self, times):
        assert elsewhere(store_costs, Store(self.folder, times)) == [DONE]
        self.times |= times

    @rule(one=TIMES, other=TIMES)
    def two_processes_store_at_once(self, one, other):
        assert elsewhere(store_costs, Store(self.folder, one), Store(self.folder, other)) == [DONE, DONE]
        last = {key: self.found()[key] for key in {*one, *other}}
        assert last in (one | other, other | one)  # one came after the other, whole
        self.times |= last

    @rule(times=TIMES)
    def another_is_killed_while_it_stores(self, times):
        assert elsewhere(store_half, Store(self.folder, times)) == [DIED]

    @rule(times=MANY)
    def the_disk_is_full_for_another(self, times):
        used = max(path.stat().st_size for path in self.folder.iterdir())
        ended = elsewhere(store_costs, Store(self.folder, times, Mishap(most_bytes=used + 4096)))
        assert ended == [REFUSED]
        assert not any(key in self.found(times) for key in times)

    @rule()
    def forget(self):
        assert self.cache.clear() == len(self.times)
        self.times = {}

    @rule(damage=st.sampled_from((b"", b"no database at all" * 100)))
    def damaged_while_nobody_has_it_open(self, damage):
        self.cache.__exit__()
        for path in self.folder.iterdir():
            if path.name != FILE_NAME:
                path.unlink()
        (self.folder / FILE_NAME).write_bytes(damage)
        self.cache.__enter__()
        self.times = {}

    @rule()
    def opened_anew(self):
        self.cache.__exit__()
        self.cache.__enter__()

    def found(self, keys=KEYS):
        return {key: cost.time_ns for key, cost in self.cache.op_costs(SCOPE, keys).items()}

    @invariant()
    def all_that_was_stored_is_there(self):
        if hasattr(self, "cache"):
            assert self.found() == self.times

    def teardown(self):
        if hasattr(self, "cache"):
            self.cache.__exit__()
            shutil.rmtree(self.folder)


def run(examples: int, steps: int) -> None:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        CacheStates, settings=settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=slow)
    )


def test_the_cache_keeps_what_it_was_given():
    run(examples=6, steps=8)


@pytest.mark.slow
def test_the_cache_keeps_what_it_was_given_in_long_stories():
    run(examples=12, steps=20)
