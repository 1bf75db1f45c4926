"""What each release of the runtime does, in numbers and tables that were measured on it: a record for each.

A new release that differs gets a record here, made of the one before it, and nothing else changes; which rule differs
says `tests/ort_rules/test_records.py`, which measures each on the runtime that is installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from remat_cli.ort_rules.arena import ArenaRules
from remat_cli.ort_rules.arena_copies import ArenaCopyRules
from remat_cli.ort_rules.bodies import BodyRules
from remat_cli.ort_rules.loading import LoadRules
from remat_cli.ort_rules.no_arena import MallocRules
from remat_cli.ort_rules.packing import PackingRule, PackingRules
from remat_cli.ort_rules.runtime import DEFAULT, WIDE_BLOCK, Runtime, SessionOptions
from remat_cli.ort_rules.versions import numbers_of
from remat_cli.ort_rules.workspaces import WorkspaceRules


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What one release does.

    `exact` are the options under which a session runs exactly its file: its order, its ops, and every buffer freed at
    its last use. `largest_first_region_bytes` is what an arena that is asked for can have as its first region.
    """

    arena: ArenaRules
    malloc: MallocRules
    workspaces: WorkspaceRules
    bodies: BodyRules
    packing: PackingRules
    loading: LoadRules
    default: SessionOptions
    exact: SessionOptions
    largest_first_region_bytes: int


_FLOAT: Final = frozenset({"float"})
_BYTE: Final = frozenset({"uint8", "int8"})
_MATRIX: Final = frozenset({2})
_MS: Final = "com.microsoft"

PACKING: Final[Mapping[tuple[str, str], PackingRule]] = MappingProxyType(
    {
        ("", "MatMul"): PackingRule(frozenset({1}), _FLOAT, _MATRIX),
        ("", "Gemm"): PackingRule(frozenset({1}), _FLOAT, _MATRIX),
        (_MS, "FusedGemm"): PackingRule(frozenset({1}), _FLOAT, _MATRIX),
        (_MS, "FusedMatMul"): PackingRule(frozenset({1}), _FLOAT, _MATRIX),
        ("", "ConvTranspose"): PackingRule(frozenset({1}), _FLOAT),
        ("", "LSTM"): PackingRule(frozenset({1, 2}), _FLOAT),
        ("", "GRU"): PackingRule(frozenset({1, 2}), _FLOAT),
        ("", "MatMulInteger"): PackingRule(frozenset({1}), _BYTE, _MATRIX),
        ("", "QLinearMatMul"): PackingRule(frozenset({3}), _BYTE, _MATRIX),
        ("", "QLinearConv"): PackingRule(frozenset({3}), _BYTE, can_be_saved=False),
        (_MS, "QLinearConv"): PackingRule(frozenset({3}), _BYTE, can_be_saved=False),
        (_MS, "DynamicQuantizeMatMul"): PackingRule(frozenset({1}), _BYTE, _MATRIX),
        (_MS, "MatMulIntegerToFloat"): PackingRule(frozenset({1}), _BYTE, _MATRIX),
        (_MS, "QGemm"): PackingRule(frozenset({3}), _BYTE, _MATRIX),
        (_MS, "MatMulNBits"): PackingRule(frozenset({1})),
        (_MS, "Attention"): PackingRule(frozenset({1}), _FLOAT),
        (_MS, "QAttention"): PackingRule(frozenset({1}), _BYTE),
        (_MS, "DynamicQuantizeLSTM"): PackingRule(frozenset({1, 2}), _BYTE),
    }
)
"""(domain, op type) -> what it packs."""


