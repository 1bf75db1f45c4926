"""The simulated heap beside glibc itself, address by address."""

from __future__ import annotations

import platform
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from remat_cli.ort_rules.heaps.malloc import FIRST_THRESHOLD_BYTES, Malloc, Written

MIB = 2**20
HEAD_BYTES = 16  # before a block, in the heap
SIZES = (24, 40, 100, 1016, 4096, 2**17 - 8, 2**18, 2**20, 4 * 2**20)

Step = tuple[str, int, int, int]
"""`a` (a block is taken) or `f` (it is given back), its number, its size and its alignment (0: any)."""


def drawn(seed: int, most_bytes: int, count: int = 2000) -> list[Step]:
    """Blocks of many sizes, some of the same ones, taken and given back in any order."""
    dice, steps, live = random.Random(seed), list[Step](), list[int]()
    for number in range(count):
        if live and dice.random() < 0.49:
            steps.append(("f", live.pop(dice.randrange(len(live))), 0, 0))
            continue
        size = dice.choice([each for each in SIZES if each <= most_bytes])
        if dice.random() < 0.6:
            size = int(8 * (most_bytes / 8) ** dice.random())
        steps.append(("a", number, size, dice.choice((64, 64, 0))))
        live.append(number)
    return steps


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("malloc") / "malloc"
    subprocess.run(["gcc", "-O1", "-w", "-o", str(found), str(Path(__file__).with_name("malloc.c"))], check=True)
    return found


def in_glibc(steps: list[Step], program: Path, folder: Path) -> list[tuple[int, int]]:
    lines = [f"a {number} {size} {to}" if kind == "a" else f"f {number}" for kind, number, size, to in steps]
    (folder / "steps").write_text("\n".join(lines))
    done = subprocess.run([program, folder / "steps"], capture_output=True, text=True, check=True)
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or shutil.which("gcc") is None, reason="needs glibc and gcc")
@pytest.mark.parametrize("most_bytes", [120, 1200, 2000, 60_000, 200_000, 3 * MIB, 40 * MIB])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_block_lies_where_glibc_puts_it(seed, most_bytes, program, tmp_path):
    steps = drawn(most_bytes + seed, most_bytes)
    (first, length), *seen = in_glibc(steps, program, tmp_path)
    heap = Malloc(first, free_bytes=length)
    heap.take(24)
    blocks, found = {}, []
    for kind, number, size, alignment in steps:
        if kind == "a":
            taken = blocks[number] = heap.take_aligned(size, alignment) if alignment else heap.take(size)
            found.append((-1 if taken.is_mapped else taken.start + HEAD_BYTES - first, heap.end - first))
        else:
            heap.give_back(blocks.pop(number), is_written=False)
            found.append((0, heap.end - first))
    assert found == seen
    assert (heap.threshold_bytes > FIRST_THRESHOLD_BYTES) == (most_bytes > FIRST_THRESHOLD_BYTES)


def test_a_mapped_block_goes_back_to_the_system_and_raises_the_threshold():
    heap = Malloc()
    block = heap.take_aligned(MIB, 64)
    heap.write(block)
    assert block.is_mapped
    assert MIB <= heap.resident_bytes <= MIB + 4096
    heap.give_back(block)
    assert heap.resident_bytes == 0
    again = heap.take_aligned(MIB, 64)
    heap.write(again)
    heap.give_back(again)
    assert not again.is_mapped  # the next one of its size lies in the heap, which keeps it
    assert heap.resident_bytes >= MIB


def test_a_mapped_block_that_was_not_written_goes_back_and_leaves_others():
    heap = Malloc()
    written, unwritten = heap.take(MIB), heap.take(2 * MIB)
    heap.write(written)
    before = heap.resident_bytes
    heap.give_back(unwritten, is_written=False)
    assert heap.resident_bytes == before >= MIB


def test_what_is_not_written_is_not_resident():
    heap = Malloc(threshold_bytes=32 * MIB)
    block = heap.take_aligned(8 * MIB, 64)
    assert not block.is_mapped
    assert heap.resident_bytes == 0
    heap.give_back(block, is_written=False)
    assert heap.resident_bytes == 0


def test_the_free_end_goes_back_when_it_is_twice_the_threshold():
    heap = Malloc(threshold_bytes=2 * MIB)
    blocks = [heap.take(MIB) for _ in range(5)]
    for block in blocks:
        heap.write(block)
    for block in reversed(blocks[2:]):
        heap.give_back(block)
    assert heap.resident_bytes >= 5 * MIB
    heap.give_back(blocks[1])
    assert heap.resident_bytes < 2 * MIB


def test_written_spans_are_joined_and_cut():
    written = Written()
    for start, end in ((0, 10), (20, 30), (40, 50), (5, 25), (50, 60)):
        written.add(start, end)
    assert (written.spans, written.bytes) == ([(0, 30), (40, 60)], 50)
    written.cut(45)
    assert (written.spans, written.bytes) == ([(0, 30), (40, 45)], 35)
    written.cut(30)
    assert (written.spans, written.bytes) == ([(0, 30)], 30)


def test_a_mapping_is_of_whole_pages_with_a_head():
    for size, mapped in ((MIB - 24, MIB), (MIB - 23, MIB + 4096), (MIB, MIB + 4096)):
        heap = Malloc()
        heap.write(heap.take(size))
        assert heap.resident_bytes == mapped
