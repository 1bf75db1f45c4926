"""Where a file runs: one line for people, entries of metadata and back, names of processors."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.core.values.runs_on import DEFAULT_OPTIONS, RUNS_ON_KEY, UNLIKE, RunsOn

BLOCKED = RunsOn("x86-64 with AVX-512", 16, "1.26", "1.26", "1.32", DEFAULT_OPTIONS, is_guarded=True)
TILED = RunsOn("arm64", None, "1.26", "1.18", "1.33", DEFAULT_OPTIONS, unlike=UNLIKE)
ANYWHERE = RunsOn("arm64", None, "1.26", "1.18", "1.33", DEFAULT_OPTIONS)


def test_the_line_of_a_file_for_one_kind_of_processor():
    assert BLOCKED.line == (
        "runs on: x86-64 with AVX-512, ONNX Runtime 1.26 or newer (tried up to 1.32); for others `--target any`"
    )


def test_the_line_of_a_file_for_any_processor_says_where_bits_were_compared():
    assert ANYWHERE.line == (
        "runs on: any processor (bits compared on arm64), "
        "ONNX Runtime 1.26 or newer (loads from 1.18, tried up to 1.33)"
    )


def test_the_line_says_on_which_processors_last_bits_may_differ():
    assert "(bits compared on arm64; on ARM with SME last bits may differ)" in TILED.line


@pytest.mark.parametrize("runs_on", [BLOCKED, ANYWHERE, TILED])
def test_metadata_says_the_line_and_gives_the_fields_back(runs_on):
    assert runs_on.metadata[RUNS_ON_KEY] == runs_on.line
    assert RunsOn.from_metadata({**runs_on.metadata, "remat.version": "0.1"}) == runs_on


def test_metadata_that_says_nothing_or_nonsense_is_no_answer():
    assert RunsOn.from_metadata({}) is None
    assert RunsOn.from_metadata({RUNS_ON_KEY: "runs on: the moon"}) is None
    assert RunsOn.from_metadata(BLOCKED.metadata | {f"{RUNS_ON_KEY}.layout_block": "sixteen"}) is None


def test_only_a_file_with_blocks_needs_a_guard():
    assert not BLOCKED.is_unguarded
    assert not ANYWHERE.is_unguarded
    assert msgspec.structs.replace(BLOCKED, is_guarded=False).is_unguarded


def test_in_brief_it_says_all_but_what_was_tried():
    runs_on = RunsOn("x86-64 with AVX-512", 16, "1.26", "1.16", "1.32", (), threads=2)
    assert "tried up to 1.32" in runs_on.where
    assert runs_on.brief == runs_on.where.replace(" (loads from 1.16, tried up to 1.32)", "")
    asked = msgspec.structs.replace(runs_on, runtimes="1.24..1.32")
    assert asked.brief == asked.where
