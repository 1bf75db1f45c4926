"""Where a compiled file runs: which processors, which versions of the runtime, under which session options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import msgspec

from remat_cli.base.processes import available_cores
from remat_cli.core.values.session import ANY_THREADS, AskedSession, session_of

RUNS_ON_KEY: Final = "remat.runs_on"
"""Model metadata: the line for people; each field has a key of its own behind it."""
MADE_FOR: Final = "made_for_"
"""With what the name of every guard begins."""
DEFAULT_OPTIONS: Final = ("any graph optimisation level", ANY_THREADS, "CPU memory arena on")
"""Session options under which a file keeps what was promised of it."""
GPU_OPTIONS: Final = (
    "graph optimisation level ORT_ENABLE_BASIC",
    "use_deterministic_compute",
    "the provider's options of the plan",
)
"""The same of a file for another device than the CPU, on which sessions fuse other ops."""
EXACT_OPTIONS: Final = ("the exact options of the plan",)
"""The same of a portable file, which any other session optimises again."""

OTHER_DEVICES: Final = ("other devices",)
"""Where tiles were compared on the one that they are for: another one may take other kernels for them."""
UNLIKE: Final = ("ARM with SME",)
"""Where convolutions that pad all sides alike have kernels of their own, which tiles at an edge have not."""
OWN_OPTIONS: Final = ("sessions that remat opens",)
"""The same of a plan that is cut into sessions."""


class RuntimeRange(msgspec.Struct, frozen=True):
    """Versions of ONNX Runtime that a file is for, as a user names them.

    From the oldest to the newest version, each MAJOR.MINOR; with no `newest`, up to the newest that was tried.
    """

    oldest: str
    newest: str | None = None

    def __str__(self) -> str:
        """As it is written on the command line."""
        if self.newest is None:
            return f">={self.oldest}"
        return f"=={self.oldest}" if self.newest == self.oldest else f"{self.oldest}..{self.newest}"


class RunsOn(msgspec.Struct, frozen=True):
    """What a file needs, as read from what it contains.

    `processor` is the kind that it was made on, and the only one that it runs on where it has a `layout_block`: so many
    channels lie together in its weights (None: no op of it is in that layout, and any processor runs it).
    `least_runtime` is the oldest version with the bits of the original, `loads_from` the oldest that has all its ops;
    `tried_up_to` is the newest that was tried, since a newer one cannot be refused. It holds under these `options`;
    those of `session` were asked for. With `threads` of a session its bits are those of the original (0: with any
    number): parts of some ops, such as Elu, are computed in packets that threads share. With more than `most_threads`
    last bits may be others too (0: with no number): threads share out sums.
    What is promised of memory was predicted for processors of the name `target` (empty: for all that it runs on).
    `is_guarded`: an op of the file refuses other processors. `runtimes` are the versions that it was asked for
    (empty: none were named). On processors that are `unlike` others last bits may differ from those of the original.
    """

    processor: str
    layout_block: int | None
    least_runtime: str
    loads_from: str
    tried_up_to: str
    options: tuple[str, ...]
    is_guarded: bool = False
    session: tuple[str, ...] = ()
    threads: int = 0
    most_threads: int = 0
    target: str = ""
    runtimes: str = ""
    unlike: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """All of it in one line for people."""
        return f"runs on: {self.where}"

    @property
    def where(self) -> str:
        """Processor, versions, sessions, and what may be otherwise elsewhere."""
        loads = "" if self.loads_from == self.least_runtime else f"loads from {self.loads_from}, "
        return self._where(f"ONNX Runtime {self.least_runtime} or newer ({loads}tried up to {self.tried_up_to})")

    @property
    def brief(self) -> str:
        """The same without what was tried."""
        return self._where(f"ONNX Runtime {self.least_runtime} or newer")

    def _where(self, runtime: str) -> str:
        """With these words for versions of the runtime, where none were asked for."""
        if self.runtimes:
            runtime = f"ONNX Runtime {self.runtimes.replace('..', ' to ')} ({self._bits_by_version})"
        made_for = f", in sessions with {', '.join(self.session)}" if self.session else ""
        if self.threads:
            made_for += f"; bits are those of the original with intra_op_num_threads={self.threads}"
        elif self.most_threads:
            made_for += (
                f"; bits are those of the original with up to {self.most_threads} threads (--intra-op-threads for more)"
            )
        if self.target:
            made_for += f"; memory is promised for {self.target}, predicted, not run there"
        if self.layout_block is None:
            but = f"; on {', '.join(self.unlike)} last bits may differ" if self.unlike else ""
            return f"any processor (bits compared on {self.processor}{but}), {runtime}{made_for}"
        return f"{self.processor}, {runtime}{made_for}; for others `--target any`"

    @property
    def _bits_by_version(self) -> str:
        """On which of the versions that it was asked for it has the bits that the original has there."""
        ends = (*self.runtimes.split(".."), self.least_runtime)
        oldest, *_, newest, least = (tuple(map(int, each.split("."))) for each in (ends[0], *ends))
        if oldest >= least:
            return "as asked"
        where = f"before {self.least_runtime} " if newest >= least else ""
        return f"as asked; {where}the original may be fused otherwise, so that last bits differ from its own there"

    @property
    def asked_session(self) -> AskedSession:
        """The session in which what was promised holds here, with as many threads as its bits need or bear."""
        asked = session_of(self.session)
        borne = self.most_threads if 0 < self.most_threads < available_cores() else 0
        return msgspec.structs.replace(asked, threads=asked.threads or self.threads or borne)

    @property
    def is_unguarded(self) -> bool:
        """Whether it computes something else on other processors without a word."""
        return self.layout_block is not None and not self.is_guarded

    @property
    def metadata(self) -> dict[str, str]:
        """The entries of the model's metadata that say so."""
        found = {RUNS_ON_KEY: self.line}
        for name, value in msgspec.to_builtins(self).items():
            if isinstance(value, bool):
                text = "true" if value else "false"
            elif isinstance(value, list | tuple):
                text = "; ".join(map(str, value))
            else:
                text = "none" if value is None else str(value)
            found[f"{RUNS_ON_KEY}.{name}"] = text
        return found

    @classmethod
    def from_metadata(cls, entries: Mapping[str, str]) -> Self | None:
        """What a file's metadata says; None where it says nothing, or nothing that can be read."""
        start = f"{RUNS_ON_KEY}."
        found: dict[str, object] = {
            key.removeprefix(start): text for key, text in entries.items() if key.startswith(start)
        }
        for name in ("options", "session", "unlike"):
            if name in found:
                found[name] = list(filter(None, str(found[name]).split("; ")))
        if found.get("layout_block") == "none":
            found["layout_block"] = None
        try:
            return msgspec.convert(found, cls, strict=False)
        except msgspec.ValidationError:
            return None


def guard_name(processor: str) -> str:
    """The name of the op that refuses other processors, which stands in the error of the session."""
    kind = processor.replace(" with ", " ").replace("AVX-512", "avx512").replace("-", "_").replace(" ", "_")
    return f"{MADE_FOR}{kind}__compile_again_on_this_processor"


def is_inside_guard(name: str) -> bool:
    """Whether an op of this name is one of those inside a guard, which has a name of its own and they one behind it."""
    return name.startswith(MADE_FOR) and "/" in name
