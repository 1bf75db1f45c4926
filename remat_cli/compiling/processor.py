"""The runtime on this processor, and how many channels its blocked layout keeps together: what files depend on."""

import platform
import tempfile
from pathlib import Path

from remat_cli.core.values.session import AskedSession
from remat_cli.onnx_io.read.layout import block_of_probe, layout_probe
from remat_cli.onnx_io.read.load import prepare_optimized
from remat_cli.onnx_io.write.save import save
from remat_cli.ort_rules.runtime import Runtime, SessionOptions
from remat_cli.runtime.sessions.session import optimize, runtime_version


def runtime_here(work: Path, session: AskedSession, judged_as: tuple[str, ...] = ()) -> Runtime:
    """The runtime that is installed, on this processor, with sessions opened like that; `work` is for small files.

    Files are judged by the rules of versions from the first to the last of `judged_as` (empty: the installed one).
    """
    options = SessionOptions(
        has_memory_pattern=session.has_pattern, has_arena=session.arena, runs_at_once=session.concurrency
    )
    return Runtime(runtime_version(), platform.machine(), block_here(work), options, judged_as)


def block_here(work: Path) -> int:
    """Channels per block, as the runtime's optimiser shows; 1 where it has no blocks. `work` is for small files."""
    with tempfile.TemporaryDirectory(prefix="block_", dir=work) as folder:
        probe, optimised = Path(folder) / "probe.onnx", Path(folder) / "probe.optimised.onnx"
        save(layout_probe(), probe)
        optimize(probe, optimised, "all")
        return block_of_probe(prepare_optimized(optimised))
