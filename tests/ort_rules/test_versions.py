"""Versions and processors: how they are told apart, and which rules hold where."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.core.values.runs_on import RuntimeRange
from remat_cli.ort_rules.records import RULES_1_31, RULES_1_32, Rules, each_judged, rules_for, rules_of
from remat_cli.ort_rules.runtime import Runtime, processor_of
from remat_cli.ort_rules.versions import TRIED_UP_TO, ends_of, newest, newest_of, numbers_of

WIDE = Runtime("1.32.0", "x86_64", 16)


def test_versions_are_compared_as_numbers():
    assert newest(["1.9", "1.26", "1.3"]) == "1.26"
    assert newest(["1.32.1", "2.0"]) == "2.0"
    assert newest(["1.32.0", "1.31.1"]) == "1.32"
    assert newest(["1.33.0.dev20260101"]) == "1.33"


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("1.32.0", (1, 32)), ("1.9", (1, 9)), ("2", (2, 0)), ("1.33.dev2026", (1, 33)), ("1.dev", (1, 0))],
)
def test_of_a_version_major_and_minor_number_matter(version, numbers):
    assert numbers_of(version) == numbers


def test_a_range_without_an_end_goes_up_to_the_newest_that_was_tried():
    assert ends_of(None) == ()
    assert newest_of(None) == ""
    assert ends_of(RuntimeRange("1.26")) == ("1.26", TRIED_UP_TO)
    assert ends_of(RuntimeRange("1.26", "1.28")) == ("1.26", "1.28")


def test_processors_are_told_apart_as_far_as_files_depend_on_them():
    assert processor_of("x86_64", 16) == processor_of("AMD64", 16) == "x86-64 with AVX-512"
    assert processor_of("x86_64", 8) == processor_of("x86_64", 1) == "x86-64 without AVX-512"
    assert processor_of("aarch64", 1) == processor_of("arm64", 16) == "arm64"
    assert processor_of("riscv64", 1) == "riscv64"


@pytest.mark.parametrize(
    ("machine", "block", "kind", "processor"),
    [
        ("x86_64", 16, "x86-64-avx512", "x86-64 with AVX-512"),
        ("AMD64", 8, "x86-64-avx2", "x86-64 without AVX-512"),
        ("aarch64", 1, "arm64", "arm64"),
        ("RISCV64", 1, "riscv64", "riscv64"),
    ],
)
def test_a_runtime_names_its_processor_and_the_target_that_it_is(machine, block, kind, processor):
    runtime = Runtime("1.32.0", machine, block)
    assert (runtime.kind, runtime.processor) == (kind, processor)


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        ("1.20.1", RULES_1_31),
        ("1.31.1", RULES_1_31),
        ("1.32.0", RULES_1_32),
        ("1.40", RULES_1_32),
        ("2.0", RULES_1_32),
        ("1.16.3", RULES_1_31),  # older than what was measured: as the oldest of that
        ("nightly", RULES_1_32),
    ],
)
def test_a_version_does_what_the_newest_record_up_to_it_says(version, rules):
    assert rules_of(version) == rules
    assert rules_for(Runtime(version, "x86_64", 8)) == rules


def test_files_for_several_versions_are_judged_by_the_newest():
    assert rules_for(Runtime("1.32.0", "x86_64", 8, judged_as=("1.24.4", "1.31.0"))) == RULES_1_31


def test_kernels_for_more_channels_are_there_where_blocks_are_widest():
    narrow, wide = (rules_for(Runtime("1.32.0", "x86_64", block)) for block in (8, 16))
    assert narrow == RULES_1_32
    assert wide.packing.in_arena == RULES_1_32.packing.in_arena_wide != RULES_1_32.packing.in_arena
    packing = msgspec.structs.replace(wide.packing, in_arena=RULES_1_32.packing.in_arena)
    assert msgspec.structs.replace(wide, packing=packing) == RULES_1_32


def judged(oldest: str, latest: str, part=lambda rules: rules) -> list[tuple[str, ...]]:
    runtime = msgspec.structs.replace(WIDE, judged_as=(oldest, latest))
    return [each.judged_as for each in each_judged(runtime, part)]


def test_each_version_with_rules_of_its_own_is_judged_once_newest_first():
    assert each_judged(WIDE, lambda rules: rules) == [WIDE]
    assert judged("1.24.4", "1.31.1") == [("1.31.1",)]
    assert judged("1.24.4", "1.32.0") == [("1.32.0",), ("1.24.4",)]
    assert judged("1.24.4", "1.40") == [("1.40",), ("1.24.4",)]
    assert judged("1.24.4", "1.40", lambda rules: rules.arena) == [("1.40",)]  # which all have in common


def test_records_between_the_ends_of_a_range_are_judged_too(monkeypatch):
    known = {(1, 20): RULES_1_31, (1, 30): slower(1), (1, 33): slower(2), (1, 35): slower(3)}
    monkeypatch.setattr("remat_cli.ort_rules.records.RECORDS", known)
    assert judged("1.24.4", "1.40") == [("1.40",), ("1.33",), ("1.30",), ("1.24.4",)]
    assert judged("1.30.1", "1.35.0") == [("1.35.0",), ("1.33",), ("1.30.1",)]
    assert judged("1.31", "1.34") == [("1.34",), ("1.31",)]


def slower(number: int) -> Rules:
    loading = msgspec.structs.replace(RULES_1_31.loading, run_bytes=number)
    return msgspec.structs.replace(RULES_1_31, loading=loading)
