"""Measures how alike the outputs of two models are: bit for bit, or but for what another order of adding changes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.runtime.sessions._ort import (
    Advance,
    Array,
    PackedArray,
    pack,
    run_session,
    running,
    runtime_dtype,
    runtime_errors,
    unpack_all,
)
from remat_cli.runtime.sessions.session import SessionSettings, open_session

RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Close floats differ by at most this share of the largest magnitude in their tensor, and this much besides."""


class Likeness(msgspec.Struct, frozen=True):
    """Whether outputs are close, and their largest difference relative to the largest magnitude in its tensor.

    `relative_error` is None where that says nothing: values other than numbers, or numbers where others have none.
    """

    are_close: bool
    relative_error: float | None


class LikenessJob(msgspec.Struct, frozen=True):
    """Run two models under each of the settings, on each of the feeds."""

    models: tuple[str, str]
    feeds: tuple[tuple[PackedArray, ...], ...]
    settings: tuple[SessionSettings, ...]


def compare_models(job: LikenessJob, advance: Advance) -> Likeness:
    """Likeness of the second model's outputs to the first's, over all runs."""
    found = []
    for number, settings in enumerate(job.settings):
        originals, others = (_outputs(Path(model), job.feeds, settings) for model in job.models)
        found += [likeness(*pair) for pair in zip(originals, others, strict=True)]
        advance(number + 1, len(job.settings))
    return worst(found)


def have_same_bits(originals: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether two sets of outputs are equal bit for bit."""
    if originals.keys() != others.keys():
        return False
    return all(are_same_bits(originals[name], others[name]) for name in originals)


def are_close(original: Any, other: Any) -> bool:
    """Whether two outputs differ by no more than another order of adding up may change."""
    return _likeness_of(original, other).are_close


def are_same_bits(original: Any, other: Any) -> bool:
    """Whether two outputs are equal bit for bit."""
    if not isinstance(original, np.ndarray) or not isinstance(other, np.ndarray):  # a sequence or an optional
        return repr(original) == repr(other)
    return pack("", original) == pack("", other)


def likeness(originals: Mapping[str, Any], others: Mapping[str, Any]) -> Likeness:
    """Likeness of a set of outputs to the original ones: the worst of any output."""
    if originals.keys() != others.keys():
        return Likeness(False, None)
    return worst([_likeness_of(originals[name], others[name]) for name in originals])


def _outputs(
    model: Path, feeds: Iterable[tuple[PackedArray, ...]], settings: SessionSettings
) -> list[dict[str, Array]]:
    """What a model makes of each of the feeds; its session is gone when this returns, before another one is opened."""
    session = open_session(model, settings)
    with runtime_errors(running(model)):
        return [run_session(session, unpack_all(group)) for group in feeds]


def worst(found: Sequence[Likeness]) -> Likeness:
    """The likeness of several pairs together; of none it is perfect."""
    errors = [each.relative_error for each in found]
    known = [error for error in errors if error is not None]
    return Likeness(all(each.are_close for each in found), max(known, default=0.0) if known == errors else None)


def _likeness_of(original: Any, other: Any) -> Likeness:
    if not isinstance(original, np.ndarray) or not isinstance(other, np.ndarray):
        return _exactly(are_same_bits(original, other))
    if original.shape != other.shape or original.dtype != other.dtype:
        return Likeness(False, None)
    if not runtime_dtype(original).startswith(("float", "bfloat", "double")):
        return _exactly(np.array_equal(original, other))
    # NaN and infinities must stand at the same places.
    wanted = original.astype(np.float64)
    given = other.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], given[~finite], equal_nan=True) or not np.isfinite(given[finite]).all():
        return Likeness(False, None)
    difference = float(np.abs(wanted[finite] - given[finite]).max(initial=0.0))
    magnitude = float(np.abs(wanted[finite]).max(initial=0.0))
    error = 0.0 if difference == 0 else difference / magnitude if magnitude else None
    return Likeness(difference <= RELATIVE * magnitude + ABSOLUTE, error)


def _exactly(are_equal: bool) -> Likeness:
    return Likeness(True, 0.0) if are_equal else Likeness(False, None)
