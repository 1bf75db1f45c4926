"""Files that several processes write, fail to write and die over hold one whole writing, and nothing else stays."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.fuzz.shared_files import DIED, DONE, REFUSED, Mishap, Write, elsewhere, write_file

NAMES = st.sampled_from(("out.onnx", "out.onnx.data", "out.plan.json"))
CONTENTS = st.builds(
    lambda size, sign: bytes([sign]) * size, st.sampled_from((0, 1, 5000, 300_000)), st.integers(0, 255)
)
DEATHS = st.sampled_from((("fsync", 1), ("replace", 1), ("fsync", 2)))
"""Before the new content is safe, before it takes its place, and after that."""


class OutputStates(RuleBasedStateMachine):
    """A folder with results, and what may be in each file."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz_"))
        self.contents: dict[str, bytes] = {}
        self.deaths = 0

    @rule(name=NAMES, content=CONTENTS)
    def write(self, name, content):
        assert elsewhere(write_file, Write(self.folder / name, content)) == [DONE]
        self.contents[name] = content

    @rule(name=NAMES, one=CONTENTS, other=CONTENTS)
    def two_write_at_once(self, name, one, other):
        jobs = (Write(self.folder / name, content) for content in (one, other))
        assert elsewhere(write_file, *jobs) == [DONE, DONE]
        found = (self.folder / name).read_bytes()
        assert found in (one, other)
        self.contents[name] = found

    @rule(name=NAMES, content=CONTENTS, room=st.sampled_from((0, 100, 4096)))
    def disk_is_full(self, name, content, room):
        ended = elsewhere(write_file, Write(self.folder / name, content, Mishap(most_bytes=room)))
        assert ended == [DONE if len(content) <= room else REFUSED]
        if ended == [DONE]:
            self.contents[name] = content

    @rule(name=NAMES, content=CONTENTS, death=DEATHS)
    def killed(self, name, content, death):
        function, call = death
        ended = elsewhere(write_file, Write(self.folder / name, content, Mishap(dies_in=function, at_call=call)))
        assert ended == [DIED]
        if death == ("fsync", 2):
            self.contents[name] = content
        else:
            self.deaths += 1

    @invariant()
    def each_file_is_one_writing(self):
        if not hasattr(self, "folder"):
            return
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        unfinished = [name for name in files if name.startswith(".") and name.endswith(".tmp")]
        assert len(unfinished) == self.deaths  # of those who died, never of those who were refused
        assert {name: content for name, content in files.items() if name not in unfinished} == self.contents

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


def run(examples: int, steps: int) -> None:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        OutputStates, settings=settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=slow)
    )


def test_results_are_always_whole():
    run(examples=3, steps=8)


@pytest.mark.slow
def test_results_are_always_whole_in_long_stories():
    run(examples=12, steps=20)
