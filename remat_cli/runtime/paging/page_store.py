"""Where a paged run keeps values: those that are there, and those that wait in a file or, behind a device, in the host.

A store is shared by the thread that runs sessions and those that do transfers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from remat_cli.base.errors import RematError
from remat_cli.base.present import present
from remat_cli.core.schedule.program import PageMove, Program, Spill, Value
from remat_cli.devices.provider_table import PROVIDERS
from remat_cli.runtime.paging._weight_reader import WeightReader
from remat_cli.runtime.paging.page_buffers import PageBuffer, PageBuffers
from remat_cli.runtime.paging.spill_file import SpillFile
from remat_cli.runtime.segments._segment_sessions import as_array, place_of_device, size_of
from remat_cli.runtime.sessions._ort import NUMPY_NAMES, Array, host_value, import_ort, numpy_dtype
from remat_cli.runtime.sessions.providers import placed_value


@dataclass(frozen=True)
class HeldPage:
    """A value that is there, and what a store keeps of it.

    On the host the buffer that it lies in (None: the runtime's own); elsewhere `size_bytes` on the device.
    """

    value: Any
    array: Array | None = None
    buffer: PageBuffer | None = None
    size_bytes: int = 0

    @property
    def pages(self) -> Any:
        """The bytes of its buffer, which a disk writes and reads.

        Raises:
            RematError: it lies in the runtime's own memory.
        """
        return present(self.buffer, "the buffer of a value that pages").pages


class PageStore(Protocol):
    """Values of one run after the other; `most_held_bytes` since the last `limit`, those in a file or the host not."""

    @property
    def most_held_bytes(self) -> int:
        """The most that was held."""
        ...

    @property
    def turn(self) -> contextlib.AbstractContextManager[Any]:
        """What a thread holds while it calls the runtime, where the provider takes one call at a time."""
        ...

    def limit(self, most_bytes: int) -> None:
        """Keep so little for later that it makes no more than so many bytes with what is held."""
        ...

    def room(self, name: str) -> HeldPage | None:
        """Room for a value; None where the runtime must make its own."""
        ...

    def adopt(self, value: Any) -> HeldPage:
        """What the runtime made."""
        ...

    def give(self, held: HeldPage) -> None:
        """Let go of a value."""
        ...

    def output(self, held: HeldPage) -> Array:
        """A value as an array of the caller's; the store lets go of it."""
        ...

    def write(self, move: PageMove, held: HeldPage, is_over: Callable[[], bool]) -> None:
        """Let a value wait elsewhere too."""
        ...

    def read(self, move: PageMove, is_over: Callable[[], bool]) -> HeldPage:
        """Take a value back."""
        ...

    def weights(self, name: str, held: HeldPage) -> dict[str, Any]:
        """The values of an image of weights that was read, by name; they lie in it."""
        ...

    def begin_run(self) -> None:
        """Nothing is held."""
        ...

    def end_run(self) -> None:
        """Nothing waits any more."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


def open_store(program: Program, spill: Spill) -> PageStore:
    """The store of a plan.

    Raises:
        ConfigError: the folder for pages cannot be written to.
        RematError: its disk is too full, or failed; a file of weights cannot be read.
    """
    if spill.folder:
        return FileStore(program, spill)
    return HostStore(program)


class FileStore:
    """Values in page-aligned buffers of its own, so that the disk writes and reads them in place."""

    def __init__(self, program: Program, spill: Spill) -> None:
        """Make the file.

        Raises:
            ConfigError: the folder for pages cannot be written to.
            RematError: its disk is too full, or failed; a file of weights cannot be read.
        """
        self._program, self._handed_over, self._images = program, frozenset(program.outputs), spill.images
        self._file = SpillFile(Path(spill.folder), spill.file_bytes)
        try:
            self._weights = WeightReader(Path(program.folder), program.weights, spill.images)
        except RematError:
            self._file.close()
            raise
        self._buffers = PageBuffers(spill.places)
        self._rooms: dict[str, HeldPage] = {}  # as values had them last, which mostly is where they have them again

    @property
    def most_held_bytes(self) -> int:
        """The most that was held."""
        return self._buffers.most_held_bytes

    @property
    def turn(self) -> contextlib.AbstractContextManager[Any]:
        """Disk and sessions do not meet."""
        return contextlib.nullcontext()

    def limit(self, most_bytes: int) -> None:
        """Keep so little for later that it makes no more than so many bytes with what is held."""
        self._buffers.limit(most_bytes)

    def room(self, name: str) -> HeldPage | None:
        """A buffer for a value; None where the runtime must make its own."""
        spec = self._program.values[name]
        return None if spec.dtype == "string" or not spec.size_bytes else self._room_for(name, spec)

    def _room_for(self, name: str, spec: Value) -> HeldPage:
        """A buffer for a value that takes bytes, where it mostly had one in an earlier run."""
        if name in self._handed_over:
            return self._made(spec, self._buffers.take_apart(spec.size_bytes))
        buffer = self._buffers.take(name, spec.size_bytes)
        known = self._rooms.get(name)
        if known is None or known.buffer is None or known.buffer.place != buffer.place:
            known = self._made(spec, buffer)
            if spec.dtype in NUMPY_NAMES:  # others are copies
                self._rooms[name] = known
        return known

    def _made(self, spec: Value, buffer: PageBuffer) -> HeldPage:
        array = buffer.values(numpy_dtype(spec.dtype), spec.shape)
        return HeldPage(host_value(array), array, buffer)

    def adopt(self, value: Any) -> HeldPage:
        """What the runtime made lies in no buffer of ours."""
        return HeldPage(value)

    def give(self, held: HeldPage) -> None:
        """A buffer may be used again at once. What the caller feeds is the caller's."""
        if held.buffer is not None:
            self._buffers.give(held.buffer)

    def output(self, held: HeldPage) -> Array:
        """The buffer is the caller's from now on."""
        if held.array is None or held.buffer is None:
            return as_array(held.value)
        self._buffers.forget(held.buffer)
        return held.array

    def write(self, move: PageMove, held: HeldPage, is_over: Callable[[], bool]) -> None:
        """From its buffer into the file."""
        self._file.write(move.offset, held.pages, is_over)

    def read(self, move: PageMove, is_over: Callable[[], bool]) -> HeldPage:
        """From the file into a buffer; weights from files of theirs. A read that fails holds no buffer."""
        image = self._images.get(move.value)
        if image is None:
            made = self._room_for(move.value, self._program.values[move.value])
        else:
            made = HeldPage(None, None, self._buffers.take(move.value, image.size_bytes))
        try:
            if image is None:
                self._file.read(move.offset, made.pages, is_over)
            else:
                self._weights.read(image, made.pages, is_over)
        except BaseException:
            self.give(made)
            raise
        return made

    def weights(self, name: str, held: HeldPage) -> dict[str, Any]:
        """The values of an image of weights that was read, by name; they lie in its buffer."""
        return self._weights.values(self._images[name], held.pages)

    def begin_run(self) -> None:
        """Buffers take their places again."""
        self._buffers.begin_run()

    def end_run(self) -> None:
        """What lies in the file is written over by the next run."""

    def close(self) -> None:
        """Let go of all files and buffers."""
        self._file.close()
        self._weights.close()
        self._rooms.clear()
        self._buffers = PageBuffers()


class HostStore:
    """Values on a device with memory of its own; those that wait are arrays on the host."""

    def __init__(self, program: Program) -> None:
        """Nothing is held yet."""
        (spec,) = program.devices
        self._program, self._place = program, place_of_device(spec)
        provider = PROVIDERS[spec.provider]
        self._gives_outputs = provider.gives_outputs
        self._turn = threading.RLock() if provider.takes_turns else contextlib.nullcontext()
        self._lock = threading.Lock()
        self._waiting: dict[str, Array] = {}
        self._held_bytes = self._most_held_bytes = 0

    @property
    def most_held_bytes(self) -> int:
        """The most that was held on the device."""
        return self._most_held_bytes

    @property
    def turn(self) -> contextlib.AbstractContextManager[Any]:
        """Where calls take turns only what the device still computes goes on beside a copy."""
        return self._turn

    def limit(self, most_bytes: int) -> None:
        """Nothing is kept for later here; the provider keeps what it keeps."""
        with self._lock:
            self._most_held_bytes = self._held_bytes

    def room(self, name: str) -> HeldPage | None:
        """A value on the device; None where the provider gives away what it makes."""
        spec = self._program.values[name]
        if spec.dtype == "string" or self._gives_outputs:
            return None
        make = import_ort().OrtValue.ortvalue_from_shape_and_type
        return self.adopt(make(spec.shape, numpy_dtype(spec.dtype), *self._place))

    def adopt(self, value: Any) -> HeldPage:
        """A value that is there from now on."""
        size = size_of(value)
        with self._lock:
            self._held_bytes += size
            self._most_held_bytes = max(self._most_held_bytes, self._held_bytes)
        return HeldPage(value, size_bytes=size)

    def give(self, held: HeldPage) -> None:
        """The device has it no more once nothing else refers to it."""
        with self._lock:
            self._held_bytes -= held.size_bytes

    def output(self, held: HeldPage) -> Array:
        """A copy on the host."""
        self.give(held)
        return as_array(held.value)

    def write(self, move: PageMove, held: HeldPage, is_over: Callable[[], bool]) -> None:
        """A copy on the host; this waits for the op that makes the value, where a device works behind our back."""
        with self.turn:
            self._waiting[move.value] = as_array(held.value)

    def read(self, move: PageMove, is_over: Callable[[], bool]) -> HeldPage:
        """A copy on the device."""
        with self.turn:
            return self.adopt(placed_value(self._waiting[move.value], self._place))

    def weights(self, name: str, held: HeldPage) -> dict[str, Any]:
        """Weights do not page here."""
        return {}

    def begin_run(self) -> None:
        """The provider has places of its own."""

    def end_run(self) -> None:
        """Let go of the copies on the host."""
        self._waiting.clear()

    def close(self) -> None:
        """Let go of everything."""
        self._waiting.clear()