RULES_1_31: Final = Rules(
    arena=ArenaRules(
        unit_bytes=256,
        first_region_bytes=2**20,
        largest_growth_bytes=2**30,
        most_dead_bytes=128 * 2**20,
        table_share=32,  # 8 bytes for each unit
    ),
    malloc=MallocRules(
        alignment=64,
        before_bytes=160,
        after_bytes=32,
        workspace_bytes=16,
        passing_bytes=(48, 64),
        passing_odds=10,
    ),
    workspaces=WorkspaceRules(
        sum_bytes=4,
        slack_bytes=2048,
        state_slack_bytes=96,
    ),
    bodies=BodyRules(copies_results=frozenset({"Loop"}), lists=frozenset({"SequenceInsert"})),
    packing=PackingRules(
        arena_limit_bytes=127,
        kernels=PACKING,
        columns=MappingProxyType(
            # A cell has at most four parts, of 16 each.
            {"MatMul": 16, "Gemm": 16, "FusedMatMul": 16, "FusedGemm": 16, "LSTM": 64, "GRU": 64}
        ),
        in_arena=ArenaCopyRules(output_channels=16, output_step=8, input_step=4),  # AVX2
        in_arena_wide=ArenaCopyRules(output_channels=16, output_step=4, input_step=4),  # AVX-512
    ),
    loading=LoadRules(
        stream_bytes=2**22,
        session_bytes=3 * 2**18,
        op_bytes=4800,
        branch_op_bytes=3400,
        weight_bytes=4400,
        captured_bytes=7100,
        branch_copies=1,
        run_bytes=2**20,  # about
        gathered_factor=2,  # short rows, of which whole pages are read
        primed_bytes=2**19,  # about; 1.5 MiB if each stays
        stuck_copies=2,  # in 4 of 120 processes
        no_arena_bytes=2**20,
        reads_saved=False,
    ),
    default=DEFAULT,
    exact=SessionOptions(
        is_optimised=False, is_priority_based=True, reuses_dead_buffers=False, has_memory_pattern=False
    ),
    largest_first_region_bytes=2**31 - 1,  # it is read as a 32-bit integer
)
"""Measured on 1.31.1, and the same on 1.28 and 1.30. On 1.24.4 and 1.26, which count no memory, loading is the same.

Files hold the same live bytes on 1.20, 1.22 and 1.24, as an allocator that counts shows.
"""
RULES_1_32: Final = msgspec.structs.replace(
    RULES_1_31, loading=msgspec.structs.replace(RULES_1_31.loading, reads_saved=True)
)
"""Measured on 1.32.0."""
RECORDS: Final[Mapping[tuple[int, int], Rules]] = MappingProxyType({(1, 20): RULES_1_31, (1, 32): RULES_1_32})
"""By the version from which on they hold, oldest first; older versions are taken to do what the oldest here does."""


def each_judged(runtime: Runtime, part: Callable[[Rules], object]) -> list[Runtime]:
    """The runtime as each version that files are for, newest first; of those with an equal part of their rules one."""
    if not runtime.judged_as:
        return [runtime]
    oldest, newest = numbers_of(runtime.judged_as[0]), numbers_of(runtime.judged_as[-1])
    starts = [since for since in sorted(RECORDS, reverse=True) if oldest < since < newest]
    versions = (runtime.judged_as[-1], *(f"{major}.{minor}" for major, minor in starts), runtime.judged_as[0])
    found, parts = list[Runtime](), list[object]()
    for version in versions:
        one = msgspec.structs.replace(runtime, judged_as=(version,))
        own = part(rules_for(one))
        if own not in parts:
            found.append(one)
            parts.append(own)
    return found


def rules_for(runtime: Runtime) -> Rules:
    """The rules of a runtime on its processor; of several that files are for, the newest."""
    rules = rules_of(runtime.judged_as[-1] if runtime.judged_as else runtime.version)
    if runtime.layout_block != WIDE_BLOCK:
        return rules
    packing = msgspec.structs.replace(rules.packing, in_arena=rules.packing.in_arena_wide)
    return msgspec.structs.replace(rules, packing=packing)


def rules_of(version: str) -> Rules:
    """The rules of a version such as "1.32.0", on any processor; the newest for a text that is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return list(RECORDS.values())[-1]
    number = int(found[1]), int(found[2])
    return next((rules for since, rules in reversed(list(RECORDS.items())) if since <= number), RULES_1_31)
