"""Weights that page, read from their files into pages."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from remat_cli.base.errors import RematError
from remat_cli.core.paging.paged_plan import image_bytes
from remat_cli.core.schedule.program import StoredWeight, WeightImage
from remat_cli.core.values.pages import PAGE_BYTES, whole_pages
from remat_cli.runtime.paging.spill_file import past_the_cache, read_pages
from remat_cli.runtime.sessions._ort import Array, host_value, numpy_dtype


class WeightReader:
    """The files of weights that page, read into pages and past the page cache where the file system lets them be."""

    def __init__(self, folder: Path, weights: Mapping[str, StoredWeight], images: Mapping[str, WeightImage]) -> None:
        """Open the files.

        Raises:
            RematError: a file is gone, or cannot be read.
        """
        self._folder = folder
        self._weights = {name: weights[name] for image in images.values() for name in image.weights}
        self._files: dict[str, tuple[int, bool]] = {}
        try:
            for file in {weight.file for weight in self._weights.values()}:
                with _errors(folder / file):
                    descriptor = os.open(folder / file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
                self._files[file] = descriptor, past_the_cache(descriptor)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the files."""
        for descriptor, _ in self._files.values():
            os.close(descriptor)
        self._files = {}

    def read(self, image: WeightImage, pages: Any, is_over: Callable[[], bool]) -> None:
        """Fill a buffer with the weights of an image.

        Raises:
            RematError: the disk failed, or a file is shorter than it was.
        """
        view = memoryview(pages).cast("B")
        for weight, place in self._places(image):
            shift = weight.offset % PAGE_BYTES
            needed = shift + weight.size_bytes
            descriptor, is_direct = self._files[weight.file]
            room = view[place : place + whole_pages(needed)]
            with _errors(self._folder / weight.file):
                read_pages(descriptor, weight.offset - shift, room, is_direct, is_over, needed)

    def values(self, image: WeightImage, pages: Any) -> dict[str, Any]:
        """The weights of an image as values over its buffer, by name; each lies in a page as it does in its file."""
        found = {}
        for name, (weight, place) in zip(image.weights, self._places(image), strict=True):
            element = numpy_dtype(weight.dtype)
            count, begin = weight.size_bytes // element.itemsize, place + weight.offset % PAGE_BYTES
            array: Array = np.frombuffer(pages, element, count, begin).reshape(weight.shape)
            found[name] = host_value(array)
        return found

    def _places(self, image: WeightImage) -> Iterator[tuple[StoredWeight, int]]:
        """Each weight, and where its first page lies in a buffer of the image."""
        place = 0
        for name in image.weights:
            yield self._weights[name], place
            place += image_bytes(self._weights[name].size_bytes)


@contextlib.contextmanager
def _errors(file: Path) -> Iterator[None]:
    """Errors of the system as one line that names the file."""
    try:
        yield
    except OSError as error:
        raise RematError(f"weights cannot be read from {file}: {error.strerror}") from None
