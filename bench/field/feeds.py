"""What programs feed their models, kept as the files that a user would give to `remat compile --inputs`.

They say of open dimensions all that a user would type, and bring values that some models ask for: a rate that is known,
a state, lengths that agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

SUFFIX = ".npz"


def packed(runs: Path, target: Path) -> list[Path]:
    """The arrays that lie in a folder a run as a file a run in another folder, named by numbers in the same order."""
    target.mkdir(parents=True)
    for run in runs.iterdir():
        np.savez(target / run.name, **{unquote(array.stem): np.load(array) for array in run.iterdir()})
    return files(target)


def files(folder: Path) -> list[Path]:
    """The files of a folder of feeds, those of the first run first."""
    return sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: int(path.stem))


def largest(found: list[Path]) -> dict[str, Any]:
    """The feeds with most elements."""
    feeds = [dict(np.load(path)) for path in found]
    return max(feeds, key=lambda arrays: sum(array.size for array in arrays.values()))
