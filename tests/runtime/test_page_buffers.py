"""Buffers are used again for the same size, and never hold more than they may."""

from __future__ import annotations

from remat_cli.runtime.page_buffers import PageBuffers


def test_a_buffer_is_used_again_for_the_same_number_of_pages():
    buffers = PageBuffers()
    buffers.limit(2**20)
    first = buffers.take(5000)
    assert len(first.pages) == 8192
    assert buffers.held_bytes == 5000
    buffers.give(first)
    assert (buffers.held_bytes, buffers.kept_bytes) == (0, 8192)
    assert buffers.take(4097).pages is first.pages
    assert buffers.take(4096).pages is not first.pages


def test_what_waits_counts_against_the_limit():
    buffers = PageBuffers()
    buffers.limit(3 * 4096)
    some = [buffers.take(4096) for _ in range(3)]
    for each in some:
        buffers.give(each)
    assert buffers.kept_bytes == 3 * 4096
    buffers.take(8192)
    assert buffers.held_bytes + buffers.kept_bytes <= 3 * 4096
    buffers.limit(8192)
    assert buffers.kept_bytes == 0


def test_what_is_forgotten_is_held_no_more():
    buffers = PageBuffers()
    buffers.limit(2**20)
    mine = buffers.take(4096)
    assert buffers.most_held_bytes == 4096
    buffers.forget(mine)
    assert (buffers.held_bytes, buffers.kept_bytes, buffers.most_held_bytes) == (0, 0, 4096)
