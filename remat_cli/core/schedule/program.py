"""What is run, as files and names: inputs, weights and their readers, a cut plan, and what it is expected to take."""

import msgspec

from remat_cli.core.paging.paging import Direction
from remat_cli.core.values.profile import HOST_MEMORY, DeviceSpec
from remat_cli.core.values.spill import DISK, SpillKind, spill_name


class InputSpec(msgspec.Struct, frozen=True):
    """One tensor that the caller feeds.

    `dtype` is ONNX Runtime's name of the element type (`float`, `int64`, ...); `shape` is in elements. `is_counted`: a
    mask of tokens that the model counts, so that only ones are as many as there are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_counted: bool = False


class Reader(msgspec.Struct, frozen=True):
    """An op that reads a weight, by domain, type, and the number of the input it reads it as.

    Of ops that pack weights one that does not `packs`, by its attributes, packs none after all. `beside_bytes` is what
    its packed copy of this weight holds of others. Of a weight that `is_copied` loading reads all into such a copy of
    another, though it stays.
    """

    domain: str
    op_type: str
    input_index: int
    packs: bool = True
    beside_bytes: int = 0
    is_copied: bool = False


class WeightUse(msgspec.Struct, frozen=True):
    """A weight and every op that reads it; `dtype` is the runtime's name of its element type."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    readers: tuple[Reader, ...]


Span = tuple[int, int]
"""Start and end in nanoseconds since a run began."""


class Value(msgspec.Struct, frozen=True):
    """One instance of a tensor, by its name; `dtype` is ONNX Runtime's name of the element type."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    memory: int = 0


class StoredWeight(msgspec.Struct, frozen=True):
    """A weight in a file of the program's folder, as plain little-endian bytes."""

    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


class SegmentFile(msgspec.Struct, frozen=True):
    """A segment as a model file in the program's folder.

    `reads` and `makes` are its inputs and outputs, `ops` its ops in order; `op_steps` are their steps in the schedule.
    `weights` are all that it reads, by name.
    """

    file: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    ops: tuple[str, ...]
    op_steps: tuple[int, ...]
    weights: dict[str, WeightUse]


class SessionAction(msgspec.Struct, frozen=True, tag="session"):
    """Run a segment on a device; `drops` are the values that nobody needs once it is over.

    `host_ops` are those of its ops that run on the host, as device `host_device`, and read `host_weights`; the runtime
    copies by itself then. `workspace_bytes` is by op. `planned_ns` (start and end) and `planned_bytes` (the most that
    each memory holds meanwhile) are what the plan says, `planned_ops_ns` the same of its ops, and `planned_ops_bytes`
    what the first memory holds during each, where that is known.
    """

    device: int
    segment: SegmentFile
    drops: tuple[str, ...] = ()
    workspace_bytes: dict[str, int] = {}
    planned_ns: Span = (0, 0)
    planned_bytes: tuple[int, ...] = ()
    planned_ops_ns: dict[str, Span] = {}
    planned_ops_bytes: dict[str, int] = {}
    host_ops: tuple[str, ...] = ()
    host_device: int = 0
    host_weights: dict[str, WeightUse] = {}


class CopyAction(msgspec.Struct, frozen=True, tag="copy"):
    """Copy a value to another memory; devices are those that the schedule names."""

    source_device: int
    target_device: int
    source: str
    target: str
    drops: tuple[str, ...] = ()
    planned_ns: Span = (0, 0)
    planned_bytes: tuple[int, ...] = ()


class LoadAction(msgspec.Struct, frozen=True, tag="load"):
    """Open the session of segment `session` (a place in `Program.sessions`) over `images` of weights.

    It is closed once it has run. `drops` are the images of what it has packed.
    """

    session: int
    images: tuple[str, ...]
    drops: tuple[str, ...] = ()
    planned_ns: Span = (0, 0)
    planned_bytes: tuple[int, ...] = ()


ProgramAction = SessionAction | CopyAction | LoadAction


class PageMove(msgspec.Struct, frozen=True):
    """A transfer of a value between memory and its place in the file, and what is over before it.

    That is action `after_action` (-1: none), those before it on its lane, and so many of the other lane. A read ends a
    gap that begins with the end of action `away_after`; a write has none (-1).
    """

    value: str
    direction: Direction
    offset: int
    size_bytes: int
    after_action: int
    after_others: int = 0
    away_after: int = -1
    planned_ns: Span = (0, 0)


class WeightImage(msgspec.Struct, frozen=True):
    """Weights as they are read from their files for one session, each in whole pages: so many bytes together."""

    weights: tuple[str, ...]
    size_bytes: int


class PagePlace(msgspec.Struct, frozen=True):
    """Where a value lies in the range of addresses of a run, from when it is made or read until it leaves."""

    value: str
    begin: int
    size_bytes: int


