"""`remat examples`: sample models, examples and configurations of the documentation, where there is no checkout."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from remat_cli.base.errors import ConfigError
from remat_cli.base.files import atomic_write
from remat_cli.report.doctor import ExamplesReport

PACKAGE: Final = Path(__file__).resolve().parents[1]
SHARED: Final[Sequence[str]] = (
    *("sample_models/*.onnx", "examples/*.onnx", "examples/*.py", "examples/*.ipynb", "examples/docker.md"),
    *("examples/olive/*.json", "configs/*.yaml", "configs/bench/*.yaml", "configs/devices/*.yaml"),
    "bench/instances/*.json",
)
"""What is shared, from the root of the project; a wheel has it in a folder of the package."""


def copy_examples(folder: Path, *, force: bool = False) -> ExamplesReport:
    """Copy them into a folder, under the paths that the documentation names; what is there and the same stays.

    Raises:
        ConfigError: a file of another content is there already, or one cannot be written.
    """
    root = shared_root()
    wanted = {folder / path.relative_to(root): path.read_bytes() for path in shared_files(root)}
    new = {target: data for target, data in wanted.items() if not target.exists() or target.read_bytes() != data}
    for target in new:
        if target.exists() and not force:
            raise ConfigError(
                f"{target} exists and is another file: add --force to overwrite it, or name another folder"
            )
    for target, data in new.items():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{target.parent} cannot be made: {error.strerror}: name another folder") from None
        atomic_write(target, data)
    model = os.path.normpath(folder / "sample_models" / "unet.onnx")
    return ExamplesReport(folder=str(folder), files=tuple(map(str, wanted)), written=len(new), model=model)


def shared_root() -> Path:
    """Where the files lie: in the package that a wheel brought, or in the checkout around it."""
    inside = PACKAGE / "share"
    return inside if inside.is_dir() else PACKAGE.parent


def shared_files(root: Path) -> Iterator[Path]:
    """All of them, in their order, but for what somebody who followed the documentation made in a checkout."""
    made = (".remat.", ".plan.", ".train.", ".gated.", ".failed.")
    for pattern in SHARED:
        yield from sorted(path for path in root.glob(pattern) if not any(word in path.name for word in made))
