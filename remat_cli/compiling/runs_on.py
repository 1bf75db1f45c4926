"""Where a file that is written here runs, and whether a plan's sessions may be opened on this processor."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.base.files import WORK_FOLDER
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.prepare import Prepared, op_threads
from remat_cli.compiling.processor import block_here
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.conditions import CPU
from remat_cli.core.values.runs_on import (
    EXACT_OPTIONS,
    GPU_OPTIONS,
    OTHER_DEVICES,
    OWN_OPTIONS,
    UNLIKE,
    RunsOn,
    RuntimeRange,
)
from remat_cli.core.values.session import ANY_THREADS
from remat_cli.onnx_io.read.layout import uses_blocks
from remat_cli.onnx_io.write.op_versions import loads_from, needs_of
from remat_cli.onnx_io.write.processor_guard import guard_in
from remat_cli.ort_rules.records import RECORDS
from remat_cli.ort_rules.versions import PACKED_FROM, SAME_BITS_FROM, TRIED_UP_TO, newest, newest_of, numbers_of
from remat_cli.splitting.rules.table import is_for_threads


@dataclass(frozen=True)
class BitsOf:
    """With which sessions a file has the bits of the original.

    With so many `threads` (0: with any number), and with no more than `most_threads` (0: with any number). `has_tiles`:
    some of its ops are parts.
    """

    threads: int = 0
    most_threads: int = 0
    has_tiles: bool = False


ANY_BITS = BitsOf()


def runs_on_of(model: Any, prepared: Prepared, *, is_packed: bool, is_cut: bool, bits: BitsOf = ANY_BITS) -> RunsOn:
    """Where a model runs as it is about to be written.

    `is_packed`: with copies of weights as kernels pack them; `is_cut`: to be cut into sessions that remat opens. Where
    its bits are those of the original say `bits`.
    """
    made_with, asked = prepared.runtime.version, prepared.conditions.runtimes
    refuse_late_needs(model, asked, made_with, is_packed=is_packed)
    loads = loads_from(model, made_with, is_packed=is_packed)
    session = prepared.conditions.session
    threads, most = bits.threads, bits.most_threads if not bits.threads else 0
    as_compared = msgspec.structs.replace(session, threads=threads) if threads else session
    of_one = EXACT_OPTIONS if prepared.conditions.portable else as_compared.lines
    if most and not as_compared.threads:
        of_one = tuple(f"at most {most} threads" if line == ANY_THREADS else line for line in of_one)
    processor, device = prepared.runtime.processor, prepared.conditions.device
    unlike = UNLIKE if bits.has_tiles and prepared.layout is not None else ()
    if device.provider != CPU and not is_cut:
        of_one, processor, unlike = GPU_OPTIONS, f"{processor}, {device.name}", OTHER_DEVICES if bits.has_tiles else ()
    return RunsOn(
        processor=processor,
        layout_block=prepared.runtime.layout_block if uses_blocks(model) else None,
        least_runtime=newest((loads, SAME_BITS_FROM)),
        loads_from=loads,
        tried_up_to=newest((TRIED_UP_TO, made_with)),
        options=OWN_OPTIONS if is_cut else of_one,
        is_guarded=guard_in(model) is not None,
        session=session.words,
        threads=threads,
        most_threads=most,
        target=prepared.conditions.target,
        unlike=unlike,
        runtimes="" if asked is None else "..".join(dict.fromkeys((asked.oldest, newest_of(asked)))),
    )


def refuse_unknown_versions(asked: RuntimeRange | None) -> None:
    """Refuse versions of the runtime of which there is no record.

    Raises:
        ConfigError: the oldest or the newest is one of those.
    """
    if asked is None:
        return
    first, last = min(RECORDS), numbers_of(TRIED_UP_TO)
    for version in (asked.oldest, newest_of(asked)):
        if not first <= numbers_of(version) <= last:
            known = f"{first[0]}.{first[1]}..{TRIED_UP_TO}"
            raise ConfigError(f"--runtime {asked}: nothing is known of ONNX Runtime {version}: name some of {known}")


def refuse_late_needs(model: Any, asked: RuntimeRange | None, made_with: str, *, is_packed: bool = False) -> None:
    """Refuse a model with something that the oldest of the versions that it is for does not have.

    Raises:
        ModelError: it has such an op, operator set or format.
    """
    if asked is None:
        return
    for first, what in needs_of(model, made_with, is_packed=is_packed):
        if numbers_of(first) > numbers_of(asked.oldest):
            raise ModelError(
                f"--runtime {asked}: the optimised model has {what}, which ONNX Runtime has from {first} on, and "
                f"{asked.oldest} does not: write '>={first}'"
            )


def may_be_packed(prepared: Prepared) -> bool:
    """Whether copies of weights as kernels pack them may go into a file: all versions it is for read what this packs.

    They are tried on the version that is installed, so it must be one of these.
    """
    asked = prepared.conditions.runtimes
    if asked is None:
        return True
    oldest, here, last = map(numbers_of, (asked.oldest, prepared.runtime.version, newest_of(asked)))
    return numbers_of(PACKED_FROM) <= oldest <= here <= last


def bits_of(planned: OneModel) -> BitsOf:
    """With which sessions the file of a plan has the original's bits."""
    if planned.splitting is None:
        return ANY_BITS
    cut = {name for region in planned.splitting.regions for name in region.ops}
    whole = (node for node in planned.whole.reference.graph if node.name in cut)
    if not any(is_for_threads(node.domain, node.op_type) for node in whole):
        return BitsOf(most_threads=planned.splitting.most_threads, has_tiles=True)
    return BitsOf(op_threads(planned.prepared.conditions), has_tiles=True)


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
