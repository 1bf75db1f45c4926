"""An arena of our own making for a process that does nothing else: limited in size, or rounding as little as it can."""

from __future__ import annotations

from typing import Any, Final

from remat_cli.runtime._ort import import_ort, runtime_errors

LARGEST_FIRST_CHUNK: Final = 2**31 - 1
"""The runtime reads the size of the first chunk as a 32-bit integer."""


def share_arena(options: Any, cap_bytes: int | None = None) -> None:
    """Register an arena for this process and let a session with these options use it. Once per process."""
    ort = import_ort()
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    with runtime_errors("ONNX Runtime refuses an arena"):
        ort.create_and_register_allocator(info, ort.OrtArenaCfg(_layout(cap_bytes)))
    options.add_session_config_entry("session.use_env_allocators", "1")


def share_cuda_arena(index: int, cap_bytes: int) -> None:
    """The same on a GPU, for sessions that ask for it by `session.use_env_allocators`; not yet run on one."""
    ort = import_ort()
    info = ort.OrtMemoryInfo("Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, index, ort.OrtMemType.DEFAULT)
    options = {"device_id": str(index), "gpu_mem_limit": str(cap_bytes)}
    with runtime_errors(f"ONNX Runtime refuses an arena on cuda:{index}"):
        ort.create_and_register_allocator_v2(
            "CUDAExecutionProvider", info, options, ort.OrtArenaCfg(_layout(cap_bytes))
        )


def _layout(cap_bytes: int | None) -> dict[str, int]:
    """How an arena takes memory.

    Chunks are split to fit, so that bytes in use are rounded to 256 and no further. With a cap, one chunk of that size
    is taken first, which keeps fragmentation low. (With the growth strategy kSameAsRequested the runtime would
    ignore the size of the first chunk.)
    """
    layout = {"arena_extend_strategy": 0, "max_dead_bytes_per_chunk": 256}  # 0: kNextPowerOfTwo
    if cap_bytes is not None:
        layout |= {"max_mem": cap_bytes, "initial_chunk_size_bytes": min(cap_bytes, LARGEST_FIRST_CHUNK)}
    return layout
