"""Ops with windows as onnx defines them, for the reference evaluator: its own know no groups, or other paddings."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class ConvTranspose(OpRun):
    """Every element of the input adds its weighted kernel to the result."""

    op_domain = ""

    def _run(self, x, w, b=None, auto_pad=None, group=1, output_padding=None, output_shape=None, **given):  # noqa: PLR0917
        rank = x.ndim - 2
        strides, dilations = given.get("strides") or [1] * rank, given.get("dilations") or [1] * rank
        more = output_padding or [0] * rank
        spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
        full = [s * (n - 1) + span for s, n, span in zip(strides, x.shape[2:], spans, strict=True)]
        groups = np.split(x, group, 1), np.split(w, group, 0)
        wide = [n + m + s for n, m, s in zip(full, more, strides, strict=True)]
        y = np.zeros((x.shape[0], group, w.shape[1], *wide), x.dtype)
        for place, (part, weight) in enumerate(zip(*groups, strict=True)):
            for tap in product(*map(range, w.shape[2:])):
                at = tuple(
                    slice(t * d, t * d + (n - 1) * s + 1, s)
                    for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
                )
                y[(slice(None), place, slice(None), *at)] += np.einsum("nc...,cm->nm...", part, weight[(..., *tap)])
        sizes = output_shape[-rank:] if output_shape else [s * n for s, n in zip(strides, x.shape[2:], strict=True)]
        if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            missing = [max(0, n + m - size) for n, m, size in zip(full, more, sizes, strict=True)]
            lows = [m // 2 if auto_pad == "SAME_UPPER" else m - m // 2 for m in missing]
        else:
            pads = given.get("pads") or [0] * 2 * rank
            lows = pads[:rank]
            sizes = [n + m - low - high for n, m, low, high in zip(full, more, lows, pads[rank:], strict=True)]
        cut = tuple(slice(low, low + size) for low, size in zip(lows, sizes, strict=True))
        y = y.reshape(x.shape[0], -1, *wide)[(slice(None), slice(None), *cut)]
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class MaxPool(OpRun):
    """The first maximum of each window, and its place in the whole tensor."""

    op_domain = ""

    def _run(self, x, **given):
        values = _windows(x, given)[0]
        places = _windows(np.arange(x.size).reshape(x.shape).astype(np.float64), given)[0]
        best = np.expand_dims(np.nanargmax(values, -1), -1)
        found = (
            np.take_along_axis(values, best, -1)[..., 0],
            np.take_along_axis(places, best, -1)[..., 0].astype(np.int64),
        )
        return found[: len(self.output)]


class AveragePool(OpRun):
    """Sum over the window by the number of its elements that count."""

    op_domain = ""

    def _run(self, x, count_include_pad=0, **given):
        values, inside = _windows(x, given)
        counts = inside.sum(-1) if count_include_pad else (~np.isnan(values)).sum(-1)
        return ((np.nansum(values, -1) / counts).astype(x.dtype),)


class LpPool(OpRun):
    """Norm of each window."""

    op_domain = ""

    def _run(self, x, p=2, **given):
        return ((np.nansum(np.abs(_windows(x, given)[0]) ** p, -1) ** (1 / p)).astype(x.dtype),)


class LRN(OpRun):
    """Over channels, which the evaluator takes for the batch."""

    op_domain = ""

    def _run(self, x, alpha=1e-4, beta=0.75, bias=1.0, size=1):
        before, after = (size - 1) // 2, size // 2
        sums = [(x[:, max(0, c - before) : c + after + 1] ** 2).sum(1, keepdims=True) for c in range(x.shape[1])]
        return (x / (bias + alpha / size * np.concatenate(sums, 1)) ** beta,)


def _windows(x: np.ndarray, given: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Elements of each window along a last axis, NaN where there are none; and which are image or padding."""
    kernel = given["kernel_shape"]
    rank = len(kernel)
    strides, dilations = given.get("strides") or [1] * rank, given.get("dilations") or [1] * rank
    starts, ends, counts = [], [], []
    for axis in range(rank):
        low, high, count = _axis(x.shape[2 + axis], kernel[axis], strides[axis], dilations[axis], axis, rank, given)
        starts.append(low)
        ends.append(high)
        counts.append(count)
    room = [k * d + s * n for k, d, s, n in zip(kernel, dilations, strides, counts, strict=True)]
    grown = np.pad(x, [(0, 0)] * 2 + list(zip(starts, room, strict=True)), constant_values=np.nan)
    there = np.zeros(grown.shape, bool)
    there[
        (slice(None), slice(None), *(slice(0, s + n + e) for s, n, e in zip(starts, x.shape[2:], ends, strict=True)))
    ] = True
    taps = []
    for tap in product(*map(range, kernel)):
        at = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, counts, strides, strict=True)
        )
        taps.append((slice(None), slice(None), *at))
    return np.stack([grown[at] for at in taps], -1), np.stack([there[at] for at in taps], -1)


def _axis(size, taps, stride, step, axis, rank, given):  # noqa: PLR0917
    """Padding before and behind, and the number of results."""
    span = (taps - 1) * step + 1
    how = given.get("auto_pad") or "NOTSET"
    if how.startswith("SAME"):
        count = -(-size // stride)
        missing = max(0, (count - 1) * stride + span - size)
        low = missing // 2 if how == "SAME_UPPER" else missing - missing // 2
        return low, missing - low, count
    pads = (None if how == "VALID" else given.get("pads")) or [0] * 2 * rank
    low, high = pads[axis], pads[axis + rank]
    room = size + low + high - span
    count = (-(-room // stride) if given.get("ceil_mode") else room // stride) + 1
    if (count - 1) * stride >= size + low:
        count -= 1
    return low, high, count


WINDOW_OPS = [ConvTranspose, MaxPool, AveragePool, LpPool, LRN]
