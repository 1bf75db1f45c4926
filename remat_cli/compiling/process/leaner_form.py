"""Weighs the steady form by all that a process holds: in it later runs hold less, and loading may hold more.

Weights that loops multiply with lie in the form's branch, where the runtime keeps what it packs, and the original
twice. Where these are large beside the activations, the same plan without the form is smaller, also in later runs.
"""

from dataclasses import replace

from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.process.forecast import kept_in_branch_bytes, needed_bytes
from remat_cli.compiling.write import write_within_budget
from remat_cli.ort_rules.forms import LEAST_GAIN_BYTES


def in_leaner_form(planned: OneModel, request: CompileRequest, progress: Progress) -> OneModel:
    """The plan without the steady form, where a process that loads and runs it is smaller for that.

    Runs of other sizes may each take a block of their own: so room for one more counts.
    """
    kept_bytes = kept_in_branch_bytes(planned.written, planned.prepared, request.files)
    if not planned.is_steady or kept_bytes < LEAST_GAIN_BYTES or progress.should_stop():
        return planned
    plain: OneModel | Refused | None = None
    with stages.giving_way(progress):
        plain = write_within_budget(
            replace(planned, prepared=planned.prepared.without_form()), request.search, progress
        )
    if not isinstance(plain, OneModel):
        return planned
    plain_bytes = needed_bytes(plain, request) + plain.written.sessions.runs.block_bytes
    return plain if plain_bytes + LEAST_GAIN_BYTES <= needed_bytes(planned, request) else planned
