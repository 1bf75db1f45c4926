"""Under which conditions a model is read, optimised, run and measured: what every figure depends on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from remat_cli.core.values.profile import DeviceSpec
from remat_cli.core.values.runs_on import RuntimeRange
from remat_cli.core.values.session import AskedSession
from remat_cli.core.values.sizes import Dim, SizeFamily
from remat_cli.core.values.spill import SpillSpec

CPU = "cpu"
Optimization = Literal["all", "extended", "basic"]


BLOCKS_OF: Final[Mapping[str, tuple[int, ...]]] = {
    "x86-64-avx512": (16,),
    "x86-64-avx2": (8,),
    "x86-64": (16, 8),
    "arm64": (1,),
    "wasm": (1,),
}
"""How many channels sessions keep together on processors of a name (1: they have no such layout)."""
HEAP_BYTES: Final[Mapping[str, int]] = {"wasm": 2**32}
"""The most that a process can have where a target bounds that: 32-bit addresses of WebAssembly."""
HEAP_BEFORE_BYTES: Final = 2**24
"""Of such memory, what is taken before a model is there."""
KINDS: Final = ("x86-64-avx512", "x86-64-avx2", "arm64", "wasm")
"""Kinds of processors that differ in how sessions run a file: those that one for any processor is for."""
KINDS_OF: Final[Mapping[str, tuple[str, ...]]] = {"any": KINDS, "x86-64": ("x86-64-avx512", "x86-64-avx2")}
"""The kinds of targets that are several."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What stages need to know of the user's wishes about the model and the machine.

    `dims` and `input_shapes` bind what the model leaves open; of a `family` of sizes, `dims` are the largest, and
    `summed` are sums of them. `inputs` are real ones (.npz), which bind sizes too, else they are drawn from `seed`;
    outputs are compared on `more_inputs` as well. A `portable` file runs everywhere; what is promised of its memory is,
    where it has a `target`, that of processors of this name. `estimate` admits devices that are not here, at estimated
    costs. `intra_op_threads` 0 is the runtime's own default. `custom_ops` are shared libraries with operators of the
    user's own. `cache_dir` holds measured costs, which a process that `forgets_costs` takes with it when it ends. A run
    of the model that shows no progress for `run_seconds` is ended. A file is for `runtimes` (None: for all that have
    what it needs). A process has no more than `heap_bytes` where it runs (None: as much as there is). Callers will open
    the file in a `session`. Values may wait in `spill` meanwhile.
    """

    devices: tuple[DeviceSpec, ...]
    dims: dict[str, int] = {}
    summed: dict[str, Dim] = {}
    input_shapes: dict[str, tuple[int, ...]] = {}
    family: SizeFamily | None = None
    inputs: Path | None = None
    more_inputs: tuple[Path, ...] = ()
    seed: int = 0
    portable: bool = False
    target: str = ""
    heap_bytes: int | None = None
    runtimes: RuntimeRange | None = None
    plain: bool = False
    session: AskedSession = AskedSession()
    estimate: bool = False
    intra_op_threads: int = 0
    custom_ops: tuple[str, ...] = ()
    cache_dir: Path
    forgets_costs: bool = False
    run_seconds: float = 3600.0
    spill: SpillSpec | None = None

    @property
    def all_inputs(self) -> tuple[Path, ...]:
        """All files of real inputs."""
        return () if self.inputs is None else (self.inputs, *self.more_inputs)

    @property
    def device(self) -> DeviceSpec:
        """The first device."""
        return self.devices[0]

    @property
    def may_be_steady(self) -> bool:
        """Whether a model may be written in the steady form: for the CPU alone."""
        return self.may_be_alone and not self.plain

    @property
    def may_be_alone(self) -> bool:
        """Whether models run as one session on the CPU."""
        return len(self.devices) == 1 and self.device.provider == CPU

    @property
    def optimization(self) -> Optimization:
        """How far the runtime optimises before planning: to ops of the CPU's own only where nothing else runs them."""
        if any(spec.provider != CPU for spec in self.devices):
            return "basic"
        return "extended" if self.portable else "all"

    @property
    def is_left(self) -> bool:
        """Whether a file is left to users' sessions to bring into the layout of their processor."""
        return self.portable and self.may_be_alone

    def is_for(self, block: int) -> bool:
        """Whether a file is for processors with blocks of so many channels, among others."""
        return block in BLOCKS_OF.get(self.target, (block,))

    def leaves_alone(self, block: int) -> bool:
        """Whether all processors that a file is for have blocks of so many channels, so that it needs no other ones."""
        return self.target in BLOCKS_OF and BLOCKS_OF[self.target] == (block,)

    def most_live_bytes(self, weight_bytes: int) -> int | None:
        """What can be live at once where the target's memory is bounded, of which the file takes its part too."""
        return None if self.heap_bytes is None else max(0, self.heap_bytes - HEAP_BEFORE_BYTES - weight_bytes)

    @property
    def opens_as(self) -> Optimization:
        """How far users' sessions optimise what outputs are compared with: wholly, where the CPU runs all ops."""
        return "all" if self.optimization == "extended" else self.optimization

    def threads_of(self, spec: DeviceSpec) -> int:
        """Threads that ops on a device run with."""
        return spec.threads or self.intra_op_threads
