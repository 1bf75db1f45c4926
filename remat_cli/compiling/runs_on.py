"""Where a file that is written here runs, and whether a plan's sessions may be opened on this processor."""

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.base.files import WORK_FOLDER
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.prepare import Prepared, op_threads
from remat_cli.compiling.processor import block_here
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.runs_on import EXACT_OPTIONS, OWN_OPTIONS, RunsOn
from remat_cli.onnx_io.read.layout import uses_blocks
from remat_cli.onnx_io.write.op_versions import loads_from
from remat_cli.onnx_io.write.processor_guard import guard_in
from remat_cli.ort_rules.versions import SAME_BITS_FROM, TRIED_UP_TO, newest
from remat_cli.splitting.rules.table import is_for_threads


def runs_on_of(model: Any, prepared: Prepared, *, is_packed: bool, is_cut: bool, threads: int = 0) -> RunsOn:
    """Where a model runs as it is about to be written.

    `is_packed`: with copies of weights as kernels pack them; `is_cut`: to be cut into sessions that remat opens. Its
    bits are those of the original with so many `threads` (0: with any number).
    """
    made_with = prepared.runtime.version
    loads = loads_from(model, made_with, is_packed=is_packed)
    session = prepared.conditions.session
    as_compared = msgspec.structs.replace(session, threads=threads) if threads else session
    of_one = EXACT_OPTIONS if prepared.conditions.portable else as_compared.lines
    return RunsOn(
        processor=prepared.runtime.processor,
        layout_block=prepared.runtime.layout_block if uses_blocks(model) else None,
        least_runtime=newest((loads, SAME_BITS_FROM)),
        loads_from=loads,
        tried_up_to=newest((TRIED_UP_TO, made_with)),
        options=OWN_OPTIONS if is_cut else of_one,
        is_guarded=guard_in(model) is not None,
        session=session.words,
        threads=threads,
        target=prepared.conditions.target,
    )


def threads_of_bits(planned: OneModel) -> int:
    """With how many threads a session has the original's bits; 0: with any number, as no op is cut that minds."""
    if planned.splitting is None:
        return 0
    cut = {name for region in planned.splitting.regions for name in region.ops}
    whole = (node for node in planned.whole.reference.graph if node.name in cut)
    if not any(is_for_threads(node.domain, node.op_type) for node in whole):
        return 0
    return op_threads(planned.prepared.conditions)


def refuse_other_processors(read: PlanFile) -> None:
    """Check that the sessions of a plan compute here what they did where it was made.

    Raises:
        ModelError: its weights lie in blocks of another size than this processor's.
    """
    made = read.runs_on
    if made is None or made.layout_block is None:
        return
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER) as folder:
        found = block_here(Path(folder))
    if found != made.layout_block:
        raise ModelError(
            f"the plan was made for {made.processor}, with weights in blocks of {made.layout_block} channels; this "
            f"processor has blocks of {found}: compile again here"
        )
