"""What a compiled file says of where it runs, checked against what it contains."""

from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir

from remat_cli.core.values.runs_on import DEFAULT_OPTIONS, RunsOn
from remat_cli.onnx_io.read.compiled import VERSION_KEY
from remat_cli.onnx_io.read.layout import uses_blocks
from remat_cli.onnx_io.read.untrusted import all_tensors
from remat_cli.onnx_io.write.op_versions import loads_from
from remat_cli.onnx_io.write.packed import forget_packed
from remat_cli.onnx_io.write.processor_guard import guard_in
from remat_cli.ort_rules.versions import SAME_BITS_FROM, TRIED_UP_TO, newest

UNKNOWN_PROCESSOR = "the kind of processor that it was compiled on"
UNKNOWN_BLOCK = 0


def runs_on_at(path: Path) -> RunsOn | None:
    """Where the compiled file at a path runs; None for a file that remat did not write."""
    proto = onnx.load(str(path), format="protobuf", load_external_data=False)
    packed = [forget_packed(tensor) for tensor in all_tensors(proto.graph)]
    return compiled_runs_on(ir.from_proto(proto), is_packed=any(packed))


def compiled_runs_on(model: ir.Model, *, is_packed: bool = False) -> RunsOn | None:
    """Where a compiled model runs, whose file holds packed copies or not; None for one that remat did not write.

    Blocks and the guard are looked for in the model itself: what other tools do to a file does not change what it says.
    """
    if VERSION_KEY not in model.metadata_props:
        return None
    said = RunsOn.from_metadata(model.metadata_props) or _unsaid(model, is_packed=is_packed)
    guard = guard_in(model)
    block = said.layout_block if guard is None or not guard.block else guard.block
    return msgspec.structs.replace(
        said,
        layout_block=(block or UNKNOWN_BLOCK) if uses_blocks(model) else None,
        is_guarded=guard is not None,
    )


def _unsaid(model: ir.Model, *, is_packed: bool) -> RunsOn:
    """What can be told of a file that was made before files said it."""
    loads = loads_from(model, TRIED_UP_TO, is_packed=is_packed)
    return RunsOn(
        processor=UNKNOWN_PROCESSOR,
        layout_block=None,
        least_runtime=newest((loads, SAME_BITS_FROM)),
        loads_from=loads,
        tried_up_to=TRIED_UP_TO,
        options=DEFAULT_OPTIONS,
    )