class Spill(msgspec.Struct, frozen=True):
    """What a run pages, to a file of so many bytes in a folder or to the host; `waits[a]` as in the rules of a plan.

    `room_bytes[a]` is what values outside of sessions may take while action a runs, kept buffers included. Both have
    one entry more, for the end. Moves of what is among `images` are reads of weights, from the files of the program.
    Values take `places` in this order.
    """

    folder: str
    file_bytes: int
    lanes: tuple[tuple[PageMove, ...], ...]
    waits: tuple[tuple[int, ...], ...]
    room_bytes: tuple[int, ...]
    stall_ns: int = 0
    memory: SpillKind = DISK
    images: dict[str, WeightImage] = {}
    places: tuple[PagePlace, ...] = ()

    @property
    def name(self) -> str:
        """What users call where values wait."""
        return spill_name(self.memory, self.folder)

    @property
    def moves(self) -> tuple[PageMove, ...]:
        """All transfers, lane by lane."""
        return tuple(move for lane in self.lanes for move in lane)


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Actions in order, and what they work on.

    `memory_of` is the memory (an index into `memories`) of each device, `budgets` the total bytes of each memory.
    `values` are all instances by name; `inputs` are fed by the caller and go by their own names. `outputs` are names of
    values, inputs or weights. `weights` are those that lie in files. With `overlap` copies run beside sessions.
    `planned_fixed_bytes` is what the plan counts for each memory whatever runs: weights, and what the caller feeds.
    With a `spill` values are away meanwhile.
    """

    folder: str
    devices: tuple[DeviceSpec, ...]
    memories: tuple[str, ...]
    memory_of: tuple[int, ...]
    budgets: tuple[int, ...]
    actions: tuple[ProgramAction, ...]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    values: dict[str, Value]
    weights: dict[str, StoredWeight] = {}
    overlap: bool = False
    custom_ops: tuple[str, ...] = ()
    planned_ns: int = 0
    planned_fixed_bytes: tuple[int, ...] = ()
    spill: Spill | None = None

    @property
    def host(self) -> int:
        """The memory that the caller's inputs are in."""
        return self.memories.index(HOST_MEMORY) if HOST_MEMORY in self.memories else 0

    @property
    def planned_peak_bytes(self) -> tuple[int, ...]:
        """The most that each memory holds, fixed part included."""
        curves = [action.planned_bytes for action in self.actions]
        return tuple(max((c[m] for c in curves), default=f) for m, f in enumerate(self.planned_fixed_bytes))

    @property
    def away_weights(self) -> dict[int, frozenset[str]]:
        """The weights that are there in the turn of a session only, by its place in `sessions`."""
        images = {} if self.spill is None else self.spill.images
        loads = (action for action in self.actions if isinstance(action, LoadAction))
        return {load.session: frozenset(w for each in load.images for w in images[each].weights) for load in loads}

    @property
    def sessions(self) -> tuple[SessionAction, ...]:
        """The actions that need a session each."""
        return tuple(action for action in self.actions if isinstance(action, SessionAction))


class ActionRecord(msgspec.Struct, frozen=True):
    """When an action ran, in nanoseconds since the run began, and what was held by memory, in bytes.

    `before_bytes` is what was held when it began, `after_bytes` when it ended and nothing was dropped yet; what a
    session holds within is not in it.
    """

    start_ns: int
    end_ns: int
    before_bytes: tuple[int, ...]
    after_bytes: tuple[int, ...]


class RunRecord(msgspec.Struct, frozen=True):
    """What one run took: a record per action of the program, a span per transfer of its spill, and the time of all."""

    actions: tuple[ActionRecord, ...]
    total_ns: int
    moves: tuple[Span, ...] = ()

    @property
    def stall_ns(self) -> int:
        """Time in which no action ran."""
        return self.total_ns - sum(action.end_ns - action.start_ns for action in self.actions)


class SeenMemory(msgspec.Struct, frozen=True):
    """What each memory held.

    `fixed_bytes` are weights in the form the runtime keeps and what the caller feeds, `packed_bytes` of these what
    sessions packed, each for itself. `action_bytes` is, by action and memory, the most that was held beyond: live
    tensors and the workspace that was measured when ops were profiled. `is_hidden` marks a memory with a device that
    does not tell what its sessions hold inside: there it is what passes between sessions. `misplaced_op` says where
    an op ran that is elsewhere in the plan.
    """

    fixed_bytes: tuple[int, ...]
    packed_bytes: tuple[int, ...]
    action_bytes: tuple[tuple[int, ...], ...]
    is_hidden: tuple[bool, ...]
    misplaced_op: str | None = None

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most that each memory held, fixed part included."""
        return tuple(
            fixed + max((held[memory] for held in self.action_bytes), default=0)
            for memory, fixed in enumerate(self.fixed_bytes)
        )
