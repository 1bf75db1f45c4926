"""Long files are spread over workers, each whole, and every test is run once."""

from __future__ import annotations

import json

from tests import durations

SECONDS = {"a.py": 30.0, "b.py": 20.0, "c.py": 15.0, "d.py": 5.0}
TESTS = [(file, (file, number)) for file in ["short.py", *sorted(SECONDS), "brief.py"] for number in range(10)]


def test_every_worker_begins_with_long_files_and_ends_with_short_ones():
    order = durations.spread(TESTS, SECONDS, 2)
    assert sorted(order) == sorted(test for _, test in TESTS)
    parts = [[file for file, _ in order[:30]], [file for file, _ in order[30:]]]
    assert [list(dict.fromkeys(part)) for part in parts] == [["a.py", "d.py", "short.py"], ["b.py", "c.py", "brief.py"]]


def test_tests_of_a_file_stay_in_their_order_and_one_worker_begins_with_the_longest():
    order = durations.spread(TESTS, SECONDS, 1)
    assert [number for file, number in order if file == "c.py"] == list(range(10))
    assert list(dict.fromkeys(file for file, _ in order)) == ["a.py", "b.py", "c.py", "d.py", "short.py", "brief.py"]


def test_more_workers_than_files_lose_no_test():
    assert sorted(durations.spread(TESTS[:3], {}, 8)) == sorted(test for _, test in TESTS[:3])


def test_only_long_files_are_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(durations, "RECORD", tmp_path / "durations.json")
    durations.record([("a.py", 1.0), ("b.py", 3.0), ("a.py", 1.5), ("c.py", 0.5)])
    assert json.loads(durations.RECORD.read_text()) == {"b.py": 3.0, "a.py": 2.5} == durations.recorded()


def test_most_of_the_files_that_are_recorded_are_there():
    """A file that was moved since, or went with a wing, only starts later."""
    files = durations.recorded()
    missing = [file for file in files if not (durations.RECORD.parents[1] / file).is_file()]
    assert len(missing) < len(files) / 4, f"`make durations` records them anew: {missing}"
