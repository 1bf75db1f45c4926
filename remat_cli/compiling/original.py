"""The user's file as it was given, in a session as users open one: what all outputs are compared with."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.files import sha256
from remat_cli.compiling.process.resident import see_alone
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.resident import ProcessMemory
from remat_cli.onnx_io.read.load import SourceModel
from remat_cli.onnx_io.read.seeds import seeded_copy
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings, outputs_of

SMALL = 8  # above the least sizes, at which those of many sizes are compared before they are planned
LEVELS = {
    "all": "default session",
    "basic": "session that fuses no ops (ORT_ENABLE_BASIC)",
}


@dataclass(frozen=True)
class Original:
    """A file that outputs are compared with, how its session is opened, and what it is fed for that.

    `name` says which file in which session it is, at which sizes. `key` stands for the file's contents, the sizes and
    the feeds. Where it `is_watched`, the same runs show what a process of it holds; it `is_mapped` where its weights
    are in files beside it.
    """

    path: Path
    name: str
    settings: SessionSettings
    feeds: tuple[Mapping[str, Any], ...]
    key: str
    is_mapped: bool = False
    is_watched: bool = False

    @property
    def outputs(self) -> tuple[Mapping[str, Any], ...]:
        """What it gives for each of the feeds, in one session.

        Raises:
            RuntimeFailure: the runtime refuses or fails to run it.
        """
        return self._seen[1]

    @property
    def process(self) -> ProcessMemory | None:
        """What a process of it was seen to hold in these runs; None: it is not watched.

        Raises:
            RuntimeFailure: the runtime refuses or fails to run it.
        """
        return self._seen[0]

    @cached_property
    def _seen(self) -> tuple[ProcessMemory | None, tuple[Mapping[str, Any], ...]]:
        if self.is_watched:
            with contextlib.suppress(RuntimeFailure):  # this process runs into the same, and can say why
                return see_alone(self.path, self.feeds, self.settings, is_mapped=self.is_mapped)
        return None, outputs_of(self.path, self.feeds, self.settings)


def original_of(
    source: SourceModel, feeds: Sequence[Mapping[str, Any]], conditions: Conditions, work: Path, *, has_seeds: bool
) -> Original:
    """The user's file, but for seeds of ops that draw numbers without one; for many sizes it is fed small ones too."""
    path = seeded_copy(source.path, work / "original_with_seeds.onnx") if has_seeds else source.path
    family = conditions.family
    settings = SessionSettings(
        exact=False,
        level=conditions.opens_as,
        intra_op_threads=conditions.intra_op_threads,
        custom_ops=conditions.custom_ops,
        run_seconds=conditions.run_seconds,
    )
    asked = msgspec.json.encode((conditions.dims, conditions.input_shapes, conditions.seed), order="sorted").decode()
    fed = f" {sha256(*conditions.all_inputs)}" if conditions.all_inputs else ""
    key = hashlib.sha256(f"{source.sha256} {conditions.opens_as} {asked}{fed}".encode()).hexdigest()
    if family is not None:  # what the runtime fuses depends on no size, and verification runs the file at many
        small = {each.name: each.up_from(each.low + SMALL) for each in family.ranges}
        ways = (small, {each.name: each.low for each in family.ranges})
        sizes = next((sizes for sizes in ways if family.admits({**conditions.dims, **sizes})), dict(conditions.dims))
        feeds = (make_feeds(source.inputs_at({**conditions.dims, **sizes}), conditions.seed),)
    return Original(
        path=path,
        name=_name(user_file(source.path, has_seeds=has_seeds), conditions),
        settings=settings,
        feeds=tuple(feeds),
        key=key,
        is_mapped=bool(source.data_files),
    )


def user_file(path: Path, *, has_seeds: bool) -> str:
    """What reports call the file that the user gave."""
    return f"the user's file {path.name}{', with seeds for its random ops' if has_seeds else ''}"


def as_read(original: Original, source: SourceModel, conditions: Conditions, path: Path) -> Original:
    """The original that stands in for a file which the runtime does not run: the model as remat reads it, at `path`."""
    made = "converted" if source.converted else "read"
    name = _name(f"the model as it was {made} from {source.path.name}", conditions)
    return Original(path, name, original.settings, original.feeds, f"{original.key} as read")


def _name(what: str, conditions: Conditions) -> str:
    """What reports call a model: what it is, its level of optimisation, and the sizes as a user writes them."""
    ranges = () if conditions.family is None else conditions.family.ranges
    free = {each.name for each in ranges}
    named = [f"{name}={size}" for name, size in conditions.dims.items() if name not in free]
    shapes = [f"{name}:{','.join(map(str, shape))}" for name, shape in conditions.input_shapes.items()]
    sizes = [*map(str, ranges), *named, *shapes]
    return ", ".join([what, LEVELS[conditions.opens_as], *sizes])
