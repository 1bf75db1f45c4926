"""Options of the session that a file is made for: what may be said, together or not, and what follows from it."""

from __future__ import annotations

import pytest

from remat_cli.base.errors import ConfigError
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.core.values.session import AskedSession, session_of
from remat_cli.settings import settings as module
from remat_cli.settings.settings import load_settings


def session(*words: str, **more: object) -> AskedSession:
    return load_settings({"session": words, **more}).session


def test_nothing_said_is_the_default():
    assert session() == AskedSession()
    assert session().words == ()
    assert load_settings({}).conditions.session.lines == (
        "any graph optimisation level",
        "any number of threads",
        "CPU memory arena on",
    )


def test_words_are_read_and_told():
    found = session("arena=off", "pattern=off", "optimisation=disabled", "threads=3")
    assert found == AskedSession(arena=False, pattern=False, optimisation="disabled", threads=3)
    assert found.words == ("arena=off", "pattern=off", "optimisation=disabled", "threads=3")
    assert session_of(found.words) == found
    assert "3 threads" in found.lines
    assert "memory pattern off" in found.lines
    assert any("glibc" in line for line in found.lines)


def test_a_mapping_says_the_same():
    assert load_settings({"session": {"arena": False, "threads": 2}}).session == session("arena=off", "threads=2")


def test_threads_of_the_session_are_those_of_the_run():
    assert load_settings({"session": ("threads=2",)}).intra_op_threads == 2
    with pytest.raises(ConfigError, match=r"--session threads=2: 3 threads are given too"):
        load_settings({"session": ("threads=2",), "intra_op_threads": 3})


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("arena=maybe", "session arena=maybe: write on or off"),
        ("heap=off", "session option 'heap' is none of arena, pattern"),
        ("arena", "session option 'arena' is not understood"),
        ("optimisation=more", "write all, extended, basic, disabled"),
        ("concurrency=0", "write a number of runs at once"),
        ("mode=fast", "write sequential, parallel"),
    ],
)
def test_what_is_not_known_is_refused(word, message):
    with pytest.raises(ConfigError, match=message):
        session(word)


@pytest.mark.parametrize(
    "words", [("arena=off", "concurrency=2"), ("arena=off", "mode=parallel"), ("mode=parallel", "concurrency=2")]
)
def test_two_that_are_not_promised_together_are_refused(words):
    with pytest.raises(ConfigError, match=f"--session {' and '.join(sorted(words))}|nothing is promised of both"):
        session(*words)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"portable": True}, "--portable"),
        ({"target": "any"}, "--target any"),
        ({"devices": ("cpu", "openvino")}, "several devices"),
        ({"spill": "disk:."}, "--spill"),
    ],
)
def test_sessions_that_are_not_the_callers_alone_are_refused(more, reason):
    with pytest.raises(ConfigError, match=f"--session arena=off: nothing is promised of it with {reason}"):
        session("arena=off", **more)


def test_a_process_is_bounded_without_an_arena_only_where_glibc_is(monkeypatch):
    asked = {"session": ("arena=off",), "budget": "100MiB"}
    monkeypatch.setattr(module, "has_glibc", lambda: True)
    assert load_settings(asked).compile_scope == "process"
    monkeypatch.setattr(module, "has_glibc", lambda: False)
    assert load_settings(asked).compile_scope == "live"
    with pytest.raises(ConfigError, match="without glibc"):
        _ = load_settings({**asked, "budget_scope": "process"}).compile_scope


def test_the_file_says_for_which_sessions_it_was_made():
    asked = session("arena=off", "pattern=off")
    made = RunsOn("arm64", None, "1.26", "1.26", "1.32", asked.lines, session=asked.words)
    assert made.line.endswith("in sessions with arena=off, pattern=off")
    assert RunsOn.from_metadata(made.metadata) == made
    plain = RunsOn("arm64", None, "1.26", "1.26", "1.32", session().lines)
    assert "in sessions" not in plain.line
    assert RunsOn.from_metadata(plain.metadata) == plain
